"""The study: all of config.yaml as frozen models.

This module is the one source of the keys, their defaults, their checks, the JSON Schema and the
table of keys in the docs. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from halfstep.claims import Claim, mistakes_of_claims
from halfstep.image.settings import Container
from halfstep.keys import Frozen, Name, OneOf, PositiveFloat, PositiveInt, Text, ValidName, no_bool
from halfstep.mistakes import StudyError, nearest, sentence
from halfstep.registry import COMPILES, GEMMS, NO_BF16_WEIGHTS, NORMS, OPERATORS, OPTIMIZERS, PRECISIONS, WORKLOADS

SMOKE_BATCH = 16  # the least that FP8 takes
SMOKE_REPLICATES = 2


def _device(value: str) -> str:
    """A device names a folder of results/: it must not be read as another scope or stand where something else does."""
    if value.endswith(("-smoke", "-image")) or value in ("image", "latest", "reference"):
        raise PydanticCustomError("name", "is not a valid name: results/ uses it for something else")
    return value


class Window(Frozen):
    """How long one run is timed at full scale. Fixed before the first timed step, never extended or cut."""

    warmup_steps: PositiveInt = Field(8, description="steps before the window, among them the first (compiling) one")
    min_steps: Annotated[int, Field(ge=2), BeforeValidator(no_bool)] = Field(20, description="timed steps at least")
    min_seconds: PositiveFloat = Field(
        10.0, description="seconds of timed steps at least, from the warm-up's step time"
    )


class Settings(Frozen):
    """What a variant can say. Every key left out takes the study's `defaults`, then the default here."""

    precision: Annotated[str, OneOf(PRECISIONS)] = Field("fp32", description="precision recipe")
    weights: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="type of the weights, their gradients and the optimizer's state; `bf16` needs a precision that "
        "computes in bf16, and goes without autocast",
    )
    compile: Annotated[str, OneOf(COMPILES)] = Field(
        "none",
        description="what torch.compile sees: nothing, each block, the whole model, or (`graphs`) each block "
        "with the whole training step captured in one CUDA graph",
    )
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = Field("adam_fused", description="optimizer implementation")
    norm: Annotated[str, OneOf(NORMS)] = Field("layernorm", description="normalisation layer of the model")
    batch: PositiveInt = Field(16, description=f"images or sequences per step (at smoke scale always {SMOKE_BATCH})")
    data: Literal["resident", "dataloader"] = Field(
        "resident",
        description="`resident`: random batches that lie on the device, rotated; `dataloader`: random samples through "
        "a DataLoader with one worker per core and pinned memory, its wait and the copy inside the step",
    )
    gemm: Annotated[str, OneOf(GEMMS)] = Field("bf16", description="matrix product of the workload `gemm`")
    memory_cap_gib: PositiveFloat | None = Field(
        None, description="let torch's allocator on a GPU have no more than this, to act as a smaller card (GiB)"
    )


def meaningful_keys(workload: str) -> tuple[str, ...]:
    """The keys of a variant that mean something to a workload."""
    if workload in OPERATORS:
        return tuple(OPERATORS[workload].keys)
    return tuple(key for key in Settings.model_fields if key != "gemm")


class Variant(Settings):
    """One point to measure."""

    @model_validator(mode="after")
    def _weights_suit_the_precision(self) -> Self:
        if self.weights == "bf16" and self.precision in NO_BF16_WEIGHTS:
            raise PydanticCustomError(
                "weights",
                "has weights: bf16 with precision: {precision}, which does not compute in bf16: {hint}",
                {"precision": self.precision, "hint": nearest("", [p for p in PRECISIONS if p not in NO_BF16_WEIGHTS])},
            )
        return self


