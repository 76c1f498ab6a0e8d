"""What the study's models are made of: immutable, with known keys only, and types that say what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from halfstep.mistakes import nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # folders and figures are named after it
PERIODIC = re.compile(r"(.+)\1{19,}$")  # Snakemake's PeriodicityDetector


class OneOf:
    """A string out of a fixed set, checked with a sentence that names the choices."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def check(self, value: str) -> str:
        if value not in self.names:
            raise PydanticCustomError("choice", "is unknown: {hint}", {"hint": nearest(value, self.names)})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": self.names}


def no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "should be a number")
    return value


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise PydanticCustomError(
            "name",
            "is not a valid name: use letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100",
        )
    if PERIODIC.search(value):
        raise PydanticCustomError("name", "is not a valid name: its end repeats 20 times, which Snakemake refuses")
    return value


class ValidName:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_name, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{NAME.pattern}$"}


def _some_words(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("text", "is blank: it needs a word")
    return value


Name = Annotated[str, ValidName()]
Text = Annotated[str, Field(min_length=1), AfterValidator(_some_words)]
# the bounds first: behind a validator of ours they would not be in the JSON Schema
PositiveInt = Annotated[int, Field(gt=0), BeforeValidator(no_bool)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(no_bool)]


class Frozen(BaseModel):
    """Immutable, and every key must be a known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key", "{hint}", {"key": str(key), "hint": nearest(key, cls.model_fields)}
                    )
        return data
