"""Searches and running sums along a dimension that is cut, against those of one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lynx.ir.sharding import Mesh
from tests.distribution.harness import OnMesh, capture, check, collectives, lay_out
from tests.distribution.mutations import mutations, promising, rejection

FOUR = Mesh("mesh", (("tp", 4),))
SQUARE = Mesh("mesh", (("dp", 2), ("tp", 2)))
SIZES = (3, 9, 32)


class Of(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def on_mesh(
    function: Callable[..., object], x: torch.Tensor, spec: str = "_, tp", mesh: Mesh = FOUR
) -> OnMesh:
    """Compare a function on a mesh with that on one device, gradients included."""
    return check(capture(Of(function), [x], train=x.requires_grad), mesh, {"inputs.x": spec})


def with_ties(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return few different numbers, so that all are there several times."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def special(*shape: int) -> torch.Tensor:
    """Return rows with infinities, zeros of both signs and NaN."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.tensor([0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan])
    chosen = torch.randint(0, 6, shape, generator=generator)
    chosen[0] %= 5
    chosen[1] = chosen[1] % 2 + 3
    return numbers[chosen]


def rows(size: int) -> list[torch.Tensor]:
    """Return matrices of several types, with and without equal elements."""
    few = [with_ties(6, size, dtype=dtype) for dtype in (torch.int32, torch.bfloat16)]
    return [torch.randn(6, size), with_ties(6, size), special(6, size), *few]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equal_elements_is_found(name: str, size: int, keepdim: bool) -> None:
    for x in rows(size):
        laid = on_mesh(lambda x: getattr(x, name)(-1, keepdim), x)
        assert collectives(laid.forward.graph) == {"all_reduce tp": 2}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_with_their_places(name: str, size: int) -> None:
    for x in rows(size):
        laid = on_mesh(lambda x: tuple(getattr(x, name)(-1)), x)
        assert collectives(laid.forward.graph) == {"all_reduce tp": 2}
    on_mesh(lambda x: tuple(getattr(x > 0, name)(-1)), with_ties(6, size))


def test_the_place_in_a_vector() -> None:
    assert collectives(on_mesh(torch.argmax, torch.randn(9), "tp").forward.graph) == {
        "all_reduce tp": 2
    }


def test_the_place_in_a_whole_matrix_is_found_by_each_device() -> None:
    laid = on_mesh(torch.argmax, torch.randn(6, 8))
    assert collectives(laid.forward.graph) == {"all_gather tp": 1}


def test_tokens_that_score_highest() -> None:
    """Of a vocabulary that is cut, as in decoding; the batch is cut as well."""
    laid = on_mesh(lambda x: x.softmax(-1).argmax(-1), torch.randn(6, 33), "dp, tp", SQUARE)
    assert "all_gather tp" not in collectives(laid.forward.graph)


@pytest.mark.parametrize("size", SIZES)
def test_running_sums(size: int) -> None:
    """Only the sums of pieces go round."""
    for x in (torch.randn(6, size), with_ties(6, size, dtype=torch.int32)):
        laid = on_mesh(lambda x: x.cumsum(-1), x)
        assert collectives(laid.forward.graph) == {"all_gather tp": 1}
        assert gathered(laid) == 6 * min(size, 4)


def test_running_sums_of_what_is_not_finite() -> None:
    on_mesh(lambda x: x.cumsum(-1), special(6, 32))


def test_running_sums_in_low_precision_are_rounded_once() -> None:
    one = capture(Of(lambda x: x.cumsum(-1)), [torch.rand(6, 64).bfloat16()], train=False)
    check(one, FOUR, {"inputs.x": "_, tp"}, tolerance=2**-8)


def test_gradients_of_running_sums() -> None:
    x = torch.randn(4, 32, 3, requires_grad=True)
    on_mesh(lambda x: (x * x).cumsum(1).sin(), x, "dp, tp, _", SQUARE)


def test_running_sums_along_what_two_axes_cut() -> None:
    """Of 35 rows all devices but the last have nine; of 33 the first has nine, and no other."""
    laid = on_mesh(lambda x: x.cumsum(0), torch.randn(35, 3), "(dp, tp), _", SQUARE)
    assert gathered(laid) == 4 * 3
    laid = on_mesh(lambda x: x.cumsum(0), torch.randn(33, 3), "(dp, tp), _", SQUARE)
    assert gathered(laid) == 33 * 3
    assert "cumsum_pieces" not in {op.name for op in laid.forward.graph.ops}


