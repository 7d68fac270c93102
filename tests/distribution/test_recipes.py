"""Collectives of the standard recipes are exactly the known ones."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import nn

from lynx.ir.core import Graph
from lynx.ir.ops.collective import Collective
from lynx.ir.sharding import Mesh
from lynx.ir.types import TensorType
from tests.distribution.harness import Captured, capture, check, collectives, lay_out, spec_for
from tests.distribution.models import transformer

MESH = Mesh("mesh", (("dp", 2), ("tp", 2)))
LAYERS = 2

MEGATRON = {
    "layers.*.[qkv].weight": "tp, _",
    "layers.*.[qkv].bias": "tp",
    "layers.*.o.weight": "_, tp",
    "layers.*.up.weight": "tp, _",
    "layers.*.up.bias": "tp",
    "layers.*.down.weight": "_, tp",
}
VOCABULARY = {"tokens.weight": "tp, _", "head.weight": "tp, _"}
DATA = {"inputs.*": "dp, ..."}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "post-norm": {"post_norm": True},
    "tied": {"tied": True},
    "mask": {"mask": True},
    "shared heads": {"shared": 2},
    "dropout": {"dropout": 0.1},
}


@functools.cache
def captured(**fields: Any) -> Captured:
    model, inputs = transformer(**fields)
    return capture(model, inputs)


def parameters(one: Captured) -> dict[str, TensorType]:
    graph = one.forward.graph
    return {
        name: value.type
        for name, value in zip(one.forward.inputs, graph.inputs, strict=True)
        if isinstance(value.type, TensorType) and not name.startswith("inputs.")
    }


def fully_sharded(one: Captured, base: dict[str, str]) -> dict[str, str]:
    """Cut each parameter by `dp`, too: along its first dimension that nothing else cuts."""
    plan = dict(DATA)
    for name, type_ in parameters(one).items():
        spec = spec_for(base, name, type_.rank)
        entries = ["_"] * type_.rank if spec is None else spec.split(", ")
        if "_" in entries:
            entries[entries.index("_")] = "dp"
        else:
            entries[0] = f"({entries[0]}, dp)"
        plan[name] = ", ".join(entries)
    return plan


def both(one: Captured, plan: dict[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    laid = lay_out(one, MESH, plan)
    assert laid.backward is not None
    return collectives(laid.forward.graph), collectives(laid.backward.graph)


def largest(graph: Graph, name: str) -> int:
    """Return the number of elements of the largest tensor that one kind of collective takes."""
    sizes = [
        math.prod(int(size) for size in op.x.shape)
        for op in graph.ops
        if isinstance(op, Collective) and op.name == name
    ]
    return max(sizes, default=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_tensor_parallelism(name: str) -> None:
    """Two reductions a layer forward, and two backward; nothing is gathered."""
    forward, backward = both(captured(**VARIANTS[name]), MEGATRON)
    assert forward == {"all_reduce tp": 2 * LAYERS}
    assert backward == {"all_reduce tp": 2 * LAYERS}


@pytest.mark.parametrize("name", VARIANTS)
def test_data_parallelism(name: str) -> None:
    """One reduction for each parameter, tied ones once; forward only sums and counts losses."""
    one = captured(**VARIANTS[name])
    forward, backward = both(one, DATA)
    assert forward == {"all_reduce dp": 2}
    assert backward == {"all_reduce dp": len(parameters(one))}
    laid = lay_out(one, MESH, DATA)
    assert largest(laid.forward.graph, "all_reduce") == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_fully_sharded_data_parallelism(name: str) -> None:
    """One gather for each parameter, one more backward if needed there, one reduction to pieces."""
    one = captured(**VARIANTS[name])
    count = len(parameters(one))
    biases = sum(parameter.endswith("bias") for parameter in parameters(one))
    forward, backward = both(one, fully_sharded(one, {}))
    assert forward == {"all_gather dp": count, "all_reduce dp": 2}
    assert backward["reduce_scatter dp"] == count
    assert set(backward) == {"all_gather dp", "reduce_scatter dp"}
    # Gradients need no biases, and no embeddings but one that is the head's weight.
    tied = VARIANTS[name].get("tied", False)
    assert backward["all_gather dp"] <= count - biases - (1 if tied else 2)


@pytest.mark.parametrize("name", VARIANTS)
def test_data_and_tensor_parallelism(name: str) -> None:
    one = captured(**VARIANTS[name])
    forward, backward = both(one, MEGATRON | DATA)
    assert forward == {"all_reduce dp": 2, "all_reduce tp": 2 * LAYERS}
    assert backward == {"all_reduce dp": len(parameters(one)), "all_reduce tp": 2 * LAYERS}


@pytest.mark.parametrize("name", VARIANTS)
def test_fully_sharded_data_and_tensor_parallelism(name: str) -> None:
    one = captured(**VARIANTS[name])
    count = len(parameters(one))
    forward, backward = both(one, fully_sharded(one, MEGATRON))
    assert forward == {
        "all_gather dp": count, "all_reduce dp": 2, "all_reduce tp": 2 * LAYERS,
    }  # fmt: skip
    assert backward.pop("all_gather dp") < count
    assert backward == {"reduce_scatter dp": count, "all_reduce tp": 2 * LAYERS}


def test_vocabulary_parallelism() -> None:
    """The loss takes maxima, sums and scores of targets from everywhere, but no logits."""
    one = captured()
    forward, backward = both(one, MEGATRON | VOCABULARY)
    assert forward == {"all_reduce tp": 2 * LAYERS + 1 + 3}
    assert backward == {"all_reduce tp": 2 * LAYERS + 1}
    laid = lay_out(one, MESH, MEGATRON | VOCABULARY)
    # Of a batch of 8 by 16 tokens of width 32 nothing larger goes round.
    assert largest(laid.forward.graph, "all_reduce") <= 8 * 16 * 32


@pytest.mark.parametrize(("heads", "shared", "devices"), [(4, 2, 4), (6, 3, 2), (8, 2, 8)])
def test_heads_of_keys_that_devices_do_not_divide(heads: int, shared: int, devices: int) -> None:
    """Queries stay where they are: only keys and values are gathered, and their gradients added."""
    width = 6 * heads
    one = captured(heads=heads, shared=shared, width=width, layers=1, batch=2, length=5)
    laid = check(one, Mesh("mesh", (("tp", devices),)), MEGATRON)
    assert laid.backward is not None
    assert collectives(laid.forward.graph) == {"all_gather tp": 2, "all_reduce tp": 2}
    assert collectives(laid.backward.graph) == {"all_reduce tp": 2, "reduce_scatter tp": 2}
    assert largest(laid.forward.graph, "all_gather") == 2 * 5 * shared * 6


def test_heads_that_devices_do_not_divide() -> None:
    """Six heads over four devices: whole heads, where the plan says so."""
    plan = {
        "layers.*.[qkv].weight": "tp by 6, _",
        "layers.*.[qkv].bias": "tp by 6",
        "layers.*.o.weight": "_, tp by 6",
    }
    one = captured(heads=6, width=36, layers=1, batch=2, length=5)
    laid = check(one, Mesh("mesh", (("tp", 4),)), plan)
    assert laid.backward is not None
    assert collectives(laid.forward.graph) == {"all_reduce tp": 1}
    assert collectives(laid.backward.graph) == {"all_reduce tp": 1}


class Interleaved(nn.Module):
    """Attention whose fused projection has queries, keys and values of a head side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.o = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 4, 3, 8).permute(3, 0, 2, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(seen.transpose(1, 2).reshape(batch, length, -1)) + x


def test_fused_projection_by_heads() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(3, 5, 32, requires_grad=True)]
    one = capture(Interleaved(), inputs)
    plan = {"qkv.weight": "tp, _", "qkv.bias": "tp", "o.weight": "_, tp"}
    laid = check(one, Mesh("mesh", (("tp", 2),)), plan)
    assert laid.backward is not None
    assert collectives(laid.forward.graph) == {"all_reduce tp": 1}
    assert collectives(laid.backward.graph) == {"all_reduce tp": 1}


