"""The runs that follow from a study in a scope: which, in which order, and all that each is told."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any, Literal, cast

from halfstep.keys import Frozen, PositiveFloat, PositiveInt
from halfstep.mistakes import StudyError
from halfstep.registry import OPERATOR, OPERATORS, RECIPES, TRAINING, WORKLOADS
from halfstep.study import SMOKE_BATCH, SMOKE_REPLICATES, Study, Window, meaningful_keys

SMOKE_WINDOW = Window(warmup_steps=2, min_steps=5, min_seconds=0.001)
ARTICLE_WINDOW = Window(warmup_steps=11, min_steps=41, min_seconds=0.001)


@dataclass(frozen=True)
class Scope:
    """Where results belong: the device, the scale, and whether they were made in the image."""

    device: str
    scale: str
    image: bool = False

    @property
    def name(self) -> str:
        return self.device + "-smoke" * (self.scale == "smoke") + "-image" * self.image

    @classmethod
    def parse(cls, name: str) -> Scope:
        image = name.endswith("-image")
        rest = name.removesuffix("-image")
        return cls(rest.removesuffix("-smoke"), "smoke" if rest.endswith("-smoke") else "full", image)


def at_scale(study: Study, scope: Scope) -> Study:
    """The study less what a smoke run leaves out: comparisons with `smoke: false`, and claims about them.

    Raises:
        StudyError: nothing is left.
    """
    if scope.scale != "smoke":
        return study
    comparisons = {name: comparison for name, comparison in study.comparisons.items() if comparison.smoke}
    if not comparisons:
        raise StudyError("config.yaml: a smoke run has nothing to do: every comparison says smoke: false.")
    claims = {name: claim for name, claim in study.claims.items() if claim.comparisons <= comparisons.keys()}
    return study.model_copy(update={"comparisons": comparisons, "claims": claims})


class Run(Frozen):
    """One comparison x variant x replicate with everything resolved: all that the measuring process is told.

    It names neither its comparison nor the baseline: changing those measures nothing again.
    """

    workload: str
    # None: means nothing to this workload, so that no other value of it makes another run
    precision: str | None
    weights: Literal["fp32", "bf16"] | None
    compile: str | None
    optimizer: str | None
    norm: str | None
    gemm: str | None
    batch: PositiveInt | None
    data: Literal["resident", "dataloader"] | None
    protocol: Literal["fair", "article"] | None
    memory_cap_gib: PositiveFloat | None
    device: str
    scale: Literal["full", "smoke"]
    replicate: PositiveInt
    seed: int
    window: Window | None
    timeout_s: PositiveInt
    modules: dict[str, str]

    @property
    def compiles(self) -> bool:
        """Whether torch.compile is to see anything."""
        return self.compile not in (None, "none")

    def canonical(self) -> str:
        return canonical_json(self.model_dump())

    def hash(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]


def canonical_json(value: Any) -> str:
    """JSON text that is the same for the same content."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


RunKey = tuple[str, str, int]


def run_keys(study: Study, scope: Scope) -> list[RunKey]:
    """(comparison, variant, replicate) in measuring order: by comparison, then replicate, then a seeded shuffle.

    A baseline and its variants so meet on the same GPU close in time, in an order that favours none.
    """
    keys = []
    for name, comparison in study.comparisons.items():
        replicates = comparison.replicates or study.replicates
        if scope.scale == "smoke":
            replicates = min(replicates, SMOKE_REPLICATES)
        for replicate in range(1, replicates + 1):
            variants = sorted(comparison.variants)
            shuffled = random.Random(f"{study.seed}/{name}/{replicate}").sample(variants, len(variants))
            keys += [(name, variant, replicate) for variant in shuffled]
    return keys


def resolve(study: Study, scope: Scope, key: RunKey) -> Run:
    """The run of one key, with its recipes looked up."""
    comparison = study.comparisons[key[0]]
    workload = comparison.workload
    keys = meaningful_keys(workload)
    settings = {
        name: value if name in keys else None for name, value in comparison.variants[key[1]].model_dump().items()
    }
    trained = workload in WORKLOADS
    smoke = scope.scale == "smoke"
    window: Window | None = None
    if trained:
        window = study.window
        if smoke:
            settings["batch"] = SMOKE_BATCH
        if comparison.protocol == "article":
            settings["data"], window = "dataloader", ARTICLE_WINDOW
        if smoke:
            window = SMOKE_WINDOW
    modules = {
        "measure": TRAINING if trained else OPERATOR,
        "workload": WORKLOADS[workload] if trained else OPERATORS[workload].reference,
        **{key: recipes[str(settings[key])] for key, recipes in RECIPES.items() if key in keys},
    }
    return Run(
        **settings,
        protocol=comparison.protocol if trained else None,
        workload=workload,
        device=scope.device,
        scale=cast(Literal["full", "smoke"], scope.scale),
        replicate=key[2],
        seed=study.seed + key[2],
        window=window,
        timeout_s=study.timeout_s,
        modules=modules,
    )
