"""What a study may need of a machine, each proved by doing it and by comparing the result with an exact one.

The doctor runs the probes in processes of their own (probes.py), since what they find out may crash or hang.
"""

from __future__ import annotations

from halfstep.system import (
    capabilities_apex,
    capabilities_liger,
    capabilities_te,
    capabilities_torch,
    capabilities_torchao,
)
from halfstep.system.probing import Probe

PROBES: dict[str, Probe] = {
    **capabilities_torch.PROBES,
    **capabilities_apex.PROBES,
    **capabilities_te.PROBES,
    **capabilities_torchao.PROBES,
    **capabilities_liger.PROBES,
}
CAPABILITIES = tuple(PROBES)  # the names that recipes require
