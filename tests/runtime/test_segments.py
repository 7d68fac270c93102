"""Programs whose steps between two calls of torch run natively give what the reference gives."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.backends.reference import call_of
from lynx.ir import (
    Builder,
    DType,
    Graph,
    InputSpec,
    Mutation,
    OutputSpec,
    SymbolRange,
    TensorType,
    Value,
    ops,
    symbol,
)
from lynx.ir.kernel import Kernel
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.program import InPlace, Program, Target
from lynx.passes import Pipeline
from lynx.passes.decompose import Decompose
from lynx.passes.fuse import Fuse
from lynx.passes.lower import Lower
from lynx.passes.plan_memory import PlanMemory
from lynx.passes.reinplace import Reinplace
from lynx.passes.target import Target as Machine
from lynx.runtime import BlockPool, Executable, build
from tests.runtime.interpreted import Interpreter
from tests.runtime.programs import check_run, compiled, context, same, with_border
from tests.runtime.test_executor import with_functions
from tests.strategies import graphs, inputs_for

MATRIX = TensorType(DType.F32, (6, 8))
ROWS = InputSpec((8, 1))


def fused_program(graph: Graph) -> Program:
    passes = (Decompose(), Fuse(), Lower(), Reinplace(), PlanMemory())
    told = context()
    told.target = Machine(generates_code=True)
    program = Pipeline(passes).run(graph, told)
    assert isinstance(program, Program)
    return program


def native(graph: Graph, *, fuse: bool = False) -> tuple[Executable, Interpreter]:
    """Return the executable of a graph with what its segments were compiled by."""
    compiler = Interpreter()
    program = fused_program(graph) if fuse else compiled(graph)
    return build(program, call_of, pool=BlockPool(), native=compiler), compiler


def fuse(builder: Builder, inputs: tuple[Value, ...], body: Any, results: int = 1) -> Any:
    """Append a fused op whose region is what `body` builds from its parameters."""
    parameters = tuple(Value(value.type) for value in inputs)
    inner = Builder("region")
    inner.loc = builder.loc
    made = body(inner, *parameters)
    made = made if isinstance(made, tuple) else (made,)
    assert len(made) == results
    op = builder.add(Fused(inputs, Region(parameters, tuple(inner.ops), made)))
    return op.out if results == 1 else op.results


def double(builder: Builder, x: Value) -> Value:
    return builder.emit(ops.Multiply(x, 2.0))


def softmax(builder: Builder, x: Value) -> Value:
    power = builder.emit(ops.Exp(x))
    total = builder.emit(ops.Sum(power, (len(x.shape) - 1,), True))
    return builder.emit(ops.Divide(power, total))


def call(builder: Builder, name: str, x: Value, type_: TensorType | None = None) -> Value:
    """Append a call of a Python function, which nothing is known of."""
    return builder.emit(Aten(f"python.{name}", (x,), (), (type_ or x.tensor_type,)))


@given(graph=graphs(max_ops=20), seed=st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_random_programs(graph: Graph, seed: int) -> None:
    graph = with_border(graph, random.Random(seed))
    run, _ = native(graph, fuse=True)
    assert not [r for r in run.native.remarks if "at another place" in r.message]
    first = check_run(graph, run, inputs_for(graph, seed))
    kept = [None if output is None else output.clone() for output in first]
    check_run(graph, run, inputs_for(graph, seed + 1))
    for output, before in zip(first, kept, strict=True):
        assert same(output, before), "a later call changed an output"


def test_views_and_products_do_not_end_a_segment() -> None:
    builder = Builder("one")
    x = builder.input("x", MATRIX, ROWS)
    w = builder.input("w", MATRIX, ROWS)
    hidden = fuse(builder, (x,), double)
    turned = builder.emit(ops.Permute(w, (1, 0)))
    product = builder.emit(ops.Matmul(hidden, turned))
    part = builder.emit(ops.Select(product, 0, 2))
    row = builder.emit(ops.Slice(part, 0, 1, 5, 2))
    result = fuse(builder, (row, product), lambda b, r, p: (softmax(b, r), softmax(b, p)), 2)
    graph = builder.build(result)
    run, compiler = native(graph)
    assert compiler.sizes == [3]
    assert run.source.count("segment_0(") == 1
    assert "permute" not in run.source
    check_run(graph, run, inputs_for(graph))


def test_calls_of_torch_lie_between_segments() -> None:
    builder = Builder("two")
    x = builder.input("x", MATRIX, ROWS)
    before = fuse(builder, (x,), double)
    seen = builder.emit(ops.CumulativeSum(before, 1))
    after = fuse(builder, (seen, before), lambda b, s, p: b.emit(ops.Add(s, p)))
    graph = builder.build((after,))
    run, compiler = native(graph)
    assert compiler.sizes == [1, 1]
    check_run(graph, run, inputs_for(graph))


@pytest.mark.parametrize("saved", [False, True])
def test_outputs_and_what_is_kept_for_backward(saved: bool) -> None:
    builder = Builder("outputs")
    x = builder.input("x", MATRIX, InputSpec((1, 6)))
    first, second = fuse(builder, (x,), lambda b, p: (double(b, p), softmax(b, p)), 2)
    turned = builder.emit(ops.Permute(first, (1, 0)))
    graph = builder.build((turned, second), (OutputSpec(saved=saved), OutputSpec((8, 1))))
    run, _ = native(graph)
    kept = [check_run(graph, run, inputs_for(graph, seed))[0] for seed in range(3)]
    assert len({tensor.data_ptr() for tensor in kept}) == 3


def test_mutations_are_written_in_place() -> None:
    """A step of an optimizer: three tensors change, each is read by the results of others."""
    builder = Builder("step")
    weight, first, second, grad = (
        builder.input(name, MATRIX, ROWS) for name in ("weight", "first", "second", "grad")
    )

    def step(b: Builder, w: Value, m: Value, v: Value, g: Value) -> tuple[Value, ...]:
        m = b.emit(ops.Add(b.emit(ops.Multiply(m, 0.9)), b.emit(ops.Multiply(g, 0.1))))
        v = b.emit(ops.Add(b.emit(ops.Multiply(v, 0.9)), b.emit(ops.Square(g))))
        ratio = b.emit(ops.Divide(m, b.emit(ops.Add(b.emit(ops.Sqrt(v)), 1e-3))))
        return b.emit(ops.Subtract(w, ratio)), m, v

    new = fuse(builder, (weight, first, second, grad), step, 3)
    pairs = zip((weight, first, second), new, strict=True)
    graph = builder.build((), mutations=tuple(Mutation(*pair) for pair in pairs))
    program = compiled(graph)
    assert all(isinstance(p, Target) for p in program.steps[0].placements)
    run, compiler = native(graph)
    assert len(compiler.segments[0].calls[0].kernel.buffers) == 4  # type: ignore[union-attr]
    inputs = inputs_for(graph)
    inputs[2] = inputs[2].abs()
    check_run(graph, run, inputs)


def test_results_over_operands_that_die() -> None:
    builder = Builder("in_place")
    x = builder.input("x", MATRIX, ROWS)
    value = fuse(builder, (x,), double)
    value = builder.emit(ops.CumulativeSum(value, 0))
    for _ in range(3):
        value = fuse(builder, (value,), softmax)
    value = builder.emit(ops.CumulativeSum(value, 0))
    graph = builder.build((value,))
    placements = [step.placements[0] for step in compiled(graph).steps]
    assert [isinstance(p, InPlace) for p in placements] == [False, False, True, True, True, False]
    run, _ = native(graph)
    check_run(graph, run, inputs_for(graph))
    check_run(graph, run, inputs_for(graph, 1))


def test_sizes_that_are_known_at_run_time() -> None:
    n = symbol("n")
    builder = Builder("dynamic")
    x = builder.input("x", TensorType(DType.F32, (n, 6, 4)), InputSpec((24, 4, 1)))
    w = builder.input("w", TensorType(DType.F32, (4, 4)), InputSpec((4, 1)))
    a = fuse(builder, (x,), softmax)
    flat = builder.emit(ops.Reshape(a, (n * 6, 4)))
    product = builder.emit(ops.Matmul(flat, w))
    late = builder.emit(ops.Slice(product, 0, n, 2 * n))
    b = fuse(builder, (late,), double)
    seen = builder.emit(ops.CumulativeSum(b, 0))
    c = fuse(builder, (seen, b), lambda b, s, p: b.emit(ops.Subtract(s, p)))
    graph = builder.build((c, b), symbols=(SymbolRange("n", 0, None),))
    run, compiler = native(graph)
    assert compiler.sizes == [3, 1]
    assert compiler.segments[0].symbols == ("n",)
    for size in (3, 5, 3, 64, 1, 7, 0, 3):
        inputs = [torch.randn(size, 6, 4), torch.randn(4, 4)]
        wanted = (inputs[0].softmax(2).reshape(-1, 4) @ inputs[1])[size : 2 * size] * 2
        second = run(list(inputs))
        assert torch.allclose(second[1], wanted, atol=1e-5)
        assert torch.allclose(second[0], wanted.cumsum(0) - wanted, atol=1e-5)


def test_tensors_without_elements() -> None:
    builder = Builder("empty")
    x = builder.input("x", TensorType(DType.F32, (0, 4)), InputSpec((4, 1)))
    y = fuse(builder, (x,), double)
    total = fuse(builder, (y,), lambda b, p: b.emit(ops.Sum(p, (0,), False)))
    graph = builder.build((y, total))
    run, compiler = native(graph)
    assert compiler.sizes == [1]
    check_run(graph, run, inputs_for(graph))


def test_tensors_that_lie_as_torch_likes() -> None:
    """Their strides are not known: they are made row-major, and views of them are as cheap."""
    builder = Builder("unknown")
    x = builder.input("x", MATRIX)
    turned = call(builder, "turned", x)
    part = builder.emit(ops.Select(turned, 1, 3))
    result = fuse(builder, (x, part), lambda b, p, q: (double(b, p), double(b, q)), 2)
    graph = builder.build(result)
    functions = with_functions({"python.turned": lambda t: t.t().contiguous().t()})
    compiler = Interpreter()
    run = build(compiled(graph), functions, native=compiler)
    assert compiler.sizes == [1]
    for x_ in (torch.randn(6, 8), torch.randn(8, 6).t(), torch.randn(6, 16)[:, ::2]):
        for tensor in (x_, torch._neg_view(x_)):
            first, second = run([tensor])
            assert torch.equal(first, tensor * 2)
            assert torch.equal(second, tensor[:, 3] * 2)


def test_what_a_segment_reads_stays_alive_until_it_has_run() -> None:
    builder = Builder("alive")
    x = builder.input("x", MATRIX, ROWS)
    made = [call(builder, "fresh", x) for _ in range(4)]
    parts = [builder.emit(ops.Slice(value, 0, index, 6)) for index, value in enumerate(made)]
    results = [fuse(builder, (part,), softmax) for part in parts]
    graph = builder.build(tuple(results))
    functions = with_functions({"python.fresh": lambda t: t + 1})
    run = build(compiled(graph), functions, native=Interpreter())
    x_ = torch.randn(6, 8)
    for index, result in enumerate(run([x_])):
        assert torch.allclose(result, (x_ + 1)[index:].softmax(1), atol=1e-6)


def lookup() -> Graph:
    builder = Builder("lookup")
    table = builder.input("table", TensorType(DType.F32, (4, 3)), InputSpec((3, 1)))
    index = builder.input("index", TensorType(DType.I64, (2,)), InputSpec((1,)))
    doubled = fuse(builder, (table,), double)
    rows = fuse(builder, (doubled, index), lambda b, t, i: b.emit(ops.IndexSelect(t, i, 0)))
    return builder.build((rows,))


def test_a_check_that_fails_raises_and_the_next_call_works() -> None:
    pool = BlockPool()
    run = build(compiled(lookup()), call_of, pool=pool, native=Interpreter())
    table = torch.randn(4, 3)
    good = run([table, torch.tensor([0, 3])])[0]
    assert torch.equal(good, (table * 2)[[0, 3]])
    before = pool.idle_bytes
    for bad in ([0, 4], [-5, 0]):
        with pytest.raises(IndexError):
            run([table, torch.tensor(bad)])
    assert pool.idle_bytes == before
    assert torch.equal(run([table, torch.tensor([0, 3])])[0], good)


def three_kernels() -> Graph:
    builder = Builder("three")
    value = builder.input("x", MATRIX, ROWS)
    for kind in (ops.Tanh, ops.Exp, ops.Sin):
        value = fuse(builder, (value,), lambda b, p, kind=kind: b.emit(kind(p)))
    return builder.build((value,))


def test_a_kernel_that_does_not_build_runs_through_torch() -> None:
    def fails(kernel: Kernel) -> bool:
        return "exp" in kernel.name

    compiler = Interpreter(fails)
    graph = three_kernels()
    run = build(compiled(graph), call_of, native=compiler)
    assert compiler.attempts == 2
    assert compiler.sizes == [1, 1]
    assert len(run.native.kernels) == 2
    assert [remark.subject for remark in run.native.remarks] == ["kernel"]
    assert "build-failed" in run.native.failures[0]
    check_run(graph, run, inputs_for(graph))


def test_without_any_kernel_everything_runs_through_torch() -> None:
    graph = three_kernels()
    compiler = Interpreter(lambda kernel: True)
    run = build(compiled(graph), call_of, native=compiler)
    assert compiler.attempts == 1
    assert run.native.segments == ()
    check_run(graph, run, inputs_for(graph))


def test_threads() -> None:
    builder = Builder("threads")
    x = builder.input("x", MATRIX, ROWS)
    value = x
    for _ in range(4):
        value = fuse(builder, (value,), softmax)
        value = builder.emit(ops.CumulativeSum(value, 1))
    graph = builder.build((value,))
    run, _ = native(graph)
    inputs = [torch.randn(6, 8) for _ in range(4)]
    expected = [run([x])[0] for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not torch.equal(run([inputs[index]])[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recursion() -> None:
    builder = Builder("outer")
    x = builder.input("x", MATRIX, ROWS)
    doubled = fuse(builder, (x,), double)
    inner = call(builder, "recurse", doubled)
    result = fuse(builder, (inner, doubled), lambda b, i, d: b.emit(ops.Add(i, d)))
    depth = [3]

    def recurse(tensor: torch.Tensor) -> torch.Tensor:
        if depth[0] == 0:
            return tensor.clone()
        depth[0] -= 1
        return run([tensor])[0]

    functions = with_functions({"python.recurse": recurse})
    run = build(compiled(builder.build((result,))), functions, native=Interpreter())

    def reference(tensor: torch.Tensor, levels: int) -> torch.Tensor:
        inner = tensor * 2.0
        return (inner.clone() if levels == 0 else reference(inner, levels - 1)) + inner

    given_ = torch.randn(6, 8)
    assert torch.equal(run([given_])[0], reference(given_, 3))


def test_channels_last() -> None:
    """Results lie as the operand from which they come, as in eager."""
    builder = Builder("images")
    type_ = TensorType(DType.F32, (2, 3, 4, 5))
    strides = (60, 1, 15, 3)
    x = builder.input("x", type_, InputSpec(strides))

    def body(b: Builder, p: Value) -> tuple[Value, ...]:
        power = b.emit(ops.Exp(p))
        return power, b.emit(ops.Sum(power, (1,), True)), b.emit(ops.Add(power, 1.0))

    results = fuse(builder, (x,), body, 3)
    graph = builder.build(results)
    program = compiled(graph)
    found = [program.strides(result) for result in results]
    assert found == [strides, (20, 20, 5, 1), strides]
    run, _ = native(graph)
    check_run(graph, run, inputs_for(graph))


def test_torch_writes_over_what_was_computed_natively() -> None:
    """The strides of dimensions of size 1 differ, in which torch sees a partial overlap."""
    builder = Builder("column")
    x = builder.input("x", TensorType(DType.F32, (5, 1)), InputSpec((1, 1)))
    doubled = fuse(builder, (x,), double)
    part = builder.emit(ops.Slice(x, 1, 0, 1, 2))
    larger = builder.emit(ops.Maximum(part, doubled))
    graph = builder.build((fuse(builder, (larger,), double),))
    assert isinstance(compiled(graph).placements[larger], InPlace)
    run, compiler = native(graph)
    assert compiler.sizes == [1, 1]
    check_run(graph, run, inputs_for(graph))


@pytest.mark.parametrize("saved", [False, True])
def test_operands_are_computed_where_results_are_kept(saved: bool) -> None:
    builder = Builder("kept")
    x = builder.input("x", MATRIX, ROWS)
    product = builder.emit(ops.Matmul(x, builder.emit(ops.Permute(x, (1, 0)))))
    shaped = builder.emit(ops.Reshape(product, (1, 6, 6)))
    result = fuse(builder, (shaped,), softmax)
    graph = builder.build((result,), (OutputSpec((36, 6, 1), saved=saved),))
    program = compiled(graph)
    assert program.placements[product].word == ("saved" if saved else "fresh")
    assert isinstance(program.placements[result], InPlace)
    run, _ = native(graph)
    kept = [check_run(graph, run, inputs_for(graph, seed))[0] for seed in range(3)]
    assert len({tensor.data_ptr() for tensor in kept}) == 3
    assert not any(tensor._is_view() for tensor in kept)


def test_an_operand_in_larger_memory_stays_in_the_arena() -> None:
    builder = Builder("part")
    x = builder.input("x", MATRIX, ROWS)
    product = builder.emit(ops.Matmul(x, builder.emit(ops.Permute(x, (1, 0)))))
    part = builder.emit(ops.Slice(product, 0, 2, 4))
    graph = builder.build((fuse(builder, (part,), softmax),))
    program = compiled(graph)
    assert program.placements[product].word == "arena"
    run, _ = native(graph)
    (result,) = check_run(graph, run, inputs_for(graph))
    assert result.untyped_storage().nbytes() == 2 * 6 * 4
