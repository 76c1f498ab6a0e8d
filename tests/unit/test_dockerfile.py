"""The image's pins agree with each other and with the code, and its last step finds what is missing. Builds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from halfstep.image.settings import BuildArgs
from halfstep.system.capabilities_apex import PROBES
from halfstep.system.libraries import APEX_AMP_FOLDER

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
LOAD_EXTENSIONS = DOCKER / "load_extensions.py"
LOCKS = {
    "train": ROOT / "requirements-train.lock",
    "build": DOCKER / "requirements-build.lock",
    "te": DOCKER / "requirements-te.lock",
}


def default(argument: str) -> str:
    """What an ARG of the Dockerfile is when nobody says otherwise."""
    (value,) = re.findall(rf"^ARG {argument}=(.*)$", DOCKERFILE, re.MULTILINE)
    return value.strip('"')


def pins(lock: str) -> dict[str, str]:
    """Package: version."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCKS[lock].read_text(encoding="utf-8"), re.MULTILINE))


def extensions() -> set[str]:
    """The extensions of Apex that the build's last step loads."""
    scope: dict[str, Any] = {"__name__": "load_extensions"}
    exec(LOAD_EXTENSIONS.read_text(encoding="utf-8"), scope)
    return set(scope["APEX"])


def test_nothing_is_done_by_another_user_than_root() -> None:
    """Where a checkout was made with umask 077, what is copied from it into the image can be read by root alone."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    users = [stage for stage in stages if re.search(r"^USER ", stage, re.MULTILINE)]
    assert [stage.partition(" AS ")[2].partition("\n")[0] for stage in users] == ["cpu", "cuda"]
    for stage in users:
        assert not re.search(r"^(RUN|COPY) ", stage.partition("\nUSER ")[2], re.MULTILINE), stage


def test_what_is_fetched_is_pinned_by_its_content() -> None:
    assert re.search(r"@sha256:[0-9a-f]{64}$", default("BASE_IMAGE"))
    for argument in ("APEX_COMMIT", "APEX_AMP_COMMIT"):
        assert re.fullmatch("[0-9a-f]{40}", default(argument)), "a full hash: a shortened one is no pin"
    for name, path in LOCKS.items():
        requirements = re.findall(r"^\S+==.*\\\n((?: +--hash=.*\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(requirements) == len(pins(name)) > 0, f"{path.name}: a requirement without a hash"


def test_two_locks_never_name_two_versions_of_one_package() -> None:
    train, build, te = map(pins, LOCKS)
    shared = build.keys() & train.keys()
    assert shared >= {"torch", "cuda-toolkit", "nvidia-cuda-runtime", "setuptools"}
    assert {name: build[name] for name in shared} == {name: train[name] for name in shared}
    assert not te.keys() & (train.keys() | build.keys()), "Transformer Engine's lock would change what is installed"


def test_the_compiler_is_of_the_cuda_that_torch_runs_with() -> None:
    train, build = pins("train"), pins("build")
    assert {build[f"nvidia-cuda-{part}"] for part in ("nvcc", "crt")} == {train["nvidia-cuda-nvrtc"]}
    assert build["nvidia-nvvm"] == build["nvidia-cuda-nvcc"]


def test_torch_is_pinned_in_one_place() -> None:
    """In pyproject.toml: all else is made of it, and a second pin could differ."""
    assert "torch" not in pins("te")
    written = [*DOCKER.glob("*.in"), DOCKER / "Dockerfile"]
    assert not [
        path.name for path in written if re.search(r"(?<![\w-])torch *[=<>~]=", path.read_text(encoding="utf-8"))
    ]


def test_transformer_engine_has_one_version() -> None:
    asked = dict(re.findall(r"^(transformer-engine\S*)==(\S+)", (DOCKER / "requirements-te.in").read_text(), re.M))
    assert set(asked) == {"transformer-engine", "transformer-engine-cu13", "transformer-engine-torch"}
    assert asked.items() <= pins("te").items()
    assert set(asked.values()) == {default("TE_VERSION")}


def test_the_build_sees_the_files_that_it_copies_and_no_others() -> None:
    copied = {
        source
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for source in sources.split()
    }
    everything, *let_in = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert everything == "*"
    assert copied and all((ROOT / source).is_file() for source in copied)
    assert {f"!{source.partition('/')[0]}" for source in copied} == set(let_in)


def test_the_image_holds_what_the_code_looks_for() -> None:
    assert f"ENV {APEX_AMP_FOLDER}=/opt/apex-amp\n" in DOCKERFILE
    wanted = {probe.library for probe in PROBES.values()} - {"apex.amp"}
    assert wanted and wanted <= extensions()


VERSION = "2.20.2"
C_MODULE = """
static struct PyModuleDef {name} = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&{name}); }}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled module of each name that the image must hold; they do nothing."""
    folder = tmp_path_factory.mktemp("compiled")
    names = ["transformer_engine_torch", *extensions()]
    source, library = folder / "modules.c", folder / "all"
    source.write_text("#include <Python.h>\n" + "".join(C_MODULE.format(name=name) for name in names))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", include, source, "-o", library], check=True)
    for name in names:
        (folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}").symlink_to(library)
    return folder


@pytest.fixture
def image(tmp_path: Path, compiled: Path) -> Path:
    """Site-packages as in the image, of modules that do nothing."""
    for module in compiled.glob("*.so"):
        (tmp_path / module.name).symlink_to(module)
    for name, text in {
        "torch": "",
        "apex": "",
        "transformer_engine": "",
        "transformer_engine/pytorch": "import transformer_engine_torch",
        "amp-folder/apex": "",
        "amp-folder/apex/amp": "",
    }.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(text)
    for name in ("transformer_engine", "transformer_engine_cu13", "transformer_engine_torch"):
        folder = tmp_path / f"{name}-{VERSION}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")
    return tmp_path


def load_extensions(image: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(image), "HALFSTEP_APEX_AMP": str(image / "amp-folder")}
    done = subprocess.run(
        [sys.executable, LOAD_EXTENSIONS, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def the(image: Path, name: str) -> Path:
    (found,) = image.glob(f"{name}.*.so")
    return found


def test_a_whole_image_passes(image: Path) -> None:
    assert load_extensions(image, VERSION) == (
        0,
        f"loaded: Transformer Engine {VERSION}, apex.amp and 12 extensions of Apex\n",
    )


@pytest.mark.parametrize("name", ["apex_C", "amp_C", "fused_layer_norm_cuda", "fused_weight_gradient_mlp_cuda"])
def test_a_missing_extension_fails_the_build(image: Path, name: str) -> None:
    the(image, name).unlink()
    expected = f"{name} does not load in this image: ModuleNotFoundError: No module named '{name}'\n"
    assert load_extensions(image, VERSION) == (1, expected)


def test_a_python_module_in_an_extensions_place_fails_the_build(image: Path) -> None:
    the(image, "amp_C").unlink()
    (image / "amp_C.py").write_text("")
    assert load_extensions(image, VERSION) == (1, f"amp_C is not a compiled module: {image / 'amp_C.py'}\n")


def test_an_extension_that_does_not_fit_fails_the_build(image: Path) -> None:
    the(image, "amp_C").unlink()
    (image / "amp_C.abi3.so").write_bytes(b"for another machine")
    code, said = load_extensions(image, VERSION)
    assert code == 1 and said.startswith("amp_C does not load in this image: ImportError: ")


def test_transformer_engine_without_its_extension_fails_the_build(image: Path) -> None:
    the(image, "transformer_engine_torch").unlink()
    code, said = load_extensions(image, VERSION)
    assert code == 1 and said.startswith("transformer_engine.pytorch does not load in this image: ModuleNotFoundError")


def test_another_transformer_engine_than_the_label_says_fails_the_build(image: Path) -> None:
    expected = f"transformer-engine is {VERSION} in this image, and the Dockerfile's TE_VERSION says 2.21.0\n"
    assert load_extensions(image, "2.21.0") == (1, expected)


def test_apex_amp_of_another_place_fails_the_build(image: Path) -> None:
    (image / "amp-folder" / "apex").rename(image / "amp-folder" / "renamed")
    (image / "apex" / "amp").mkdir()
    (image / "apex" / "amp" / "__init__.py").write_text("")
    code, said = load_extensions(image, VERSION)
    assert code == 1 and said.startswith(f"apex.amp comes from {image / 'apex' / '__init__.py'} and not from ")


def test_called_without_a_version_it_says_what_is_missing(image: Path) -> None:
    code, said = load_extensions(image)
    assert code == 1 and said.startswith("Give the version")


def test_the_study_knows_the_arguments() -> None:
    arguments = set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE))
    assert set(BuildArgs.model_fields) == arguments - {"TE_VERSION"}  # which has to be what the lock says
