# From the runs' CSVs to tables, figures and the report. Nothing here needs torch or a GPU, or a node of a cluster.
localrules:
    collect_runs,
    plot_figures,
    write_report,


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
        study=canonical_json(STUDY.model_dump(mode="json", exclude={"container", "defaults"})),
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
        multiext(f"{OUT}/report", ".md", ".html"),
    log:
        f"{OUT}/logs/write_report.log",
    params:
        code=fingerprint(["halfstep.report.write"]),
        templates=[file_hash(path) for path in beside_code("src/halfstep/report")],
        folder=lambda w: OUT,
    shell:
        "PYTHONPATH=src python3 -m halfstep report {params.folder} --text-only > {log} 2>&1"


# Report what there is, and list as missing the runs whose job never came back.
# What a failed job left goes first, as far as Snakemake was told to keep it (profiles/slurm): of the runs in one Slurm job
# those stay that it came to; an older record, which Snakemake now takes for the new one, does not.
onerror:
    for job in workflow.scheduler.failed:
        for path in job.output:
            if not measured_now(path):
                Path(path).unlink(missing_ok=True)
    shell('PYTHONPATH=src python3 -m halfstep report {OUT} --study "$HALFSTEP_STUDY"')
