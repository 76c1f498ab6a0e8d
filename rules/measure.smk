# One job per comparison, variant and replicate.
# What a run depends on stands in its params, as functions of the wildcards alone: one that takes `input` is
# never recorded. So a run is measured again when its settings or its code change, and not when a file is touched.
# The command writes its log itself, beside what it shows on the terminal.
rule measure_variant:
    input:
        image,
    output:
        multiext(f"{FOLDER}/", "record.json", "summary.csv", "steps.csv", "kernels.csv"),
    log:
        f"{FOLDER}/log.txt",
    wildcard_constraints:
        n=r"\d+",
    priority: lambda w: RANK[key_of(w)]
    container:
        SIF
    # What a scheduler is asked for. Few runs take a third of timeout_s, and a job has the minutes of all its runs.
    resources:
        gpu=GPUS,
        cpus_per_task=CPUS,
        mem_mb=MEMORY_MB,
        runtime=ceil(STUDY.timeout_s / 60 / 3),
    params:
        run=lambda w: resolved(w).canonical(),
        code=lambda w: run_fingerprint(resolved(w).modules.values()),
        folder=FOLDER,
    shell:
        "PYTHONPATH=src python3 -m halfstep run {params.run:q} {params.folder} --code {params.code}"
