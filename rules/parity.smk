# One job per recipe of the study, and one per seed of the fp32 references that they are judged by. Nothing is timed.
from halfstep.parity.plan import why_not


# Image, command, and what a scheduler is asked for are those of a measurement; params and log as there.
use rule measure_variant as train_recipe with:
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


# Parity alone, for a sitting that is only to check recipes. The next call of everything reports on it.
# That there is nothing to train must not look like success to who asks for just that.
rule parity:
    input:
        lambda w: PARITY_RECORDS or stop(f"There is no parity run to make: {why_not(STUDY, SCOPE)}."),
        [SIF] * IMAGE,
