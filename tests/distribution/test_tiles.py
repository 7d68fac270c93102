"""Windows that lie side by side are cut as the dimension that they tile is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lynx.ir.core import Value
from lynx.ir.ops.pooling import AveragePool
from lynx.ir.sharding import Mesh, Split
from lynx.ir.space import Window, space
from lynx.ir.tiles import split_of_dimension, split_of_positions
from lynx.ir.types import DType, TensorType
from tests.distribution.harness import capture, check, collectives

TWO = Mesh("mesh", (("tp", 2),))
THREE = Mesh("mesh", (("tp", 3),))
SQUARE = Mesh("mesh", (("dp", 2), ("tp", 2)))


def splits(size: int, length: int, split: Split, mesh: Mesh) -> tuple[Split | None, Split | None]:
    """Return how windows of a length are cut where a dimension is, and back."""
    window = Window("p", "k", length, size=size)
    count = -(-size // length)
    found = space("x -> x", {"p": count, "k": length, "x": size})
    windows = split_of_positions(found, window, split, mesh)
    back = None if windows is None else split_of_dimension(found, window, windows, mesh)
    return windows, back


@pytest.mark.parametrize(
    ("size", "length", "split", "mesh"),
    [
        (8, 4, Split(("tp",)), TWO),
        (8, 2, Split(("tp",)), TWO),
        (7, 4, Split(("tp",)), TWO),
        (8, 3, Split(("tp",)), THREE),
        (5, 2, Split(("tp",)), THREE),
        (8, 2, Split(("dp", "tp")), SQUARE),
        (10, 2, Split(("tp",), 2), TWO),
        (8, 1, Split(("tp",)), THREE),
    ],
)
def test_cuts_between_windows(size: int, length: int, split: Split, mesh: Mesh) -> None:
    windows, back = splits(size, length, split, mesh)
    assert windows == Split(split.axes)
    assert back == split


@pytest.mark.parametrize(
    ("size", "length", "split", "mesh"),
    [
        (10, 2, Split(("tp",)), TWO),  # five elements each: the third window lies on both
        (8, 4, Split(("tp",)), THREE),
        (8, 2, Split(("tp",), 1, (2,)), TWO),
        (8, 3, Split(("tp",)), TWO),
    ],
)
def test_cuts_through_windows(size: int, length: int, split: Split, mesh: Mesh) -> None:
    assert splits(size, length, split, mesh) == (None, None)


def test_windows_that_overlap_are_not_cut() -> None:
    x = Value(TensorType(DType.F32, (1, 1, 8)))
    found = AveragePool(x, (3,), (2,)).space()
    (*_, window) = found.operands[0]
    assert isinstance(window, Window)
    assert split_of_positions(found, window, Split(("tp",)), TWO) is None
    assert split_of_dimension(found, window, Split(("tp",)), TWO) is None


PATCHES = {
    "patches": lambda: nn.Conv2d(3, 5, 4, 4),
    "patches without bias": lambda: nn.Conv2d(3, 5, (4, 2), (4, 2), bias=False),
    "groups": lambda: nn.Conv2d(4, 8, 2, 2, groups=2),
    "means": lambda: nn.AvgPool2d(2),
    "pointwise": lambda: nn.Conv2d(3, 5, 1),
}


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize(("spec", "mesh"), [("_, _, tp, _", TWO), ("_, _, dp, tp", SQUARE),
                                            ("dp, _, _, tp", SQUARE)])  # fmt: skip
def test_images_are_cut_between_patches(name: str, spec: str, mesh: Mesh) -> None:
    """Gradients of weights are added up; nothing of the images goes round."""
    torch.manual_seed(0)
    layer = PATCHES[name]()
    channels = getattr(layer, "in_channels", 3)
    model = nn.Sequential(layer, nn.Tanh())
    one = capture(model, [torch.randn(2, channels, 16, 8, requires_grad=True)])
    laid = check(one, mesh, {"inputs.*": spec})
    assert laid.backward is not None
    assert collectives(laid.forward.graph) == {}
    assert all(kind.startswith("all_reduce") for kind in collectives(laid.backward.graph))


@pytest.mark.parametrize("spec", ["_, _, tp, _", "_, _, _, tp"])
@pytest.mark.parametrize("height", [10, 11])
def test_images_that_are_cut_through_patches_are_gathered(spec: str, height: int) -> None:
    torch.manual_seed(0)
    for layer in (nn.Conv2d(3, 5, 3, 3), nn.AvgPool2d(3), nn.Conv2d(3, 5, 3, padding=1)):
        one = capture(nn.Sequential(layer), [torch.randn(2, 3, height, 7, requires_grad=True)])
        laid = check(one, Mesh("mesh", (("tp", 4),)), {"inputs.*": spec})
        assert any("gather" in name for name in collectives(laid.forward.graph))
