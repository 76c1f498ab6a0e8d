# One job per comparison, variant and replicate.
RANK = {key: len(RUNS) - place for place, key in enumerate(RUNS)}


def key_of(wildcards):
    return wildcards.comparison, wildcards.variant, int(wildcards.n)


def resolved(wildcards):
    return studies.resolve(STUDY, SCOPE, key_of(wildcards))


# What a run depends on stands in its params, as functions of the wildcards alone: one that takes `input` is
# never recorded. So a run is measured again when its settings or its code change, and not when a file is touched.
rule measure_variant:
    output:
        record=f"{OUT}/runs/{{comparison}}/{{variant}}/rep{{n}}/record.json",
        tables=multiext(
            f"{OUT}/runs/{{comparison}}/{{variant}}/rep{{n}}/",
            "summary.csv",
            "steps.csv",
            "kernels.csv",
        ),
    wildcard_constraints:
        n=r"\d+",
    priority: lambda w: RANK[key_of(w)]
    params:
        run=lambda w: resolved(w).canonical(),
        code=lambda w: run_fingerprint(resolved(w).modules.values()),
        folder=lambda w: f"{OUT}/runs/{w.comparison}/{w.variant}/rep{w.n}",
    shell:
        "PYTHONPATH=src python3 -m halfstep run {params.run:q} {params.folder} --code {params.code}"
