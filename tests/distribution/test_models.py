"""Models of Hugging Face transformers by the usual plans: the numbers of one device."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from lynx.ir.sharding import Mesh
from lynx.ir.types import TensorType
from tests.distribution.harness import Captured, capture, check, spec_for
from tests.distribution.random_plans import random_mesh, random_plan

pytest.importorskip("transformers")
families = pytest.importorskip("tests.models.families")

COLUMNS = "tp, _"
ROWS = "_, tp"
TENSOR = {
    # llama, mixtral
    "*.[qkv]_proj.weight": COLUMNS,
    "*.o_proj.weight": ROWS,
    "*.gate_proj.weight": COLUMNS,
    "*.up_proj.weight": COLUMNS,
    "*.down_proj.weight": ROWS,
    "*.experts.gate_up_proj": "tp, _, _",
    "*.experts.down_proj": "tp, _, _",
    # bert, vit
    "*.query.weight": COLUMNS,
    "*.key.weight": COLUMNS,
    "*.value.weight": COLUMNS,
    "*.query.bias": "tp",
    "*.key.bias": "tp",
    "*.value.bias": "tp",
    "*.intermediate.dense.weight": COLUMNS,
    "*.intermediate.dense.bias": "tp",
    "*.output.dense.weight": ROWS,
    # t5
    "*Attention.[qkv].weight": COLUMNS,
    "*Attention.o.weight": ROWS,
    "*.wi.weight": COLUMNS,
    "*.wo.weight": ROWS,
}
DATA = {"inputs.*": "dp, ..."}
MESH = Mesh("mesh", (("dp", 2), ("tp", 2)))


@functools.cache
def captured(name: str) -> Captured:
    model = families.build(name)
    torch.manual_seed(1)
    inputs = families.FAMILIES[name].inputs(3, 7)
    model(**inputs)  # what models set up when they first run is not for tracing
    return capture(model, inputs)


def fully_sharded(one: Captured, base: dict[str, str]) -> dict[str, str]:
    """Cut what has a gradient by `dp`, along its first dimension that nothing else cuts."""
    plan = dict(DATA)
    assert one.backward is not None
    for name, value in zip(one.forward.inputs, one.forward.graph.inputs, strict=True):
        if f"__grad({name})" in one.backward.outputs and isinstance(value.type, TensorType):
            entries = (spec_for(base, name, value.type.rank) or "_").split(", ")
            entries += ["_"] * (value.type.rank - len(entries))
            place = entries.index("_") if "_" in entries else 0
            entries[place] = "dp" if entries[place] == "_" else f"({entries[place]}, dp)"
            plan[name] = ", ".join(entries)
    return plan


def plan_of(kind: str, one: Captured) -> dict[str, str]:
    match kind:
        case "tp":
            return TENSOR
        case "dp":
            return DATA
        case "dp+tp":
            return TENSOR | DATA
        case "fsdp":
            return fully_sharded(one, {})
    return fully_sharded(one, TENSOR)


def test_llama_by_all_axes() -> None:
    """The plan with the most axes; the others, and other models, are in the thorough run."""
    one = captured("llama")
    check(one, MESH, plan_of("fsdp+tp", one))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "vit", "mixtral", "resnet"])
@pytest.mark.parametrize("kind", ["tp", "dp", "dp+tp", "fsdp", "fsdp+tp"])
def test_usual_plans(name: str, kind: str) -> None:
    one = captured(name)
    check(one, MESH, plan_of(kind, one))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "vit", "mixtral", "resnet"])
def test_random_plans(name: str) -> None:
    one = captured(name)
    for seed in range(10):
        source = random.Random(seed)
        mesh = random_mesh(source)
        check(one, mesh, random_plan(source, one.forward.graph, one.forward.inputs, mesh))
