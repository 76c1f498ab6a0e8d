"""The parity runs that follow from a study in a scope: does each recipe train as fp32 does?

They know nothing of comparisons: not their baselines, batches, data, memory caps or protocols.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

from halfstep.keys import PositiveFloat, PositiveInt
from halfstep.registry import LEARNABLE, PARITY, RECIPES, REFERENCE_NORMS, REFERENCE_OPTIMIZERS
from halfstep.runs import Run, Scope
from halfstep.study import Settings, Study, Variant

SEEDS = 5
"""runs of each fp32 reference; recipes have one run each, with the first of these seeds"""
RECIPE_STEPS, COMBINATION_STEPS = 300, 50
REFERENCE = "reference"


class ParityRun(Run):
    """One parity run with everything resolved: all that the training process is told.

    A model of its own, since a key added to `Run` would make every timed run another one. `replicate` is the number of
    the seed.
    """

    steps: PositiveInt
    learning_rate: PositiveFloat
    data_seed: int


class Family(NamedTuple):
    """What shares an fp32 reference: a workload, an optimizer's algorithm and a kind of norm.

    The last two are named by what the reference takes.
    """

    workload: str
    optimizer: str
    norm: str

    @property
    def name(self) -> str:
        """Of its folder. The `+` keeps it apart from names of comparisons, which can have none."""
        return f"{self.workload}+{self.optimizer}+{self.norm}"


@dataclass(frozen=True)
class Recipe:
    """What is swapped into the fp32 step of a family: nothing, one thing, or several of them (a combination)."""

    family: Family
    precision: str
    weights: str
    compile: str
    optimizer: str
    norm: str

    @classmethod
    def reference(cls, family: Family) -> Recipe:
        """The fp32 step that a family's others are judged by."""
        return cls(family, "fp32", "fp32", "none", family.optimizer, family.norm)

    @property
    def swaps(self) -> tuple[str, ...]:
        """What differs from the reference, always in this order. A precision and its type of weights are one thing."""
        weights = f"+{self.weights}_weights" * (self.weights != "fp32")
        return tuple(
            name + weights * (name == self.precision)
            for name, usual in (
                (self.precision, "fp32"),
                (self.compile, "none"),
                (self.optimizer, self.family.optimizer),
                (self.norm, self.family.norm),
            )
            if name != usual
        )

    @property
    def name(self) -> str:
        return "+".join(self.swaps) or REFERENCE

    @property
    def parts(self) -> tuple[Recipe, ...]:
        """Each thing that is swapped, by itself. Compilation is none: it is no other arithmetic, and has 50 steps."""
        alone = self.reference(self.family)
        found = (
            replace(alone, precision=self.precision, weights=self.weights),
            replace(alone, optimizer=self.optimizer),
            replace(alone, norm=self.norm),
        )
        return tuple(part for part in found if part.swaps)

    @property
    def is_reference(self) -> bool:
        return not self.swaps

    @property
    def is_combination(self) -> bool:
        return bool(self.swaps) and self.parts != (self,)

    @property
    def steps(self) -> int:
        return COMBINATION_STEPS if self.is_combination else RECIPE_STEPS

    @property
    def seeds(self) -> range:
        """Numbers of its seeds."""
        return range(1, 1 + (SEEDS if self.is_reference else 1))


def recipe_of(workload: str, variant: Settings) -> Recipe | None:
    """What a variant swaps into its family's step; None where the workload has no learnable data."""
    if workload not in LEARNABLE:
        return None
    words = variant.optimizer.split("_")
    optimizer = next((found for word, found in REFERENCE_OPTIMIZERS.items() if word in words), variant.optimizer)
    norm = next((kind for kind in REFERENCE_NORMS if kind in variant.norm.split("_")), variant.norm)
    family = Family(workload, optimizer, norm)
    return Recipe(family, variant.precision, variant.weights, variant.compile, variant.optimizer, variant.norm)


class ParityKey(NamedTuple):
    """A recipe and the number of a seed."""

    recipe: Recipe
    seed: int

    @property
    def folder(self) -> str:
        """Under the scope's `parity/`."""
        return f"{self.recipe.family.name}/{self.recipe.name}/seed{self.seed}"


def why_not(study: Study, scope: Scope) -> str:
    """Why this study does not check parity in this scope; empty where it does."""
    if study.parity == "never":
        return "the study says `parity: never`"
    if study.parity == "auto" and scope.scale == "smoke":
        return "a smoke run does not check it"
    return "" if variants_of(study) else "no workload of the study has data that can be learnt"


def variants_of(study: Study) -> dict[tuple[str, str], Variant]:
    """The training variants, by comparison and name."""
    return {
        (name, variant): settings
        for name, comparison in study.comparisons.items()
        if comparison.workload in LEARNABLE
        for variant, settings in comparison.variants.items()
    }


def parity_keys(study: Study, scope: Scope) -> list[ParityKey]:
    """The parity runs in their order: by family the references, then the recipes, then the combinations.

    So a sitting that is cut short has whole families.
    """
    if why_not(study, scope):
        return []
    recipes = [
        found
        for (name, _), variant in variants_of(study).items()
        if (found := recipe_of(study.comparisons[name].workload, variant))
    ]
    keys: list[ParityKey] = []
    for family in dict.fromkeys(recipe.family for recipe in recipes):
        ours = [recipe for recipe in recipes if recipe.family == family]
        alone = [part for recipe in ours for part in recipe.parts]
        combined = [recipe for recipe in ours if recipe.is_combination]
        in_order = dict.fromkeys([Recipe.reference(family), *alone, *combined])
        keys += [ParityKey(recipe, seed) for recipe in in_order for seed in recipe.seeds]
    return keys


def resolve_parity(study: Study, scope: Scope, key: ParityKey) -> ParityRun:
    """The run of one key, with its recipes looked up."""
    recipe, learnable = key.recipe, LEARNABLE[key.recipe.family.workload]
    names = {name: getattr(recipe, name) for name in ("precision", "compile", "optimizer", "norm")}
    return ParityRun(
        workload=recipe.family.workload,
        **names,
        weights=cast(Literal["fp32", "bf16"], recipe.weights),
        gemm=None,
        batch=learnable.batch[scope.scale],
        data=None,
        protocol=None,
        memory_cap_gib=None,
        device=scope.device,
        scale=cast(Literal["full", "smoke"], scope.scale),
        replicate=key.seed,
        seed=study.seed + key.seed,
        window=None,
        timeout_s=study.timeout_s,
        modules={
            "measure": PARITY,
            "workload": learnable.reference,
            **{name: RECIPES[name][value] for name, value in names.items()},
        },
        steps=recipe.steps,
        learning_rate=learnable.learning_rate[scope.scale],
        data_seed=study.seed,
    )
