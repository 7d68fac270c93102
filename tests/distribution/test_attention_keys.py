"""Attention whose keys are cut: what is communicated, and that it is that of one device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from lynx.ir.sharding import Mesh
from tests.distribution.harness import Captured, OnMesh, capture, check, collectives, lay_out
from tests.distribution.mutations import mutations, promising, rejection

FOUR = Mesh("mesh", (("tp", 4),))
SQUARE = Mesh("mesh", (("dp", 2), ("tp", 2)))
KEYS = {"inputs.[kv]": "_, _, tp, _"}
LEAST = torch.finfo(torch.float32).min


class Attend(nn.Module):
    """Attention by torch's own function, with options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, **self.options)


@functools.cache
def captured(
    queries: int, keys: int, *, heads: int = 4, shared: int = 4, mask: str = "", train: bool = True,
    dtype: torch.dtype = torch.float32, **options: Any,
) -> Captured:  # fmt: skip
    torch.manual_seed(0)
    if shared != heads:
        options["enable_gqa"] = True
    shapes = ((2, heads, queries, 8), (2, shared, keys, 8), (2, shared, keys, 6))
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=train) for shape in shapes]
    if mask:
        inputs.append(masks(mask, queries, keys))
    return capture(Attend(**options), inputs, train=train)


def masks(kind: str, queries: int, keys: int) -> torch.Tensor:
    """Return a mask in which some rows see no key of some devices, and the first none at all."""
    seen = torch.arange(keys) < torch.arange(queries).unsqueeze(1)
    if kind == "bool":
        return seen
    if kind == "least":
        return torch.where(seen, 0.0, LEAST)
    if kind == "infinite":
        return torch.where(seen, 0.0, -torch.inf)
    return torch.randn(2, 1, queries, keys).requires_grad_()


def communicated(laid: OnMesh) -> tuple[dict[str, int], dict[str, int]]:
    assert laid.backward is not None
    return collectives(laid.forward.graph), collectives(laid.backward.graph)


@pytest.mark.parametrize("shared", [4, 2, 1])
def test_one_query_and_a_long_cache(shared: int) -> None:
    """Three small reductions: of the largest scores, of the sums of powers, and of outputs."""
    one = captured(1, 64, shared=shared, train=False)
    laid = check(one, FOUR, KEYS)
    assert collectives(laid.forward.graph) == {"all_reduce tp": 3}


def test_gradients() -> None:
    """Those of keys and values stay where they are; that of queries is added up."""
    forward, backward = communicated(check(captured(2, 64), FOUR, KEYS))
    assert forward == {"all_reduce tp": 3}
    assert backward == {"all_reduce tp": 3}


def test_keys_are_gathered_where_that_moves_less() -> None:
    """There are as many queries as keys, which are shared by four heads each."""
    one = captured(16, 16, shared=1)
    laid = lay_out(one, FOUR, {"inputs.[qkv]": "_, _, tp, _"})
    forward, backward = communicated(laid)
    assert forward == {"all_gather tp": 2}
    assert set(backward) == {"all_gather tp", "reduce_scatter tp"}


def test_short_queries_that_the_same_axis_cuts_are_gathered() -> None:
    one = captured(4, 128)
    forward, _ = communicated(check(one, FOUR, {"inputs.[qkv]": "_, _, tp, _"}))
    assert forward == {"all_gather tp": 1, "all_reduce tp": 3}


def test_heads_and_keys() -> None:
    """Each device has some of the keys of some of the heads."""
    plan = {"inputs.q": "_, dp, _, _", "inputs.[kv]": "_, dp, tp, _"}
    forward, backward = communicated(check(captured(2, 64, shared=2), SQUARE, plan))
    assert forward == {"all_reduce tp": 3}
    assert backward == {"all_reduce tp": 3}


def test_queries_and_keys() -> None:
    plan = {"inputs.q": "_, _, dp, _", "inputs.[kv]": "_, _, tp, _"}
    forward, backward = communicated(check(captured(4, 64), SQUARE, plan))
    assert forward == {"all_reduce tp": 3}
    assert backward["all_reduce tp"] == 3


