"""Claims: sentences, from an article or asked by it, that comparisons of the study confirm, refute or answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from halfstep.keys import Frozen, Text, no_bool
from halfstep.mistakes import nearest
from halfstep.registry import OPERATORS

if TYPE_CHECKING:
    from halfstep.study import Comparison


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(_one_or_more),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class Versus(Frozen):
    """One variant against another, or each of several others, of its comparison."""

    comparison: str = Field(description="the comparison that has both")
    variant: str = Field(description="the variant that is said to be faster")
    over: Names = Field(description="the variant, or the variants, that it is compared with")
    case: Text | None = Field(None, description="operator comparisons: the shape; every shape if left out")


class Fits(Frozen):
    """The largest batch that fits, of two kinds of variants."""

    comparison: str = Field(description="the comparison that has all of them")
    variants: Names = Field(description="variants of growing batch")
    over: Names = Field(description="the same of what they are compared with")


class GraphBreaks(Frozen):
    """A variant that torch.compile is said to break into several graphs."""

    comparison: str = Field(description="the comparison that has it")
    variant: str = Field(description="a variant that is compiled")


PROTOCOLS: dict[str, str] = {
    "article": "by the source's own protocol",
    "same_batch": "at the same batch on both sides",
    "both_compiled": "at the same batch, with torch.compile on both sides",
}


class Claim(Frozen):
    """A sentence and what decides it: `same_batch`, `fits` or `graph_breaks`, exactly one of them.

    With `ratio` or `order` it is judged; without, it is a question, and its ratio the answer.
    """

    claim: Text = Field(description="the sentence")
    source: Text = Field(description="where it is from")
    ratio: Annotated[float, Field(gt=1, allow_inf_nan=False), BeforeValidator(no_bool)] | None = Field(
        None, description="the ratio that the source gives: a speed-up, or with `fits` of batches"
    )
    order: bool = Field(False, description="`true`: the source only says that the variant is faster")
    article: Versus | None = Field(None, description="the two sides as the source compared them")
    same_batch: Versus | None = Field(
        None, description="the two sides at the same batch: the verdict goes by this ratio"
    )
    both_compiled: Versus | None = Field(
        None, description="the two sides at the same batch, with torch.compile on both"
    )
    fits: Fits | None = Field(None, description="instead of the three: which batches fit")
    graph_breaks: GraphBreaks | None = Field(None, description="instead of the three: whether there are graph breaks")

    @property
    def kind(self) -> Literal["ratio", "order", "question", "fits", "graph_breaks"]:
        if self.fits or self.graph_breaks:
            return "fits" if self.fits else "graph_breaks"
        return "ratio" if self.ratio else "order" if self.order else "question"

    @property
    def versus(self) -> dict[str, Versus]:
        """What is compared, by protocol."""
        return {name: found for name in PROTOCOLS if (found := getattr(self, name)) is not None}

    @property
    def comparisons(self) -> set[str]:
        """Names of the comparisons that it is about."""
        parts = [*self.versus.values(), self.fits, self.graph_breaks]
        return {part.comparison for part in parts if part is not None}

    @model_validator(mode="after")
    def _one_thing_decides_it(self) -> Self:
        deciding = [name for name in ("same_batch", "fits", "graph_breaks") if getattr(self, name) is not None]
        if len(deciding) != 1:
            found = " and ".join(deciding) or "none of them"
            raise PydanticCustomError(
                "claim", "needs exactly one of same_batch, fits and graph_breaks, and has {found}", {"found": found}
            )
        beside = [name for name in ("article", "both_compiled") if getattr(self, name) is not None]
        if beside and self.same_batch is None:
            raise PydanticCustomError(
                "claim",
                "has {beside}, without the same_batch that the verdict goes by",
                {"beside": " and ".join(beside)},
            )
        if self.ratio is not None and self.order:
            raise PydanticCustomError("claim", "has both a ratio and order: true; keep the ratio, which says more")
        if self.fits and self.ratio is None:
            raise PydanticCustomError("claim", "has fits, and no ratio of the two batches to compare it with")
        if (self.fits and self.order) or (self.graph_breaks and (self.ratio or self.order)):
            raise PydanticCustomError("claim", "has a ratio or an order that nothing in it could confirm")
        return self


def mistakes_of_claims(claims: Mapping[str, Claim], comparisons: Mapping[str, Comparison]) -> list[str]:
    """What is wrong between the claims and the comparisons that they name, a sentence each without its full stop."""
    return [
        mistake
        for name, claim in claims.items()
        for key in (*PROTOCOLS, "fits", "graph_breaks")
        if (part := getattr(claim, key)) is not None
        for mistake in _mistakes(f"claims.{name}.{key}", key, part, comparisons)
    ]


def _mistakes(
    place: str, key: str, part: Versus | Fits | GraphBreaks, comparisons: Mapping[str, Comparison]
) -> Iterator[str]:
    if part.comparison not in comparisons:
        yield f"{place}.comparison = {part.comparison!r} is unknown: {nearest(part.comparison, comparisons)}"
        return
    variants, workload = comparisons[part.comparison].variants, comparisons[part.comparison].workload
    if workload in OPERATORS and not isinstance(part, Versus):
        asked = "batch" if isinstance(part, Fits) else "graph breaks"
        yield f"{place} asks for {asked} of {part.comparison}, whose workload {workload} is an operator: name training"
        return
    if workload not in OPERATORS and isinstance(part, Versus) and part.case is not None:
        why = f"only operators have shapes, and {part.comparison} is training"
        yield f"{place}.case = {part.case!r} is of no use: {why}"
    sides = {"variants": part.variants} if isinstance(part, Fits) else {"variant": [part.variant]}
    if not isinstance(part, GraphBreaks):
        sides["over"] = part.over
    named = [(side, name) for side, names in sides.items() for name in names]
    unknown = [(side, name) for side, name in named if name not in variants]
    for side, name in unknown:
        yield f"{place}.{side} = {name!r} is not one of {part.comparison}'s variants: {nearest(name, variants)}"
    if unknown:
        return
    twice = next((name for _, name in named if sum(other == name for _, other in named) > 1), None)
    if twice:
        yield f"{place} names {twice!r} twice"
    batches = {name: variants[name].batch for _, name in named}
    if key in ("same_batch", "both_compiled") and len(set(batches.values())) > 1:
        said = ", ".join(f"{name}: {batch}" for name, batch in batches.items())
        yield f"{place} compares different batches ({said}): name variants of one batch"
    eager = [name for _, name in named if variants[name].compile == "none"]
    if key in ("both_compiled", "graph_breaks") and eager:
        yield f"{place} names {eager[0]!r}, which is not compiled: name a variant that is"
