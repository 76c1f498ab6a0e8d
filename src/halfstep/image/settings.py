"""`container:` of the study: where the image comes from."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from halfstep.keys import Frozen, PositiveInt, Text

BY_DIGEST = r"docker://[^\s@]+@sha256:[0-9a-f]{64}"


class ByDigest:
    """An image's name with its digest. A tag may be another image tomorrow, and no record could say which it was."""

    def check(self, value: str) -> str:
        if not re.fullmatch(BY_DIGEST, value):
            raise PydanticCustomError(
                "digest", "does not name an image by its digest, as docker://REGISTRY/NAME@sha256:… (64 digits) does"
            )
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{BY_DIGEST}$"}


class BuildArgs(Frozen):
    """Arguments of docker/Dockerfile; one that is left out has the default that it has there."""

    BASE_IMAGE: Text | None = Field(None, description="the distribution that the image is built on: a Debian 12")
    APEX_REPOSITORY: Text | None = Field(None, description="Git repository of NVIDIA Apex")
    APEX_COMMIT: Text | None = Field(None, description="its commit that is built with C++ and CUDA extensions")
    APEX_AMP_COMMIT: Text | None = Field(None, description="its commit that `apex.amp` is taken from")
    CUDA_ARCHS: Text | None = Field(None, description="compute capabilities that kernels are compiled for: `8.9;9.0`")
    BUILD_JOBS: PositiveInt | None = Field(
        None, description="compilers at once; as many as there are cores if left out"
    )


class Container(Frozen):
    """What `snakemake --use-singularity` runs in."""

    builder: Literal["auto", "docker", "podman", "buildah"] = Field(
        "auto", description="what builds the image; `auto`: the first of the three that is there and works"
    )
    image: Annotated[str, ByDigest()] | None = Field(
        None, description="a published image to fetch instead: `docker://REGISTRY/NAME@sha256:…`"
    )
    build_args: BuildArgs = Field(BuildArgs(), description="arguments of the build")

    @model_validator(mode="after")
    def _built_or_fetched(self) -> Self:
        # not by what was written: a study that is read back has every key
        idle = [key for key in ("builder", "build_args") if getattr(self, key) != type(self).model_fields[key].default]
        if self.image is not None and idle:
            raise PydanticCustomError(
                "meaning",
                "sets image, which is fetched, and {idle}, which means nothing without a build: leave one of them out",
                {"idle": " and ".join(idle)},
            )
        return self