def test_keys_that_two_axes_cut() -> None:
    plan = {"inputs.[kv]": "_, _, (dp, tp), _"}
    forward, _ = communicated(check(captured(2, 64), SQUARE, plan))
    assert forward == {"all_reduce dp+tp": 3}


@pytest.mark.parametrize("keys", [3, 5, 9, 11])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_uneven_and_empty_parts(keys: int, devices: int) -> None:
    mesh = Mesh("mesh", (("tp", devices),))
    laid = check(captured(1, keys), mesh, KEYS)
    assert "all_gather tp" not in collectives(laid.forward.graph)


@pytest.mark.parametrize("mask", ["bool", "least", "infinite", "bias"])
@pytest.mark.parametrize("keys", [8, 11])
def test_masks(mask: str, keys: int) -> None:
    """A row that sees nothing at all is NaN, or zeros, or the mean: what it is on one device."""
    laid = check(captured(4, keys, mask=mask), FOUR, KEYS | {"inputs.mask": "..., tp"})
    assert "all_gather tp" not in collectives(laid.forward.graph)


@pytest.mark.parametrize("mask", ["bool", "least"])
def test_a_mask_that_each_device_has_whole(mask: str) -> None:
    forward, _ = communicated(check(captured(4, 32, mask=mask), FOUR, KEYS))
    assert forward == {"all_reduce tp": 3}


@pytest.mark.parametrize("queries", [3, 8])
def test_causal_attention_counts_from_the_place_of_the_part(queries: int) -> None:
    plan = {"inputs.q": "_, _, dp, _", "inputs.[kv]": "_, _, tp, _"}
    forward, _ = communicated(check(captured(queries, 16, is_causal=True), SQUARE, plan))
    assert forward == {"all_reduce tp": 3}


def test_dropout_is_that_of_one_device() -> None:
    forward, _ = communicated(check(captured(2, 32, dropout_p=0.5), FOUR, KEYS))
    assert forward == {"all_reduce tp": 3}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_element_types(dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype is torch.float64 else 8 * 2**-8
    laid = check(captured(2, 33, dtype=dtype, shared=2), FOUR, KEYS, tolerance)
    assert collectives(laid.forward.graph) == {"all_reduce tp": 3}


class Sinks(nn.Module):
    """Attention one of whose logits belongs to no key, as GPT-OSS has it."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.randn(4))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(2, 3) * 0.3
        sink = self.sink.reshape(1, -1, 1, 1).expand(*q.shape[:3], 1)
        every = torch.cat([scores, sink], -1)
        return torch.softmax(every, -1)[..., :-1] @ v


def test_sinks_are_counted_once() -> None:
    torch.manual_seed(0)
    shapes = ((2, 4, 2, 8), (2, 4, 33, 8), (2, 4, 33, 6))
    one = capture(Sinks(), [torch.randn(shape, requires_grad=True) for shape in shapes])
    forward, backward = communicated(check(one, FOUR, KEYS))
    assert forward == {"all_reduce tp": 3}
    assert backward == {"all_reduce tp": 3}


def test_scores_that_need_all_keys_are_computed_where_all_keys_are() -> None:
    """A score that is divided by the norm of its row has no parts."""
    torch.manual_seed(0)
    shapes = ((2, 4, 1, 8), (2, 4, 32, 8), (2, 4, 32, 6))
    inputs = [torch.randn(shape) for shape in shapes]

    class Normalized(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = q @ k.transpose(2, 3)
            turned = scores.flip(-1) + scores
            return torch.softmax(turned, -1) @ v

    laid = check(capture(Normalized(), inputs, train=False), FOUR, KEYS)
    assert collectives(laid.forward.graph)["all_gather tp"] >= 1


def test_no_collective_can_be_left_out() -> None:
    laid = lay_out(captured(2, 64), FOUR, KEYS)
    assert laid.backward is not None
    for graph in (laid.forward.graph, laid.backward.graph):
        promised = promising(graph)
        found = list(mutations(promised))
        assert found
        assert [str(one) for one in found if rejection(promised, one) is None] == []
