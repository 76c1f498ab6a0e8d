# One job per recipe of the study, and one per seed of the fp32 references that they are judged by. Nothing is timed.
# Params and log as in measure.smk.
rule train_recipe:
    output:
        multiext(f"{PARITY_FOLDER}/", "record.json", "curve.csv"),
    log:
        f"{PARITY_FOLDER}/log.txt",
    wildcard_constraints:
        family="[^/]+",
        recipe="[^/]+",
        seed=r"\d+",
    priority: lambda w: RANK[parity_key(w)]
    params:
        run=lambda w: trained(w).canonical(),
        code=lambda w: run_fingerprint(trained(w).modules.values()),
        folder=PARITY_FOLDER,
    shell:
        "PYTHONPATH=src python3 -m halfstep run {params.run:q} {params.folder} --code {params.code}"


# Parity alone, for a sitting that is only to check recipes. The next call of everything reports on it.
rule parity:
    input:
        PARITY_RECORDS,
