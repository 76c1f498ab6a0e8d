# From the runs' CSVs to tables, figures and the report. Nothing here needs torch or a GPU.
rule collect_runs:
    input:
        RECORDS,
    output:
        study=f"{OUT}/study.json",
        tables=multiext(
            f"{OUT}/tables/", "runs.csv", "variants.csv", "speedups.csv", "kernels.csv"
        ),
    params:
        study=STUDY_JSON,
        code=fingerprint(["halfstep.report.collect"]),
    shell:
        "PYTHONPATH=src python3 -m halfstep collect {OUT} --study {params.study:q}"


rule plot_figures:
    input:
        rules.collect_runs.output,
    output:
        f"{OUT}/figures/captions.json",
    params:
        code=fingerprint(["halfstep.report.figures"]),
    shell:
        "PYTHONPATH=src python3 -m halfstep plot {OUT}"


rule write_report:
    input:
        rules.collect_runs.output,
        rules.plot_figures.output,
        f"{OUT}/system/doctor.json",
    output:
        f"{OUT}/report.md",
    params:
        code=fingerprint(["halfstep.report.markdown"]),
    shell:
        "PYTHONPATH=src python3 -m halfstep report {OUT} --text-only"
