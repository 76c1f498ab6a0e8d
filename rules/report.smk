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


def link_latest():
    """Let results/latest point to this scope, whatever was made or not."""
    link = Path("results/latest")
    if Path(OUT).is_dir():
        link.unlink(missing_ok=True)
        link.symlink_to(SCOPE.name)


onsuccess:
    link_latest()
    print(f"report: {OUT}/report.md")


# Report what there is, and list as missing the runs whose job never came back.
onerror:
    link_latest()
    shell(
        "PYTHONPATH=src python3 -m halfstep report {OUT} --study {STUDY_JSON:q}"
    )
