"""Models of Hugging Face transformers by the usual plans: the numbers of one device."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from torch import nn

from lynx.ir.sharding import Mesh
from lynx.ir.types import TensorType
from tests.distribution.harness import Captured, capture, check, spec_for
from tests.distribution.random_plans import random_mesh, random_plan

transformers = pytest.importorskip("transformers")
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
def captured(name: str, dropout: float = 0.0, train: bool = True) -> Captured:
    model = families.build(name, dropout=dropout).train(train)
    return traced(model, name, train)


def traced(model: nn.Module, name: str, train: bool = True) -> Captured:
    torch.manual_seed(1)
    inputs = families.FAMILIES[name].inputs(3, 7)
    model(**inputs)  # what models set up when they first run is not for tracing
    return capture(model, inputs, train)


@functools.cache
def llama(heads: int, shared: int) -> Captured:
    """Return a llama with so many heads, and so many of keys and values."""
    sizes = {
        "hidden_size": 8 * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "num_hidden_layers": 1,
    }
    config = transformers.AutoConfig.for_model("llama", **(families.LLAMA | sizes))
    torch.manual_seed(0)
    return traced(transformers.AutoModelForCausalLM.from_config(config).float(), "llama")


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


HEADS = [
    pytest.param(heads, shared, devices, marks=pytest.mark.slow)
    for heads, shared in [(6, 6), (6, 3), (6, 2), (5, 1), (3, 3)]
    for devices in (2, 4, 5)
]


@pytest.mark.parametrize(("heads", "shared", "devices"), [*HEADS, (9, 3, 4)])
def test_heads_that_devices_do_not_divide(heads: int, shared: int, devices: int) -> None:
    one = llama(heads, shared)
    check(one, Mesh("mesh", (("dp", 1), ("tp", devices))), TENSOR)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("kind", ["tp", "dp+tp", "fsdp"])
def test_dropout(name: str, kind: str) -> None:
    """Each device draws the masks of one device, and takes its part of them."""
    one = captured(name, dropout=0.3)
    assert any(op.is_random for op in one.forward.graph.ops)
    check(one, MESH, plan_of(kind, one))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "vit", "mixtral", "resnet"])
@pytest.mark.parametrize("kind", ["tp", "dp+tp"])
def test_inference(name: str, kind: str) -> None:
    one = captured(name, train=False)
    assert one.backward is None
    check(one, MESH, plan_of(kind, one))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "vit", "mixtral", "resnet"])
def test_random_plans(name: str) -> None:
    one = captured(name)
    for seed in range(10):
        source = random.Random(seed)
        mesh = random_mesh(source)
        check(one, mesh, random_plan(source, one.forward.graph, one.forward.inputs, mesh))
