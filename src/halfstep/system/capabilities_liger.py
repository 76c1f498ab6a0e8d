"""Liger's Triton kernels."""

from __future__ import annotations

from halfstep.system.libraries import load
from halfstep.system.probing import Probe


def norms() -> str:
    """Liger's LayerNorm and RMSNorm, forward and backward, against float64."""
    from halfstep.system.checks import prove_norm

    liger = load("liger_kernel.transformers")
    layernorm = prove_norm(lambda width, eps: liger.LigerLayerNorm(width, eps=eps, bias=True).cuda(), "_layer_norm_")
    rmsnorm = prove_norm(lambda width, eps: liger.LigerRMSNorm(width, eps=eps).cuda(), "_rms_norm_")
    return f"LayerNorm: {layernorm}; RMSNorm: {rmsnorm}"


PROBES = {"liger_norms": Probe(norms, "liger", library="liger_kernel.transformers")}