class Comparison(Frozen):
    """Variants of one workload, compared with one of them."""

    workload: Annotated[str, OneOf([*WORKLOADS, *OPERATORS])] = Field(
        description=f"what is trained ({', '.join(f'`{name}`' for name in WORKLOADS)}), or the operator that is timed"
    )
    baseline: str = Field(description="the variant that the others are compared with")
    title: Text | None = Field(None, description="heading in the report; the comparison's name if left out")
    replicates: PositiveInt | None = Field(None, description="processes per variant; the study's if left out")
    protocol: Literal["fair", "article"] = Field(
        "fair",
        description="`fair`: the window below, and the median step; `article`: as the FP8 article timed it: a "
        "DataLoader inside the step, 11 steps of warm-up, then the mean of 41 steps on the host's clock; training only",
    )
    smoke: bool = Field(
        True, description="`false`: a smoke run leaves this comparison out, where it would only repeat others"
    )
    variants: dict[Name, Variant] = Field(
        min_length=1, description="name: settings of each variant", json_schema_extra={"additionalProperties": False}
    )

    @model_validator(mode="after")
    def _baseline_exists(self) -> Self:
        if self.baseline not in self.variants:
            raise PydanticCustomError(
                "baseline",
                "names the baseline {baseline}, which is not one of its variants: {hint}",
                {"baseline": repr(self.baseline), "hint": nearest(self.baseline, self.variants)},
            )
        return self

    @model_validator(mode="after")
    def _one_type_of_weights(self) -> Self:
        if len({variant.weights for variant in self.variants.values()}) > 1:
            raise PydanticCustomError(
                "weights", "mixes fp32 and bf16 weights, which train differently: make it two comparisons"
            )
        return self

    @model_validator(mode="after")
    def _keys_mean_something(self) -> Self:
        keys = meaningful_keys(self.workload)
        idle = [
            f"variants.{name}.{key}"
            for name, variant in self.variants.items()
            for key in Settings.model_fields
            if key in variant.model_fields_set and key not in keys
        ]
        if idle:
            raise PydanticCustomError(
                "meaning",
                "sets {idle}, which the workload {workload} does not know: {hint}",
                {"idle": ", ".join(idle), "workload": self.workload, "hint": _hint("", keys)},
            )
        if self.workload not in OPERATORS:
            return self
        for name, variant in self.variants.items():
            for key, choices in OPERATORS[self.workload].keys.items():
                if (value := getattr(variant, key)) not in choices:
                    raise PydanticCustomError(
                        "meaning",
                        "sets variants.{name}.{key} = {value}, which the workload {workload} does not know: {hint}",
                        {
                            "name": name,
                            "key": key,
                            "value": repr(value),
                            "workload": self.workload,
                            "hint": _hint(value, choices),
                        },
                    )
        if self.protocol != "fair":
            raise PydanticCustomError(
                "meaning", "sets protocol = 'article', which is a way to time training, and its workload is an operator"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_means_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that what was written is read again as it was."""
        written: dict[str, Any] = handler(self)
        keys = meaningful_keys(self.workload)
        for name, variant in written.get("variants", {}).items():
            written["variants"][name] = {key: value for key, value in variant.items() if key in keys}
        return written


def _hint(value: str, choices: Iterable[str]) -> str:
    names = list(choices)
    return nearest(value, names) if names else "it has no settings"


class _Defaults(Frozen):
    """So that a mistake in them is told with its place."""

    defaults: Settings


class Study(Frozen):
    """All of config.yaml."""

    title: Text = Field("halfstep", description="heading of the report")
    device: Annotated[str, ValidName(), AfterValidator(_device)] = Field(
        "auto", description="`auto`, `cpu`, or a GPU's short name such as `h200`; a node without a GPU is told here"
    )
    scale: Literal["auto", "full", "smoke"] = Field(
        "auto",
        description="`full`: the sizes as written; `smoke`: tiny models, minutes on a CPU; `auto`: full on a GPU",
    )
    replicates: PositiveInt = Field(3, description=f"processes per variant (at smoke scale at most {SMOKE_REPLICATES})")
    seed: Annotated[int, Field(ge=0), BeforeValidator(no_bool)] = Field(
        0, description="seed of weights and data; replicate n uses seed + n"
    )
    timeout_s: PositiveInt = Field(900, description="a run that takes longer is ended and recorded as `timeout`")
    parity: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether each recipe's loss is compared with fp32's, in runs of their own; `auto`: at full scale",
    )
    window: Window = Field(Window(), description="how long a run is timed")
    defaults: dict[str, Any] = Field(
        {},
        description="settings for every variant that does not set them itself",
        json_schema_extra={"additionalProperties": False, "properties": Settings.model_json_schema()["properties"]},
    )
    comparisons: dict[Name, Comparison] = Field(
        min_length=1, description="name: comparison", json_schema_extra={"additionalProperties": False}
    )
    claims: dict[Name, Claim] = Field(
        {},
        description="name: a sentence that comparisons confirm or refute",
        json_schema_extra={"additionalProperties": False},
    )

    container: Container = Field(Container(), description="the image, for `snakemake --use-singularity`")

    @model_validator(mode="after")
    def _headings_differ(self) -> Self:
        headings: dict[str, str] = {}
        for name, comparison in self.comparisons.items():
            heading = " ".join((comparison.title or name).split())
            if heading in headings:
                raise PydanticCustomError(
                    "between",
                    "{mistakes}",
                    {
                        "mistakes": f"comparisons.{name} and comparisons.{headings[heading]} have the same heading "
                        f"{heading!r} in the report: give one another title"
                    },
                )
            headings[heading] = name
        return self

    @model_validator(mode="after")
    def _claims_are_about_what_is_compared(self) -> Self:
        mistakes = mistakes_of_claims(self.claims, self.comparisons)
        if mistakes:
            raise PydanticCustomError("between", "{mistakes}", {"mistakes": "\n".join(mistakes)})
        return self

    @model_validator(mode="before")
    @classmethod
    def _apply_defaults(cls, data: Any) -> Any:
        """Write the defaults into the variants, so that moving a value into `defaults` changes no run."""
        defaults = data.get("defaults") if isinstance(data, Mapping) else None
        if not isinstance(defaults, Mapping) or not isinstance(data.get("comparisons"), Mapping):
            return data
        _Defaults.model_validate({"defaults": defaults})

        def filled(comparison: Any) -> Any:
            if not isinstance(comparison, Mapping) or not isinstance(comparison.get("variants"), Mapping):
                return comparison
            workload = str(comparison.get("workload"))
            choices = OPERATORS[workload].keys if workload in OPERATORS else {}
            meant = {
                key: value
                for key, value in defaults.items()
                if key in meaningful_keys(workload) and value in choices.get(key, (value,))
            }
            variants = {
                name: {**meant, **variant} if isinstance(variant, Mapping) else variant
                for name, variant in comparison["variants"].items()
            }
            return {**comparison, "variants": variants}

        return {**data, "comparisons": {name: filled(c) for name, c in data["comparisons"].items()}}


def validate(config: Mapping[str, Any], source: str = "config.yaml") -> Study:
    """The study that `config` describes.

    Raises:
        StudyError: with one sentence per mistake, each naming the file, the key, the value and what would be right.
    """
    try:
        return Study.model_validate(config)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise StudyError("\n".join(sentence(source, dict(problem)) for problem in problems)) from error
