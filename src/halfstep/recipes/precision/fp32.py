"""Strict fp32: no TF32 anywhere."""

from halfstep.recipes.precision.precision import Precision


class Fp32(Precision):
    pass
