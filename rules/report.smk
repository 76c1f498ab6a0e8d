# From the runs' CSVs to tables, figures and the report. Nothing here needs torch or a GPU.
rule collect_runs:
    input:
        RECORDS,
        PARITY_RECORDS,
    output:
        study=f"{OUT}/study.json",
        tables=multiext(
            f"{OUT}/tables/",
            "runs.csv",
            "variants.csv",
            "speedups.csv",
            "ranking.csv",
            "kernels.csv",
            "claims.csv",
            "parity.csv",
        ),
    log:
        f"{OUT}/logs/collect_runs.log",
    params:
        # what makes it run again; the command takes the study in the order of config.yaml
        study=canonical_json(STUDY.model_dump(mode="json", exclude={"defaults"})),
        code=fingerprint(["halfstep.report.collect"]),
        folder=lambda w: OUT,
    shell:
        'PYTHONPATH=src python3 -m halfstep collect {params.folder} --study "$HALFSTEP_STUDY" > {log} 2>&1'


rule plot_figures:
    input:
        rules.collect_runs.output,
    output:
        f"{OUT}/figures/captions.json",
    log:
        f"{OUT}/logs/plot_figures.log",
    params:
        code=fingerprint(["halfstep.report.figures"]),
        folder=lambda w: OUT,
    shell:
        "PYTHONPATH=src python3 -m halfstep plot {params.folder} > {log} 2>&1"


rule write_report:
    input:
        rules.collect_runs.output,
        rules.plot_figures.output,
        rules.probe_system.output,
    output:
        f"{OUT}/report.md",
    log:
        f"{OUT}/logs/write_report.log",
    params:
        code=fingerprint(["halfstep.report.markdown"]),
        template=file_hash("src/halfstep/report/report.md.j2"),
        folder=lambda w: OUT,
    shell:
        "PYTHONPATH=src python3 -m halfstep report {params.folder} --text-only > {log} 2>&1"


# Report what there is, and list as missing the runs whose job never came back.
onerror:
    shell('PYTHONPATH=src python3 -m halfstep report {OUT} --study "$HALFSTEP_STUDY"')
