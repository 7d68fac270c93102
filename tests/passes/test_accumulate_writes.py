"""Adding what is scattered straight into a product: the same sums, and memory for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lynx.backends.c import has_compiler
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import parse_module
from lynx.ir.core import Graph, Op
from lynx.ir.ops.elementwise_arithmetic import Add
from lynx.ir.ops.fusion import Fused
from lynx.ir.program import InPlace, Program
from lynx.ir.types import TensorType
from lynx.passes import PassContext, parse_pipeline
from lynx.records import RECORDS
from tests.passes.test_fuse import generating
from tests.passes.values import assert_same_values

GRAPHS = {
    graph.name: graph
    for graph in parse_module((Path(__file__).parent / "accumulate_writes.lynx").read_text())
}

REFUSALS = {
    "low_precision": "sums of bf16",
    "product_is_used_elsewhere": "what it is added to is used elsewhere",
    "product_is_used_through_a_view": "what it is added to is used elsewhere",
    "scattered_is_used_elsewhere": "what is scattered is used elsewhere",
    "no_product": "what it is added to is no product",
}

OTHERWISE = (
    "what is added is scaled",
    "what is added is divided by how often each row was looked up",
    "neither operand is scattered into zeros",
    "what is scattered does not add up",
    "an operand is broadcast",
)

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def accumulated(graph: Graph, context: PassContext | None = None) -> Graph:
    result = parse_pipeline("accumulate-writes,dce").run(graph, context or PassContext())
    assert isinstance(result, Graph)
    return result


def inputs_of(graph: Graph) -> list[Tensor]:
    """Return indices, and halves, which add up exactly in any order."""
    found = []
    for value in graph.inputs:
        assert isinstance(value.type, TensorType)
        shape = [size if isinstance(size, int) else 8 for size in value.type.shape]
        is_index = value.name in ("i", "j")
        drawn = torch.randint(0, 4, shape) if is_index else torch.randint(-9, 9, shape) * 0.5
        found.append(drawn.to(torch_dtype(value.type.dtype)))
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_the_examples_keep_their_meaning(name: str) -> None:
    graph = GRAPHS[name]
    inputs = inputs_of(graph)
    assert_same_values(graph, accumulated(graph), inputs, {"s0": 8})


@pytest.mark.parametrize("name", REFUSALS)
def test_near_misses_say_why(name: str) -> None:
    context = PassContext(reasons=True)
    graph = GRAPHS[name]
    assert len(accumulated(graph, context).ops) == len(graph.ops)
    assert context.remarks
    assert all(remark.message.startswith(REFUSALS[name]) for remark in context.remarks)


def test_other_near_misses_say_why() -> None:
    context = PassContext(reasons=True)
    graph = GRAPHS["otherwise"]
    assert accumulated(graph, context).ops == graph.ops
    assert tuple(remark.message for remark in context.remarks) == OTHERWISE


@pytest.mark.parametrize("name", ["rows_of_a_table", "padding"])
def test_the_sum_takes_the_place_of_the_product(name: str) -> None:
    context = generating(GRAPHS[name])
    pipeline = parse_pipeline("accumulate-writes,dce,fuse,lower,reinplace,plan-memory")
    program = pipeline.run(GRAPHS[name], context)
    assert isinstance(program, Program)
    step = program.steps[-1]
    assert isinstance(step.op, Fused)
    assert isinstance(step.placements[0], InPlace)


class Tied(nn.Module):
    def __init__(self, dtype: torch.dtype, padding: int | None, *, is_turned: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 16, padding_idx=padding, dtype=dtype)
        self.between = nn.Linear(16, 16, dtype=dtype)
        self.is_turned = is_turned

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.between(self.table(tokens)).tanh()
        weight = self.table.weight
        logits = (weight @ x.mT).mT if self.is_turned else functional.linear(x, weight)
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 20, shape)


TIED: dict[str, Callable[[], Tied]] = {
    "f32": lambda: Tied(torch.float32, None),
    "f64": lambda: Tied(torch.float64, None),
    "padding": lambda: Tied(torch.float32, 3),
    "turned": lambda: Tied(torch.float32, 0, is_turned=True),
}


def additions(ops: tuple[Op, ...]) -> list[Op]:
    """Return the additions of whole tables."""
    inner = [one for op in ops for one in (op.body.ops if isinstance(op, Fused) else (op,))]
    return [op for op in inner if isinstance(op, Add) and op.out.shape == (60, 16)]


@needs_compiler
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("key", TIED)
def test_tied_weights(key: str, is_dynamic: bool) -> None:
    model = TIED[key]()
    compiled = torch.compile(model, backend="lynx", options={"strict": True}, dynamic=is_dynamic)
    for shape in ((4, 9), (5, 7)) if is_dynamic else ((4, 9),):
        given = tokens(*shape), tokens(*shape)
        grads = []
        for function in (compiled, model):
            model.zero_grad()
            function(*given).backward()
            grads.append([parameter.grad for parameter in model.parameters()])
        torch.testing.assert_close(*grads)
    backward = RECORDS.graphs[-1].program.graph
    assert not additions(backward.ops)


@needs_compiler
def test_low_precision_is_rounded_twice() -> None:
    model = Tied(torch.bfloat16, None)
    given = tokens(2, 5), tokens(2, 5)
    torch.compile(model, backend="lynx", options={"strict": True})(*given).backward()
    assert additions(RECORDS.graphs[-1].program.graph.ops)
