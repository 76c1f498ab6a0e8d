# What the machine can do where the runs are made, each thing proved by doing it. No input of a run: every run checks
# for itself.
rule probe_system:
    input:
        image,
    output:
        f"{OUT}/system/doctor.json",
    log:
        f"{OUT}/logs/probe_system.log",
    container:
        SIF
    resources:
        gpu=GPUS,
        cpus_per_task=CPUS,
        mem_mb=MEMORY_MB,
        runtime=30,
    params:
        code=fingerprint(["halfstep.system.doctor", "halfstep.system.probes"]),
    shell:
        "PYTHONPATH=src python3 -m halfstep doctor --json {output} > {log} 2>&1"
