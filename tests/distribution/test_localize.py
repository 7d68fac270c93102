"""The program of one device: shapes, specs, empty parts, communication, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate, evaluate_on_mesh, mesh, run_on_mesh
from lynx.backends.reference.dtypes import torch_dtype
from lynx.backends.reference.mesh import combine, is_same
from lynx.ir import (
    Builder,
    CompileError,
    DType,
    Graph,
    InputSpec,
    InternalError,
    Mesh,
    Mutation,
    OutputSpec,
    TensorType,
    Value,
    parse_graph,
    print_graph,
    verify,
)
from lynx.ir.core import Op
from lynx.ir.location import Location
from lynx.ir.ops import (
    Add,
    AllGather,
    AllReduce,
    Exp,
    Full,
    Iota,
    LocalAllReduce,
    RandomNormal,
    Replicate,
    Shard,
    Slice,
    Sum,
)
from lynx.ir.ops.communication import Communication
from lynx.ir.sharding import parse_sharding
from lynx.passes.base import PassContext
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode
from lynx.passes.distribution.localize import identity, local_strides, localize

MESH = Mesh("m", (("dp", 2), ("tp", 3)))


def tensor(*shape: int, on: str, dtype: DType = DType.F64) -> TensorType:
    return TensorType(dtype, shape, sharding=parse_sharding(on, MESH))


def on_mesh(builder: Builder, *outputs: Value, **options: Any) -> Graph:
    graph = dataclasses.replace(builder.build(outputs, **options), mesh=MESH)
    verify(graph)
    return graph


def every_device(graph: Graph) -> list[Graph]:
    grid = graph.mesh
    assert grid is not None
    locals_ = [localize(graph, grid.coordinates(n)) for n in range(grid.device_count)]
    for local in locals_:
        verify(local)
        assert print_graph(parse_graph(print_graph(local))) == print_graph(local)
    return locals_


def body(graph: Graph) -> str:
    """Return the text of a graph without header and end."""
    return "\n".join(line.strip() for line in print_graph(graph).splitlines()[1:-1])


def test_a_layer() -> None:
    text = """
        graph @layer(%x: f32[4, 6] replicated, %w: f32[6, 5 @ tp], %v: f32[5 @ tp, 6])
            mesh @m(tp = 3) {
          %0 = matmul %x, %w : f32[4, 5 @ tp]
          %1 = relu %0 : f32[4, 5 @ tp]
          %2 = matmul %1, %v : f32[4, 6] + partial(sum: tp)
          %3 = all_reduce %2 {axes = ["tp"]} : f32[4, 6] replicated
          return %3
        }
    """
    graph = parse_graph(text)
    assert body(localize(graph, {"tp": 2})) == (
        "%0 = matmul %x, %w : f32[4, 1]\n"
        "%1 = relu %0 : f32[4, 1]\n"
        "%2 = matmul %1, %v : f32[4, 6]\n"
        '%3 = local_all_reduce %2 {axes = ["tp"]} : f32[4, 6]\n'
        "return %3"
    )
    every_device(graph)


def test_collectives_name_the_pieces_of_all_members() -> None:
    builder = Builder("g")
    x = builder.input("x", tensor(7, 5, on="(dp, tp), _"))
    y = builder.emit(AllGather(x, ("tp",), 0))
    graph = on_mesh(builder, y)
    gathers = [local.ops[0] for local in every_device(graph)]
    # 7 among 2 is 4 and 3; 4 among 3 is 2, 2, 0, and 3 among 3 is 1, 1, 1.
    assert [op.attributes["sizes"] for op in gathers] == [(2, 2, 0)] * 3 + [(1, 1, 1)] * 3
    assert [op.attributes["index"] for op in gathers] == [0, 1, 2] * 2


def test_empty_parts_still_communicate() -> None:
    """A device without columns multiplies nothing, and adds zeros."""
    builder = Builder("g")
    x = builder.input("x", tensor(5, 2, on="_, tp"))
    total = builder.emit(Sum(x, (1,)))
    out = builder.emit(AllReduce(total, ("tp",)))
    graph = on_mesh(builder, out)
    last = localize(graph, {"dp": 0, "tp": 2})
    assert [type(op) for op in last.ops] == [Full, LocalAllReduce]
    given = torch.arange(10, dtype=torch.float64).view(5, 2)
    assert is_same(run_on_mesh(graph, [given])[0], given.sum(1))


# torch adds no complex halves, and has few ops on wide unsigned integers and on bytes of floats.
NUMBERS = [d for d in DType if d.value[:2] not in ("f8", "u1", "u3", "u6") and d is not DType.C32]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("reduction", ["sum", "product", "max", "min", "and", "or"])
def test_identities_change_nothing(reduction: str, dtype: DType) -> None:
    if dtype.is_complex and reduction in ("max", "min"):
        pytest.skip("complex numbers have no order")
    kind = torch_dtype(dtype)
    values = torch.tensor([0, 1, 1], dtype=kind)
    nothing = torch.full((3,), identity(reduction, dtype), dtype=kind)
    assert torch.equal(combine([values, nothing], reduction), values)
    assert torch.equal(combine([nothing, values], reduction), values)


def test_factories_are_made_small() -> None:
    builder = Builder("g")
    x = builder.input("x", tensor(7, 6, on="dp, tp"))
    one = builder.emit(Full(1.5, (7, 6), DType.F64))
    one = builder.emit(Replicate(one, ("dp", "tp"), (2, 3)))
    one = builder.emit(Shard(one, ("dp",), 0))
    one = builder.emit(Shard(one, ("tp",), 1))
    graph = on_mesh(builder, builder.emit(Add(x, one)))
    for local in every_device(graph):
        assert [op.name for op in local.ops] == ["full", "add"]


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (Iota(3, 2, 7, DType.I64), "iota"),
        (Iota(3, 2, 7, DType.F32), "iota"),
        (Iota(0.1, 0.7, 7, DType.F32), "slice"),  # counting from elsewhere rounds in another way
        (Iota(2**24, 3, 7, DType.F32), "slice"),
        (RandomNormal(0.0, 1.0, (7,), DType.F32), "slice"),
    ],
)
def test_parts_of_factories_are_exact(op: Op, name: str) -> None:
    builder = Builder("g")
    made = builder.emit(op)
    made = builder.emit(Replicate(made, ("dp", "tp"), (2, 3)))
    made = builder.emit(Shard(made, ("tp",), 0))
    graph = on_mesh(builder, made)
    assert every_device(graph)[1].ops[-1].name == name
    torch.manual_seed(3)
    (part,) = run_on_mesh(graph, [])
    torch.manual_seed(3)
    (whole,), _ = evaluate(graph, [])
    assert is_same(part, whole)


def test_random_numbers_go_on_as_on_one_device() -> None:
    builder = Builder("g")
    first = builder.emit(RandomNormal(0.0, 1.0, (4,), DType.F64))
    x = builder.input("x", tensor(4, on="tp"))
    whole = builder.emit(AllGather(x, ("tp",), 0))
    second = builder.emit(RandomNormal(0.0, 1.0, (4,), DType.F64))
    graph = on_mesh(builder, first, whole, second)
    given = [torch.ones(4, dtype=torch.float64)]
    torch.manual_seed(5)
    actual, after = run_on_mesh(graph, given), torch.rand(3)
    torch.manual_seed(5)
    expected, then = evaluate(graph, given)[0], torch.rand(3)
    assert all(map(is_same, actual, expected))
    assert is_same(after, then)


def test_specs_of_parts() -> None:
    builder = Builder("g")
    spec = InputSpec(strides=(1, 7), offset=3, is_static=True)
    x = builder.input("x", tensor(7, 6, on="tp, _"), spec)
    y = builder.input("y", tensor(4, 2, on="_, _"), InputSpec(strides=(2, 1), offset=5))
    unknown = builder.input("z", tensor(6, on="tp"))
    out = builder.emit(Exp(x))
    sharding = out.tensor_type.sharding
    promised = OutputSpec(strides=(6, 1), fresh=False, group=2, sharding=sharding)
    graph = on_mesh(
        builder, out, y, unknown, output_specs=(promised, OutputSpec(), OutputSpec()),
        mutations=(Mutation(x, out),),
    )  # fmt: skip
    local = localize(graph, {"dp": 0, "tp": 2})
    assert local.inputs[0].type == TensorType(DType.F64, (1, 6))
    assert local.input_specs == (
        InputSpec(strides=(1, 1), is_static=True),
        InputSpec(strides=(2, 1), offset=5),
        InputSpec(),
    )
    assert local.output_specs[0] == OutputSpec(strides=(6, 1), fresh=False, group=2)
    assert [(m.target, m.value) for m in local.mutations] == [(local.inputs[0], local.outputs[0])]
    given = [torch.randn(*value.shape, dtype=torch.float64) for value in graph.inputs]  # type: ignore[arg-type]
    outputs, mutated = evaluate_on_mesh(graph, given)
    assert is_same(mutated[0], given[0].exp())
    assert is_same(outputs[2], given[2])


def test_strides_keep_the_order_of_dimensions() -> None:
    assert local_strides((48, 8, 1), (2, 6, 8), (2, 3, 8)) == (24, 8, 1)
    assert local_strides((48, 1, 6), (2, 6, 8), (2, 3, 8)) == (24, 1, 3)
    assert local_strides((0, 1), (5, 6), (3, 6)) == (0, 1)
    assert local_strides((96, 16, 1), (2, 6, 8), (1, 6, 8)) == (48, 8, 1)


def test_symbolic_sizes_that_are_not_cut() -> None:
    text = """
        graph @g(%x: f64[6 @ tp, s0]) symbols (s0) mesh @m(tp = 4) {
          %0 = exp %x : f64[6 @ tp, s0]
          %1 = sum %0 {dims = [0]} : f64[s0] + partial(sum: tp)
          %2 = all_reduce %1 {axes = ["tp"]} : f64[s0] replicated
          return %0, %2
        }
    """
    graph = parse_graph(text)
    every_device(graph)
    x = torch.randn(6, 5, dtype=torch.float64)
    first, second = run_on_mesh(graph, [x])
    torch.testing.assert_close(first, x.exp())
    torch.testing.assert_close(second, x.exp().sum(0))


def test_symbolic_sizes_that_are_cut_are_refused() -> None:
    text = """
        graph @g(%n: int(s0)) symbols (s0) mesh @m(tp = 4) {
          %0 = full 1.0 {shape = [s0], dtype = f32} : f32[s0]
          %1 = replicate %0 {axes = ["tp"], sizes = [4]} : f32[s0] replicated
          %2 = shard %1 {axes = ["tp"], dim = 0} : f32[s0 @ tp]  loc("model.py":3)
          return %2
        }
    """
    with pytest.raises(CompileError, match=r"model.py:3.*symbolic-shard"):
        localize(parse_graph(text), {"tp": 0})


def test_an_op_without_a_local_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Exp, *arguments: object) -> Op:
        raise self.error("no-local-form", "is in one piece")

    monkeypatch.setattr(Exp, "localized", refuse)
    builder = Builder("g")
    x = builder.input("x", tensor(6, on="tp"))
    graph = on_mesh(builder, builder.emit(Exp(x, loc=Location("model.py", 7))))
    with pytest.raises(CompileError) as caught:
        localize(graph, {"dp": 0, "tp": 1})
    assert caught.value.code == "no-local-form"
    assert "model.py:7" in str(caught.value)
    assert "'exp' cannot run on a part along 'd0' from 2, 2" in caught.value.message


def test_a_wrong_local_form_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exp, "localized", lambda self, operands, *rest: self)
    builder = Builder("g")
    x = builder.input("x", tensor(6, on="tp"))
    graph = on_mesh(builder, builder.emit(Exp(x)))
    with pytest.raises(InternalError, match="bad-local-type"):
        localize(graph, {"dp": 0, "tp": 1})


def test_communication_is_neither_removed_nor_merged() -> None:
    builder = Builder("g")
    x = builder.input("x", tensor(6, on="tp"))
    first = builder.emit(AllGather(x, ("tp",), 0))
    builder.emit(AllGather(x, ("tp",), 0))
    local = localize(on_mesh(builder, first), {"dp": 0, "tp": 1})
    for each in (MergeCommonSubexpressions(), RemoveDeadCode()):
        local = each.run(local, PassContext())
    assert sum(isinstance(op, Communication) for op in local.ops) == 2


def test_replicas_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        graph @g(%x: f64[6] replicated) mesh @m(tp = 2) {
          %0 = exp %x : f64[6] replicated
          return %0
        }
    """
    calls = iter(range(100))
    real = mesh.run
    monkeypatch.setattr(
        mesh, "run", lambda *given: tuple(r + next(calls) * 1e-9 for r in real(*given))
    )
    with pytest.raises(InternalError, match="replicas-differ"):
        run_on_mesh(parse_graph(text), [torch.zeros(6, dtype=torch.float64)])


