"""What parity runs learn from: real structure, the same bits for every recipe, another hash for another source."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy
import pytest
import torch

from halfstep.errors import Unsupported
from halfstep.parity import glyphs, text
from halfstep.parity.learnable import Learnable, checksum
from halfstep.recipes.precision.precision import set_tf32

WORKLOADS = {"vit_huge": glyphs.VIT_HUGE, "lm": text.LM}
SCALES = ("full", "smoke")


def some(workload: Learnable, scale: str, n: int = 4, seed: int = 1, steps: int = 2) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [workload.batch(n, index, generator, **workload.sizes[scale]) for index in range(steps)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_batches_follow_from_the_seed_and_are_all_different(name: str, scale: str) -> None:
    workload = WORKLOADS[name]
    once, again = some(workload, scale), some(workload, scale)
    for (inputs, targets), (same_inputs, same_targets) in zip(once, again, strict=True):
        assert torch.equal(inputs, same_inputs) and torch.equal(targets, same_targets)
    sums = [int(checksum(*batch)) for batch in (*once, *some(workload, scale, seed=2))]
    assert len(set(sums)) == len(sums)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_recipes_switches_change_no_bit(name: str, keep_switches: None) -> None:
    set_tf32(False)
    strict = [int(checksum(*batch)) for batch in some(WORKLOADS[name], "smoke")]
    set_tf32(True)
    assert [int(checksum(*batch)) for batch in some(WORKLOADS[name], "smoke")] == strict


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_batch_suits_the_model(name: str) -> None:
    workload = WORKLOADS[name]
    size = workload.sizes["smoke"]
    with torch.device("cpu"):
        model = workload.build(torch.nn.LayerNorm, **size)
    loss = workload.loss(model, *some(workload, "smoke")[0])
    classes = size["num_classes"] if name == "vit_huge" else size["vocabulary"]
    assert loss.item() == pytest.approx(math.log(classes), rel=0.15)


def test_full_size_is_the_timed_models_width() -> None:
    from halfstep.workloads import lm, vit

    assert text.LM.sizes["full"] == lm.LM.sizes["full"]
    ours, theirs = glyphs.VIT_HUGE.sizes["full"], vit.VIT_HUGE.sizes["full"]
    assert {**theirs, "num_classes": 32, "depth": 8} == ours


# the checksum


def test_the_checksum_tells_places_and_bits_apart() -> None:
    images, labels = torch.randn(2, 3, 4, 4), torch.tensor([3, 5])
    whole = int(checksum(images, labels))
    assert int(checksum(images.clone(), labels.clone())) == whole
    changed = images.clone()
    changed[1, 2, 3, 3] = torch.nextafter(changed[1, 2, 3, 3], torch.tensor(9.0))
    assert int(checksum(changed, labels)) != whole
    assert int(checksum(images.flip(0), labels)) != whole
    assert int(checksum(images, labels.flip(0))) != whole


# images


def test_all_characters_are_there_and_no_two_look_alike() -> None:
    cells = glyphs.atlas().numpy()
    assert cells.shape == (32, 4, 64, 64)
    assert len(set(glyphs.CHARACTERS)) == 32
    prints = {cell.tobytes() for row in cells for cell in row}
    assert len(prints) == 32 * 4
    # a box for a missing character would be the same in all places
    assert min(numpy.count_nonzero(cell) for row in cells for cell in row) > 100


def test_the_atlas_has_a_hash() -> None:
    assert glyphs.source() == hashlib.sha256(glyphs.atlas().numpy().tobytes()).hexdigest()


def images_of(n: int, by_lot: float, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setattr(glyphs, "BY_LOT", by_lot)
    return glyphs.batch(n, 0, torch.Generator().manual_seed(3), **glyphs.VIT_HUGE.sizes["smoke"])


def test_an_image_shows_its_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brighter where the mean print of its own character has ink than where that of any other has."""
    size = glyphs.VIT_HUGE.sizes["smoke"]
    images, labels = images_of(64, 0.0, monkeypatch)
    grey = images.mean(1)
    grey = (grey - grey.mean((1, 2), keepdim=True)).flatten(1)
    means = glyphs.atlas().float().mean(1)[: size["num_classes"]].flatten(1)
    means = means - means.mean(1, keepdim=True)
    scores = grey @ (means / means.norm(dim=1, keepdim=True)).T
    hits = (scores.argmax(1) == labels).float().mean().item()
    assert hits > 0.6  # by chance 1/16; turned and shifted as they are


def test_a_share_of_the_labels_is_drawn_by_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    share = glyphs.BY_LOT
    images, characters = images_of(2000, 0.0, monkeypatch)
    same_images, labels = images_of(2000, share, monkeypatch)
    assert torch.equal(images, same_images)
    others = (labels != characters).double().mean().item()
    assert others == pytest.approx(share * 15 / 16, abs=0.03)  # 3 standard deviations; a lot may be the right one
    assert len(set(labels[labels != characters].tolist())) == 16


# text


def test_the_text_is_the_librarys() -> None:
    found = text.text()
    assert b"ArgumentParser" in found and len(found) > 2_000_000
    assert text.source() == hashlib.sha256(found).hexdigest()
    tokens, targets = text.batch(3, 0, torch.Generator().manual_seed(0), context=64)
    assert tokens.shape == targets.shape == (3, 64)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for row in tokens:
        assert bytes(row.tolist()) in found


def test_a_python_without_its_sources_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: "/nowhere")
    text.text.cache_clear()
    try:
        with pytest.raises(Unsupported, match=r"/nowhere/argparse\.py cannot be read .*take a Python"):
            text.text()
    finally:
        text.text.cache_clear()
