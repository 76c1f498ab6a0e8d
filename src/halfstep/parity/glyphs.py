"""Images of characters for the Vision Transformer: which of 32 is it?

Rendered once from the DejaVu fonts that matplotlib brings along, then placed by the run's generator: print, size, turn,
place, colours, a shaded background and noise always differ, so that no two images are alike.

Some images have another label than their own. What is learnt is then which label is how likely, and the loss ends at
that distribution's entropy, as a language's does, instead of near 0: there each seed would end at another fraction of
nothing, and no band around them could tell a recipe that trains worse.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import matplotlib
import numpy
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional

from halfstep.parity.learnable import Learnable
from halfstep.workloads import vit
from halfstep.workloads.workload import Batch

CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ2345679&"
"""32 classes, which divides by 16: the head can be converted to FP8 too. A smoke run takes the first 16."""
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")
BY_LOT = 0.25
"""share of the labels that are drawn by lot from all classes"""
CELL, POINTS = 64, 48  # pixels of a rendered character, and the size of its letters


@cache
def atlas() -> torch.Tensor:
    """[character, font, CELL, CELL] uint8: how much of each pixel is ink."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    # Pillow's own layout: the other is taken only where the system has a library for it, and places letters differently
    layout = ImageFont.Layout.BASIC
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), POINTS, layout_engine=layout) for name in FONTS]
    cells = []
    for character in CHARACTERS:
        for font in fonts:
            cell = Image.new("L", (CELL, CELL))
            ImageDraw.Draw(cell).text((CELL / 2, CELL / 2), character, fill=255, font=font, anchor="mm")
            cells.append(numpy.asarray(cell))
    return torch.from_numpy(numpy.stack(cells)).view(len(CHARACTERS), len(FONTS), CELL, CELL)


@cache
def ink(device: torch.device) -> torch.Tensor:
    """The atlas on a device, from 0 to 1."""
    return atlas().to(device).float() / 255


def source() -> str:
    """SHA-256 of the rendered characters: they change with the fonts, with Pillow and with FreeType."""
    return hashlib.sha256(atlas().numpy().tobytes()).hexdigest()


def batch(n: int, index: int, generator: torch.Generator, *, img_size: int, num_classes: int, **_: object) -> Batch:
    """Images [n, 3, img_size, img_size] fp32 around 0, and their labels [n] int64; the next ones each time.

    An image shows one character in cells of CELL pixels, each time in another print. Its label is the character's
    number, but for a share BY_LOT of the images.
    """
    device, side = generator.device, img_size // CELL
    cells = side * side

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, device=device)

    characters, lots = torch.randint(num_classes, (2, n), generator=generator, device=device)
    labels = torch.where(uniform(0, 1, n) < BY_LOT, lots, characters)
    fonts = torch.randint(len(FONTS), (n, cells), generator=generator, device=device)
    # where each pixel lies in its print; not by affine_grid, whose matrix product a recipe may round to TF32
    size, turn = uniform(0.85, 1.05, n * cells, 1, 1), uniform(-0.15, 0.15, n * cells, 1, 1)
    cos, sin = torch.cos(turn) / size, torch.sin(turn) / size
    axis = torch.linspace(-1, 1, CELL, device=device)
    x = axis.view(1, 1, -1) + uniform(-0.1, 0.1, n * cells, 1, 1)
    y = axis.view(1, -1, 1) + uniform(-0.1, 0.1, n * cells, 1, 1)
    places = torch.stack([cos * x + sin * y, cos * y - sin * x], dim=-1)
    prints = ink(device)[characters.unsqueeze(1), fonts].view(n * cells, 1, CELL, CELL)
    mask = functional.grid_sample(prints, places, align_corners=False)
    mask = mask.view(n, side, side, CELL, CELL).transpose(2, 3).reshape(n, 1, img_size, img_size)
    across = torch.linspace(-1, 1, img_size, device=device)
    shade = uniform(-0.3, 0.3, n, 3, 1, 1) * across + uniform(-0.3, 0.3, n, 3, 1, 1) * across.view(-1, 1)
    ground, figure = uniform(-0.6, 0.2, n, 3, 1, 1) + shade, uniform(1.2, 2, n, 3, 1, 1)
    noise = 0.3 * torch.randn(n, 3, img_size, img_size, generator=generator, device=device)
    return torch.lerp(ground, figure, mask) + noise, labels


VIT_HUGE = Learnable(
    unit="images",
    sizes={
        "full": {"img_size": 256, "embed_dim": 1280, "num_classes": 32, "depth": 8, "num_heads": 16},
        "smoke": {"img_size": 64, "embed_dim": 64, "num_classes": 16, "depth": 2, "num_heads": 2},
    },
    build=vit.build,
    blocks=vit.blocks,
    batch=batch,
    loss=vit.loss,
    samples=vit.samples,
    source=source,
)
