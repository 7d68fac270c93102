"""Windows along a dimension that is cut: neighbours send borders; results as on one device."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lynx.backends.reference import run, run_on_mesh
from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.collective import AllGather, Collective
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.pooling import AveragePool, AveragePoolBackward, MaxPool, MaxPoolBackward
from lynx.ir.sharding import Mesh, parse_sharding
from lynx.ir.types import DType, TensorType
from lynx.pass_context import pass_context
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import distribute
from tests.distribution.harness import capture, check

Values = dict[Value, torch.Tensor]
TWO, FOUR = Mesh("m", (("a", 2),)), Mesh("m", (("a", 4),))
SQUARE = Mesh("m", (("a", 2), ("b", 2)))


def tensor(*shape: int, dtype: DType = DType.F64) -> Value:
    return Value(TensorType(dtype, shape), name="x")


def laid_out(op: Op, mesh: Mesh, specs: dict[Value, str]) -> Graph:
    inputs = tuple(dict.fromkeys(op.operands))
    graph = Graph("g", inputs, (op,), tuple(op.results))
    given = tuple(
        Annotation(parse_sharding(specs.get(v, ", ".join("_" * len(v.shape))), mesh), 1)
        for v in inputs
    )
    wanted = (None,) * len(op.results)
    return distribute(graph, Annotations(mesh, given, wanted), pass_context(graph)).graph


def compare(op: Op, graph: Graph, values: Values, expected: tuple[Any, ...]) -> None:
    actual = run_on_mesh(graph, [values[value] for value in dict.fromkeys(op.operands)])
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)


def moved(graph: Graph) -> list[str]:
    """Return what is communicated, as `all_gather f64[2, 3, 2, 1, 8]`."""
    return [
        f"{op.name} {op.operands[0].type}"
        for op in graph.ops
        if isinstance(op, Collective) and op.needs_communication
    ]


# Any windows


def drawn(source: random.Random) -> tuple[Op, Values, tuple[Any, ...]] | None:
    """Draw an op that slides windows, with numbers and what comes out; None if there is none."""
    kind = source.choice(("forward", "input", "weight", "average", "spread", "max", "scatter"))
    is_pool = kind not in ("forward", "input", "weight")
    rank = source.choice((1, 2, 2, 3)[is_pool:])
    kernel = tuple(source.choice((1, 2, 3, 3, 5)) for _ in range(rank))
    stride = tuple(source.choice((1, 1, 2)) for _ in range(rank))
    dilation = tuple(source.choice((1, 1, 2)) for _ in range(rank))
    size = tuple(source.choice((8, 12, 16)) for _ in range(rank))
    most = [k // 2 if is_pool else d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(source.choice((0, one, one)) for one in most)
    x = tensor(source.choice((1, 2, 3)), 4, *size)
    groups = source.choice((1, 2))
    weight = tensor(4, 4 // groups, *kernel)
    counts, divisor = source.random() < 0.5, source.choice((None, None, 3))
    slides = (stride, padding, dilation, False, (), groups)
    try:
        if is_pool:
            op: Op = (
                AveragePool(x, kernel, stride, padding, False, counts, divisor)
                if kind in ("average", "spread")
                else MaxPool(x, kernel, stride, padding, dilation)
            )
        else:
            op = Convolution(x, weight, tensor(4) if source.random() < 0.5 else None, *slides)
        values = {value: torch.randn(value.shape, dtype=torch.float64) for value in op.operands}
        if kind == "max" and source.random() < 0.3:
            values[x] = torch.where(torch.rand(x.shape) < 0.7, -torch.inf, values[x])
        expected = run(op, values, {}, {})
    except (CompileError, RuntimeError):
        return None
    if 0 in op.results[0].shape:
        return None
    grad = tensor(*map(int, op.results[0].shape))
    values[grad] = torch.randn(grad.shape, dtype=torch.float64)
    match kind:
        case "input":
            op = ConvolutionBackwardInput(grad, x, weight, *slides)
        case "weight":
            op = ConvolutionBackwardWeight(grad, x, weight, *slides, of_bias=source.random() < 0.5)
        case "spread":
            op = AveragePoolBackward(grad, x, kernel, stride, padding, False, counts, divisor)
        case "scatter":
            places = Value(op.results[1].type, name="p")
            values[places] = expected[1]
            op = MaxPoolBackward(grad, x, places, kernel, stride, padding, dilation)
        case _:
            return op, values, expected
    return op, values, run(op, values, {}, {})


def spatial(source: random.Random, value: Value, mesh: Mesh) -> str:
    """Draw how an image is cut: mostly along a dimension that windows slide over."""
    entries: list[list[str]] = [[] for _ in value.shape]
    for axis in source.sample(mesh.names, len(mesh.names)):
        entries[source.randrange(0 if source.random() < 0.2 else 2, len(entries))].append(axis)
    return ", ".join(f"({', '.join(axes)})" if axes else "_" for axes in entries)


def test_any_windows() -> None:
    source, found, halos = random.Random(0), 0, 0
    torch.manual_seed(0)
    while found < 250:
        one = drawn(source)
        if one is None:
            continue
        op, values, expected = one
        mesh = source.choice((TWO, FOUR, SQUARE))
        images = [v for v in op.operands if len(v.shape) > 2 and v is not getattr(op, "weight", 0)]
        specs = {value: spatial(source, value, mesh) for value in images}
        graph = laid_out(op, mesh, specs)
        compare(op, graph, values, expected)
        found += 1
        halos += any(made.name in ("concatenate", "permute") for made in graph.ops)
    assert halos > 60


# What is moved


def test_only_borders_are_moved() -> None:
    x, weight = tensor(2, 3, 16, 8), tensor(5, 3, 3, 3)
    op = Convolution(x, weight, None, padding=(1, 1))
    graph = laid_out(op, FOUR, {x: "_, _, a, _"})
    assert moved(graph) == ["all_gather f64[2, 3, 4 @ a, 1, 8]"] * 2
    assert str(graph.outputs[0].type) == "f64[2, 5, 16 @ a, 8]"  # type: ignore[union-attr]


def test_gradients_send_borders_back() -> None:
    x, weight, grad = tensor(2, 3, 16, 8), tensor(5, 3, 3, 3), tensor(2, 5, 16, 8)
    op = ConvolutionBackwardInput(grad, x, weight, padding=(1, 1))
    graph = laid_out(op, FOUR, {grad: "_, _, a, _"})
    assert moved(graph) == ["all_gather f64[2, 3, 4 @ a, 1, 8]"] * 2
    other = ConvolutionBackwardWeight(grad, x, weight, padding=(1, 1))
    graph = laid_out(other, FOUR, {grad: "_, _, a, _", x: "_, _, a, _"})
    assert [one.split()[0] for one in moved(graph)] == ["all_gather", "all_gather", "all_reduce"]
    assert moved(graph)[:2] == ["all_gather f64[2, 3, 4 @ a, 1, 8]"] * 2


def test_windows_that_begin_with_pieces_need_one_border() -> None:
    x = tensor(2, 3, 16, 8)
    op = MaxPool(x, (3, 3), (2, 2), (1, 1))
    graph = laid_out(op, TWO, {x: "_, _, a, _"})
    assert moved(graph) == ["all_gather f64[2, 3, 2 @ a, 1, 8]"]
    side_by_side = MaxPool(x, (2, 2))
    assert moved(laid_out(side_by_side, TWO, {x: "_, _, a, _"})) == []


X = tensor(2, 4, 16, 8)
MISSES: list[tuple[str, Op, Mesh]] = [
    ("pieces of several sizes", Convolution(X, tensor(4, 4, 3, 3), None, padding=(1, 1)),
     Mesh("m", (("a", 3),))),
    ("windows that begin within pieces", Convolution(X, tensor(4, 4, 3, 3), None, stride=(2, 2)),
     FOUR),
    ("halos as long as pieces", Convolution(X, tensor(4, 4, 5, 5), None, padding=(2, 2)), FOUR),
    ("transposed", Convolution(X, tensor(4, 4, 3, 3), None, padding=(1, 1), transposed=True), TWO),
    ("fewer elements at the ends", AveragePool(X, (3, 3), (1, 1), (1, 1), counts_padding=False),
     TWO),
    ("more windows by rounding up", AveragePool(X, (3, 3), (2, 2), ceil_mode=True), TWO),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "mesh"), [one[1:] for one in MISSES], ids=[one[0] for one in MISSES]
)
def test_otherwise_the_image_is_gathered(op: Op, mesh: Mesh) -> None:
    values = {value: torch.randn(value.shape, dtype=torch.float64) for value in op.operands}
    graph = laid_out(op, mesh, {X: "_, _, a, _"})
    assert any("16 @ a" in one for one in moved(graph))
    compare(op, graph, values, run(op, values, {}, {}))


def test_negative_padding_is_none_of_a_halo() -> None:
    weight = tensor(4, 4, 3, 3)
    op = Convolution(X, weight, None, padding=(-1, 0), end_padding=(3, 0))
    assert op.results[0].shape[2] == X.shape[2]
    graph = laid_out(op, TWO, {X: "_, _, a, _"})
    assert any("16 @ a" in one for one in moved(graph))


# Networks


class Net(nn.Module):
    """Layers of windows one after the other, of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.layers = nn.ModuleList(
            nn.Conv2d(6, 6, 3, padding=dilation, dilation=dilation, groups=groups)
            for dilation, groups in ((1, 1), (2, 2), (1, 6), (1, 3), (1, 1), (2, 1), (1, 1), (1, 2))
        )
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        x = functional.max_pool2d(functional.relu(self.norm(self.first(images))), 3, 1, 1)
        for layer in self.layers:
            x = x + functional.silu(layer(x))
        x = functional.avg_pool2d(functional.relu(self.down(x)), 3, 1, 1)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


# The gradient of a mean over rows is whole, and is cut by both axes in a detour.
@pytest.mark.parametrize(
    ("spec", "most"), [("_, _, a, _", 0), ("_, _, a, b", 0), ("b, _, _, a", 1)]
)
def test_a_deep_network_trains_on_pieces_of_images(spec: str, most: int) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(2, 3, 32, 16), torch.tensor([1, 3])
    one = capture(Net(), (images, labels), True)
    name = next(name for name in one.forward.inputs if "images" in name)
    laid = check(one, SQUARE, {name: spec})
    assert laid.backward is not None
    for graph in (laid.forward.graph, laid.backward.graph):
        gathered = [op for op in graph.ops if isinstance(op, AllGather) and op.needs_communication]
        sizes = [math.prod(map(int, op.results[0].shape)) for op in gathered]
        assert sum(3 * size > 2 * 6 * 32 * 16 for size in sizes) <= most < len(sizes)
