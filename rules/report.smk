# From the runs' CSVs to tables, figures and the report. Nothing here needs torch or a GPU.
rule collect_runs:
    input:
        RECORDS,
    output:
        study=f"{OUT}/study.json",
        tables=multiext(f"{OUT}/tables/", "runs.csv", "variants.csv", "speedups.csv", "kernels.csv"),
    params:
        # what makes it run again; the command takes the study in the order of config.yaml
        study=studies.canonical_json(STUDY.model_dump(mode="json")),
        code=fingerprint(["halfstep.report.collect"]),
    shell:
        'PYTHONPATH=src python3 -m halfstep collect {OUT} --study "$HALFSTEP_STUDY"'


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
        template=(ROOT / "src/halfstep/report/report.md.j2").read_text(encoding="utf-8"),
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
    shell('PYTHONPATH=src python3 -m halfstep report {OUT} --study "$HALFSTEP_STUDY"')