def test_terms_of_gradients_are_added_before_they_are_reduced() -> None:
    """A sum of partial and whole terms in the order of autograd needs one reduction."""
    one = captured(post_norm=True, layers=1, batch=2, length=5)
    laid = check(one, MESH, MEGATRON)
    assert laid.backward is not None
    assert collectives(laid.backward.graph) == {"all_reduce tp": 2}


@pytest.mark.parametrize("bias", [True, False])
def test_sequence_parallelism(bias: bool) -> None:
    """Between the products of a layer pieces of sequences: gathered before, reduced after them.

    Backward gathers what forward gathered once more, since it kept the pieces. Without the rest
    of the model, which adds a gather for the embeddings of places and reductions of norms.
    """
    one = captured(residual="_, tp, _", bias=bias)
    laid = check(one, MESH, MEGATRON)
    assert laid.backward is not None
    forward, backward = collectives(laid.forward.graph), collectives(laid.backward.graph)
    assert forward["reduce_scatter tp"] == 2 * LAYERS
    assert forward["all_gather tp"] == 2 * LAYERS
    assert backward["reduce_scatter tp"] == 2 * LAYERS
    assert largest(laid.forward.graph, "all_reduce") <= 1
    assert "all_to_all tp" not in forward | backward


@pytest.mark.parametrize("fields", [{}, {"bias": False}, {"shared": 2}])
def test_fused_projection_of_three_blocks(fields: dict[str, Any]) -> None:
    """Queries, keys and values after one another: each of the blocks is cut."""
    one = captured(fused=True, layers=1, batch=2, length=5, **fields)
    blocks = 4 if "shared" in fields else 3
    plan = MEGATRON | {
        "layers.*.qkv.weight": f"tp of {blocks}, _",
        "layers.*.qkv.bias": f"tp of {blocks}",
    }
    laid = check(one, Mesh("mesh", (("tp", 2),)), plan)
    assert laid.backward is not None
    if "shared" not in fields:
        assert collectives(laid.forward.graph) == {"all_reduce tp": 2}
        assert collectives(laid.backward.graph) == {"all_reduce tp": 2}