def test_devices_out_of_step_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder("g")
    x = builder.input("x", tensor(6, on="tp"))
    graph = on_mesh(builder, builder.emit(AllGather(x, ("tp",), 0)))
    real = mesh.localize

    def without_communication(graph: Graph, coordinates: dict[str, int]) -> Graph:
        local = real(graph, coordinates)
        return local if coordinates["tp"] else dataclasses.replace(
            local, ops=(), outputs=local.inputs[:1])  # fmt: skip

    monkeypatch.setattr(mesh, "localize", without_communication)
    with pytest.raises(InternalError, match="mesh-out-of-step"):
        run_on_mesh(graph, [torch.zeros(6, dtype=torch.float64)])


def test_slices_of_whole_values() -> None:
    builder = Builder("g")
    x = builder.input("x", tensor(7, 3, on="_, _"))
    piece = builder.emit(Shard(builder.emit(Exp(x)), ("dp",), 0))
    piece = builder.emit(Shard(piece, ("tp",), 0))
    graph = on_mesh(builder, piece)
    slices = [[op for op in local.ops if isinstance(op, Slice)] for local in every_device(graph)]
    assert [(one.start, one.stop) for one, _ in slices] == [(0, 4)] * 3 + [(4, 7)] * 3
    given = torch.randn(7, 3, dtype=torch.float64)
    assert is_same(run_on_mesh(graph, [given])[0], given.exp())
