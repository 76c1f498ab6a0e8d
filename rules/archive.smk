# The results and all that explains them in one file, for `snakemake archive`. Nothing is measured for it again.
ARCHIVE = f"{OUT}/archive/halfstep-{SCOPE.name}.zip"


localrules:
    archive,
    archive_study,


rule archive:
    input:
        ARCHIVE,


rule archive_study:
    input:
        RECORDS,
        PARITY_RECORDS,
        rules.probe_system.output,
        rules.collect_runs.output,
        rules.plot_figures.output,
        rules.write_report.output,
    output:
        ARCHIVE,
    log:
        f"{OUT}/logs/archive_study.log",
    params:
        # what makes it run again
        code=fingerprint(["halfstep.archive.make"]),
        template=file_hash("src/halfstep/archive/readme.md.j2"),
        source=lambda w: source_state(),
        folder=lambda w: OUT,
    shell:
        "PYTHONPATH=src python3 -m halfstep archive {params.folder} --out {output} 2>&1 | tee {log} >&2"
