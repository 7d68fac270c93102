"""With symbolic sizes, one imported graph is right for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention

from tests.importer.functions import check, numbers

aten = torch.ops.aten

Case = tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]


def floats(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(numbers(*shape, seed=n) for n, shape in enumerate(shapes))


def places(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


def same(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = aten.max_pool2d_with_indices(x, [3, 2], [2, 2], [1, 1])
    back = aten.max_pool2d_with_indices_backward(
        values, x, [3, 2], [2, 2], [1, 1], [1, 1], False, indices
    )
    return values, back


def images(*shapes: tuple[int, ...]) -> list[tuple[torch.Tensor, ...]]:
    return [floats(shape) for shape in shapes]


def gathering(*counts: int) -> list[tuple[torch.Tensor, ...]]:
    return [(*floats((n + 1, 7), (n + 1, n)), places(7, n + 1, n)) for n in counts]


def slices(*counts: int) -> list[tuple[torch.Tensor, ...]]:
    return [(*floats((3, 9), (3, n)), places(9, n)) for n in counts]


CASES: dict[str, Case] = {
    "linear": (F.linear, [floats((2, 4, 5), (3, 5), (3,)), floats((3, 6, 7), (2, 7), (2,))]),
    "batch": (torch.bmm, [floats((2, 4, 5), (2, 5, 3)), floats((5, 3, 2), (5, 2, 6))]),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        [floats((2, 3, 9, 8), (4, 3, 2, 2), (4,)), floats((3, 2, 12, 7), (5, 2, 4, 3), (5,))],
    ),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        [floats((2, 3, 5, 6), (3, 4, 3, 3)), floats((4, 2, 3, 7), (2, 3, 4, 4))],
    ),
    "max_pool": (same, images((2, 3, 9, 8), (4, 2, 12, 13))),
    "max_pool_up": (
        lambda x: F.max_pool2d(x, 2, ceil_mode=True), images((2, 3, 9, 8), (3, 4, 11, 12))
    ),
    "average_pool": (lambda x: F.avg_pool2d(x, 2), images((2, 3, 9, 8), (3, 4, 11, 12))),
    "adaptive": (
        lambda x: F.adaptive_avg_pool2d(x, 2), images((2, 3, 9, 8), (3, 4, 11, 12))
    ),
    "embedding": (
        lambda w, g, i: (F.embedding(i, w),
                         aten.embedding_dense_backward(g, i, w.shape[0], -1, False)),
        [(*floats((9, 4), (2, 3, 4)), places(9, 2, 3)),
         (*floats((6, 5), (4, 7, 5)), places(6, 4, 7))],
    ),
    "gather": (lambda x, s, i: x.gather(1, i), gathering(2, 4)),
    "scatter": (lambda x, s, i: x.scatter(1, i, s), gathering(2, 4)),
    "scatter_add": (lambda x, s, i: x.scatter_add(1, i, s), gathering(2, 4)),
    "index_select": (lambda x, s, i: x.index_select(1, i), slices(2, 5)),
    "index_add": (lambda x, s, i: x.index_add(1, i, s), slices(2, 5)),
    "index": (lambda x, s, i: x[:, i], slices(2, 5)),
    "index_put": (lambda x, s, i: aten.index_put(x, [None, i], s, True), slices(2, 5)),
    "topk": (lambda x, s: x.topk(s.shape[0]), [floats((2, 5), (3, 1)), floats((4, 6), (5, 1))]),
    "sort": (lambda x: x.sort(), images((2, 5), (3, 7))),
    "loss": (
        F.cross_entropy,
        [(*floats((4, 5)), places(5, 4)), (*floats((6, 3)), places(3, 6))],
    ),
    "pair": (F.mse_loss, [floats((4, 5), (4, 5)), floats((6, 3), (6, 3))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_other_sizes(name: str) -> None:
    function, (traced, *others) = CASES[name]
    check(function, *traced, dynamic=True, others=tuple(others))
