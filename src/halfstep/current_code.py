"""Which version of the code would measure each run of a study today."""

from __future__ import annotations

from halfstep.fingerprint import run_fingerprint
from halfstep.parity.plan import ParityKey, parity_keys, resolve_parity
from halfstep.runs import Run, RunKey, Scope, resolve, run_keys
from halfstep.study import Study

Codes = dict[RunKey | ParityKey, str]


def current_code(study: Study, scope: Scope) -> Codes:
    """The fingerprint of each timed run's code and of each parity run's."""
    runs: dict[RunKey | ParityKey, Run] = {key: resolve(study, scope, key) for key in run_keys(study, scope)}
    runs |= {key: resolve_parity(study, scope, key) for key in parity_keys(study, scope)}
    return {key: run_fingerprint(run.modules.values()) for key, run in runs.items()}
