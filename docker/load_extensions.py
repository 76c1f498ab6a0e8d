"""Load every compiled module that an image must hold, and end with a sentence when one is missing.

Without its extensions Apex installs and imports all the same, so only loading each by name tells. The last step of
the build runs this; by hand: `python3 /opt/load_extensions.py VERSION`, with Transformer Engine's version.
No GPU and no driver is needed.
"""

import importlib
import importlib.metadata
import os
import sys
from importlib.machinery import ExtensionFileLoader

# what setup.py of Apex builds for APEX_CPP_EXT and APEX_CUDA_EXT
APEX = (
    "apex_C",
    "amp_C",
    "syncbn",
    "fused_layer_norm_cuda",
    "mlp_cuda",
    "fused_dense_cuda",
    "scaled_upper_triang_masked_softmax_cuda",
    "generic_scaled_masked_softmax_cuda",
    "scaled_masked_softmax_cuda",
    "scaled_softmax_cuda",
    "fused_rotary_positional_embedding",
    "fused_weight_gradient_mlp_cuda",
)


def main(te_version: str) -> None:
    """Load all of them; `te_version` is the version that Transformer Engine must have."""
    load("torch")  # first: the others find its libraries through it
    load("transformer_engine.pytorch")
    need_compiled("transformer_engine_torch")  # loaded by the line above, under this name
    for distribution in ("transformer-engine", "transformer-engine-cu13", "transformer-engine-torch"):
        if (found := importlib.metadata.version(distribution)) != te_version:
            sys.exit(f"{distribution} is {found} in this image, and the Dockerfile's TE_VERSION says {te_version}")
    for name in APEX:
        load(name)
        need_compiled(name)
    # last, since its folder brings an `apex` of its own
    folder = os.environ["HALFSTEP_APEX_AMP"]
    sys.path.insert(0, folder)
    load("apex.amp")
    if not str(sys.modules["apex"].__file__).startswith(f"{folder}/"):
        sys.exit(f"apex.amp comes from {sys.modules['apex'].__file__} and not from {folder}")
    print(f"loaded: Transformer Engine {te_version}, apex.amp and {len(APEX)} extensions of Apex")


def load(name: str) -> None:
    """Import a module, or end with what is wrong."""
    try:
        importlib.import_module(name)
    except Exception as error:  # what an import can raise is anything
        sys.exit(f"{name} does not load in this image: {type(error).__name__}: {error}")


def need_compiled(name: str) -> None:
    """End where a loaded module is not a compiled one."""
    spec = sys.modules[name].__spec__
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        sys.exit(f"{name} is not a compiled module: {spec and spec.origin}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the version that Transformer Engine must have: load_extensions.py VERSION")
    main(sys.argv[1])