def gathered(laid: OnMesh) -> int:
    """Return how many elements the gathers of forward put together."""
    found = [op.out for op in laid.forward.graph.ops if op.name == "all_gather"]
    return sum(torch.Size([int(size) for size in value.shape]).numel() for value in found)


def test_places_that_one_of_two_searches_on_a_line_gives() -> None:
    """Neither runs in pieces: nothing but their operands tells them apart."""

    def search(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * sign).topk(2, -1)[place] for place, sign in enumerate((1, -1))]

    laid = on_mesh(search, torch.randn(3, 32))
    assert "topk_pieces" not in {op.name for op in laid.forward.graph.ops}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("size", [9, 13])
def test_the_largest_elements(size: int, largest: bool) -> None:
    """Each device sends as many as are wanted."""
    for x in rows(size):
        laid = on_mesh(lambda x: x.topk(1, -1, largest).values, x)
        assert collectives(laid.forward.graph) == {"all_gather tp": 1}
        assert gathered(laid) == 6 * 4


@pytest.mark.parametrize("k", [2, 5])
def test_more_of_the_largest_elements(k: int) -> None:
    for x in rows(40):
        laid = on_mesh(lambda x: x.topk(k, -1).values, x)
        assert gathered(laid) == 6 * 4 * k
        on_mesh(lambda x: x.topk(k, -1, largest=False).values, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tuple(x.topk(2, -1)),  # the places of equal elements are torch's choice
        lambda x: x.topk(8, -1).values,  # as many as a device has
        lambda x: x.topk(2, -1, sorted=False).values,
        lambda x: tuple(x.sort(-1)),
        lambda x: x.cumprod(-1),
    ],
)
def test_what_is_gathered(function: Callable[..., object]) -> None:
    laid = on_mesh(function, with_ties(3, 32))
    assert gathered(laid) >= 3 * 32


@pytest.mark.parametrize(
    "function", [lambda x: x.argmax(-1), lambda x: x.cumsum(-1), lambda x: x.topk(2, -1).values]
)
def test_no_collective_can_be_left_out(function: Callable[..., object]) -> None:
    laid = lay_out(capture(Of(function), [torch.randn(3, 32)], train=False), FOUR, {"*": "_, tp"})
    promised = promising(laid.forward.graph)
    found = list(mutations(promised))
    assert found
    assert [str(one) for one in found if rejection(promised, one) is None] == []


@pytest.mark.parametrize("place", [0, 5, -1])
@pytest.mark.parametrize("mesh", [FOUR, Mesh("mesh", (("tp", 3),))])
def test_one_row_is_read_where_it_is(mesh: Mesh, place: int) -> None:
    """What moves is the row, forward and backward: not the sequence."""
    x = torch.randn(2, 9, 5, requires_grad=True)
    laid = on_mesh(lambda x: x.exp()[:, place] * 2, x, "_, tp, _", mesh)
    assert collectives(laid.forward.graph) == {"all_reduce tp": 1}
    assert laid.backward is not None
    assert collectives(laid.backward.graph) == {}


def test_rows_of_integers_and_in_two_ways() -> None:
    x = torch.arange(90).reshape(2, 9, 5)
    laid = on_mesh(lambda x: (x + 1)[:, 3], x, "_, tp, _")
    assert collectives(laid.forward.graph) == {"all_reduce tp": 1}
    laid = on_mesh(lambda x: x.exp()[:, 3], torch.randn(4, 9, 5), "dp, tp, _", SQUARE)
    assert collectives(laid.forward.graph) == {"all_reduce tp": 1}


def test_many_rows_and_truth_values_are_gathered() -> None:
    """Half of the rows or more are gathered once; truth values are not added up."""
    laid = on_mesh(lambda x: tuple((x * 2).unbind(1)), torch.randn(2, 9, 5), "_, tp, _")
    assert collectives(laid.forward.graph) == {"all_gather tp": 1}
    laid = on_mesh(lambda x: (x > 0)[:, 3], torch.randn(2, 9, 5), "_, tp, _")
    assert collectives(laid.forward.graph) == {"all_gather tp": 1}
