"""Programs give what the reference gives, whatever else goes on in the process."""

from __future__ import annotations

import dataclasses
import gc
import random
import threading
import weakref
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
    Location,
    Mutation,
    OutputSpec,
    ScalarType,
    SymbolRange,
    TensorType,
    ops,
    symbol,
)
from lynx.ir.call import Call
from lynx.ir.ops.aten import Aten
from lynx.runtime import BlockPool, Executable, build
from tests.runtime.programs import check_run, compiled, executable, memory, same, with_border
from tests.strategies import graphs, inputs_for

MATRIX = TensorType(DType.F32, (64, 48))


@given(
    graph=graphs(max_ops=20),
    seed=st.integers(0, 2**16),
    flags=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=150, deadline=None)
def test_random_programs(graph: Graph, seed: int, flags: tuple[bool, bool]) -> None:
    graph = with_border(graph, random.Random(seed))
    run = executable(graph, reinplace=flags[0], plan=flags[1])
    first = check_run(graph, run, inputs_for(graph, seed))
    kept = [None if output is None else output.clone() for output in first]
    check_run(graph, run, inputs_for(graph, seed + 1))
    check_run(graph, run, inputs_for(graph, seed + 2))
    for output, before in zip(first, kept, strict=True):
        assert same(output, before), "a later call changed an output"


def test_what_is_written_in_place_has_the_strides_that_are_promised() -> None:
    """Those of dimensions of size 1 too: the operand's are those that `unsqueeze` gives."""
    builder = Builder("lifted")
    x = builder.input("x", TensorType(DType.F32, (2,)), InputSpec((1,)))
    lifted = builder.emit(ops.Unsqueeze(builder.emit(ops.Exp(x)), 0))
    written = builder.emit(ops.Exp(lifted))
    after = builder.emit(ops.Exp(written))
    graph = builder.build((after, written))
    specs = (OutputSpec((2, 1), False, False, -1), OutputSpec((1, 1), True, True, -1))
    graph = dataclasses.replace(graph, output_specs=specs)
    check_run(graph, executable(graph, reinplace=True, plan=False), inputs_for(graph, 0))


def chain(length: int = 12, **spec: Any) -> Graph:
    """Return a graph of elementwise ops and products whose temporaries share an arena."""
    builder = Builder("chain")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    value = x
    for _ in range(length):
        row = builder.emit(ops.Sum(builder.emit(ops.Tanh(value)), (1,), True))
        value = builder.emit(ops.Add(value, builder.emit(ops.Multiply(row, 0.01))))
    return builder.build((value,), (OutputSpec(**spec),))


def test_threads_do_not_share_memory() -> None:
    graph = chain()
    pool = BlockPool()
    run = build(compiled(graph), call_of, pool=pool)
    inputs = [torch.randn(64, 48, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    expected = [run([x])[0] for x in inputs]
    wrong: list[int] = []
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        barrier.wait()
        for _ in range(60):
            if not torch.equal(run([inputs[index]])[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.idle_bytes <= 4 * max(1, run.memory_report.peak)


def with_functions(functions: dict[str, Any]) -> Any:
    """Return the rules of the reference with Python functions under some names."""

    def rule(op: Any) -> Any:
        function = functions.get(getattr(op, "target", ""))
        return call_of(op) if function is None else Call(function, op.arguments)

    return rule


def test_recursion() -> None:
    builder = Builder("outer")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    doubled = builder.emit(ops.Multiply(builder.emit(ops.Tanh(x)), 2.0))
    depth = [3]

    def recurse(tensor: torch.Tensor) -> torch.Tensor:
        if depth[0] == 0:
            return tensor.clone()
        depth[0] -= 1
        return run([tensor])[0]

    op = builder.add(Aten("python.recurse", (doubled,), (), (MATRIX,)))
    result = builder.emit(ops.Add(op.out, doubled))
    graph = builder.build((result,))
    run = build(compiled(graph), with_functions({"python.recurse": recurse}), pool=BlockPool())

    def reference(tensor: torch.Tensor, levels: int) -> torch.Tensor:
        inner = tensor.tanh() * 2.0
        return (inner.clone() if levels == 0 else reference(inner, levels - 1)) + inner

    given_ = torch.randn(64, 48)
    assert torch.equal(run([given_])[0], reference(given_, 3))


def saving() -> Graph:
    """Return a graph that keeps two values for backward, one of them as a view."""
    builder = Builder("saving")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    kept = builder.emit(ops.Exp(x))
    turned = builder.emit(ops.Permute(builder.emit(ops.Tanh(x)), (1, 0)))
    result = builder.emit(ops.Sum(builder.emit(ops.Add(kept, 1.0)), (0, 1), False))
    specs = (OutputSpec(), OutputSpec(saved=True), OutputSpec(saved=True))
    return builder.build((result, kept, turned), specs)


def test_saved_values_stay_while_anyone_needs_them() -> None:
    run = executable(saving())
    live: list[tuple[torch.Tensor, Any, Any]] = []
    for index in range(12):
        x = torch.randn(64, 48)
        _, kept, turned = run([x])
        live.append((x, kept, turned))
        if index % 3 == 2:
            live.pop(random.Random(index).randrange(len(live)))
        for given_, exp, tanh in live:
            assert torch.equal(exp, given_.exp())
            assert torch.equal(tanh, given_.tanh().t())
    memories = [memory(kept) for _, kept, _ in live]
    assert len(set(memories)) == len(memories)


def test_saved_memory_is_used_again() -> None:
    run = executable(saving())
    outputs = run([torch.randn(64, 48)])
    where = memory(outputs[1])
    view = outputs[2][3]
    del outputs
    assert memory(run([torch.randn(64, 48)])[1]) != where, "a view of it was still alive"
    del view
    seen = {memory(run([torch.randn(64, 48)])[1]) for _ in range(4)}
    assert len(seen) <= 2


def test_saved_values_have_their_own_versions() -> None:
    run = executable(saving())
    _, kept, turned = run([torch.randn(64, 48)])
    version = turned._version
    kept.add_(1)
    assert turned._version == version


def symbolic() -> Graph:
    """Return a graph over a batch of unknown size, with views, a copying reshape and a number."""
    n = symbol("n")
    builder = Builder("symbolic")
    size = builder.input("size", ScalarType("int", n))
    x = builder.input("x", TensorType(DType.F32, (n, 6, 4)), InputSpec((24, 4, 1)))
    a = builder.emit(ops.Exp(x))
    turned = builder.emit(ops.Permute(a, (1, 0, 2)))
    flat = builder.emit(ops.Reshape(turned, (6, n * 4)))
    part = builder.emit(ops.Slice(flat, 1, n, 2 * n))
    scaled = builder.emit(ops.Multiply(part, 0.5))
    total = builder.emit(ops.Sum(scaled, (0,), False))
    outputs = (scaled, total, flat, size)
    specs = (OutputSpec(), OutputSpec((1,)), OutputSpec(saved=True), OutputSpec())
    return builder.build(outputs, specs, symbols=(SymbolRange("n", 1, None),))


def test_symbolic_sizes() -> None:
    graph = symbolic()
    run = executable(graph)
    sizes = [3, 5, 3, 7, 64, 2, 63, 1, *range(1, 30), 3]
    kept = []
    for index, n in enumerate(sizes):
        x = torch.randn(n, 6, 4, generator=torch.Generator().manual_seed(index))
        outputs = run([n, x])
        kept.append((x, outputs))
    for x, (scaled, total, flat, n) in kept:
        wanted = x.exp().permute(1, 0, 2).reshape(6, -1)
        assert n == x.shape[0]
        assert torch.equal(flat, wanted)
        assert torch.equal(scaled, wanted[:, n : 2 * n] * 0.5)
        assert torch.equal(total, scaled.sum(0))


def test_a_symbol_that_an_op_tells() -> None:
    u = symbol("u")
    builder = Builder("nonzero")
    x = builder.input("x", TensorType(DType.F32, (8,)))
    found = builder.add(
        Aten("aten.nonzero.default", (x,), (), (TensorType(DType.I64, (u, 1)),), random=False)
    ).out
    doubled = builder.emit(ops.Multiply(builder.emit(ops.Reshape(found, (u,))), 2))
    graph = builder.build((doubled,), symbols=(SymbolRange("u", 0, 8),))
    run = executable(graph)
    for mask in ([0, 1, 0, 1, 1, 0, 0, 1], [0] * 8, [1] * 8):
        x_ = torch.tensor(mask, dtype=torch.float32)
        assert torch.equal(run([x_])[0], x_.nonzero().reshape(-1) * 2)


def test_an_error_passes_through_and_leaves_the_program_usable() -> None:
    builder = Builder("lookup")
    table = builder.input("table", TensorType(DType.F32, (4, 3)), InputSpec((3, 1)))
    index = builder.input("index", TensorType(DType.I64, (2,)), InputSpec((1,)))
    builder.loc = Location("model.py", 7)
    doubled = builder.emit(ops.Multiply(table, 2.0))
    rows = builder.add(
        Aten("aten.index_select.default", (doubled, 0, index), (), (TensorType(DType.F32, (2, 3)),))
    ).out
    graph = builder.build((builder.emit(ops.Exp(rows)),))
    pool = BlockPool()
    run = build(compiled(graph), call_of, pool=pool)
    weights = torch.randn(4, 3)
    good = run([weights, torch.tensor([0, 3])])[0]
    before = pool.idle_bytes
    with pytest.raises(IndexError, match="index out of range"):
        run([weights, torch.tensor([0, 4])])
    assert pool.idle_bytes == before
    assert torch.equal(run([weights, torch.tensor([0, 3])])[0], good)
    assert "# model.py:7" in run.source


def test_inputs_that_require_grad() -> None:
    graph = chain()
    run = executable(graph)
    x = torch.randn(64, 48, requires_grad=True)
    (result,) = run([x])
    assert not result.requires_grad
    with torch.inference_mode():
        assert torch.equal(run([x.detach()])[0], result)
    assert torch.equal(run([x])[0], result)


def test_tensors_made_in_inference_mode_can_be_written_later() -> None:
    run = build(compiled(chain()), call_of, pool=BlockPool())
    x = torch.randn(64, 48)
    with torch.inference_mode():
        first = run([x])[0].clone()
    assert torch.equal(run([x])[0], first)


def test_arguments_are_freed_as_early_as_possible() -> None:
    builder = Builder("free")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    given_ = torch.randn(64, 48)
    reference = weakref.ref(given_)
    seen: list[bool] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(reference() is None)
        return tensor.clone()

    total = builder.emit(ops.Exp(x))
    op = builder.add(Aten("python.look", (total,), (), (MATRIX,)))
    run = build(
        compiled(builder.build((op.out,))), with_functions({"python.look": look}), pool=BlockPool()
    )
    args = [given_]
    del given_
    run(args)
    assert seen == [True]


def test_programs_share_memory_one_after_the_other() -> None:
    pool = BlockPool()
    large = build(compiled(chain(12)), call_of, pool=pool)
    small = build(compiled(chain(2)), call_of, pool=pool)
    x = torch.randn(64, 48)
    large([x])
    size = pool.idle_bytes
    expected = small([x])[0].clone()
    large([x])
    assert torch.equal(small([x])[0], expected)
    assert pool.idle_bytes == size
    pool.release()
    assert pool.idle_bytes == 0
    assert torch.equal(small([x])[0], expected)


def test_a_program_that_is_gone_leaves_nothing_in_the_pool() -> None:
    pool = BlockPool()
    keep = build(compiled(chain(3)), call_of, pool=pool)
    gone: Executable | None = build(compiled(chain(2)), call_of, pool=pool)
    assert gone is not None
    for run in (keep, gone):
        run([torch.randn(64, 48)])
    (block,) = next(iter(pool._idle.values()))
    assert len(block.views) == 2
    del gone, run
    gc.collect()
    assert len(block.views) == 1


def test_swapped_inputs() -> None:
    builder = Builder("swap")
    a = builder.input("a", MATRIX, InputSpec((48, 1)))
    b = builder.input("b", MATRIX, InputSpec((48, 1)))
    graph = builder.build((a,), mutations=(Mutation(a, b), Mutation(b, a)))
    run = executable(graph)
    x, y = torch.randn(64, 48), torch.randn(64, 48)
    first, second = x.clone(), y.clone()
    (old,) = run([x, y])
    assert torch.equal(x, second)
    assert torch.equal(y, first)
    assert torch.equal(old, first)


def test_an_effect_may_keep_its_operand() -> None:
    builder = Builder("log")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    log: list[torch.Tensor] = []
    first = builder.emit(ops.Exp(x))
    builder.add(Aten("python.log", (first,), (), (), effect=True))
    second = builder.emit(ops.Tanh(builder.emit(ops.Negate(first))))
    graph = builder.build((second,))
    run = build(compiled(graph), with_functions({"python.log": lambda t: (log.append(t), ())[1]}))
    given_ = [torch.randn(64, 48) for _ in range(3)]
    for x_ in given_:
        run([x_])
    for x_, logged in zip(given_, log, strict=True):
        assert torch.equal(logged, x_.exp())


def test_an_operator_that_returns_its_operand() -> None:
    """Nothing tells that it does; the output must be copied all the same."""
    builder = Builder("identity")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    inner = builder.emit(ops.Exp(x))
    op = builder.add(Aten("python.same", (inner,), (), (MATRIX,)))
    direct = builder.add(Aten("python.same", (x,), (), (MATRIX,)))
    graph = builder.build((op.out, direct.out))
    run = build(compiled(graph), with_functions({"python.same": lambda t: t}))
    given_ = [torch.randn(64, 48) for _ in range(3)]
    results = [run([x_]) for x_ in given_]
    for x_, (result, copy) in zip(given_, results, strict=True):
        assert torch.equal(result, x_.exp())
        assert torch.equal(copy, x_)
        assert memory(copy) != memory(x_)


def test_strides_that_an_operator_expects() -> None:
    builder = Builder("strides")
    x = builder.input("x", MATRIX, InputSpec((48, 1)))
    inner = builder.emit(ops.Exp(x))
    seen: list[tuple[int, ...]] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.stride())
        return tensor.clone()

    ops_ = [
        builder.add(Aten("python.look", (v,), (), (MATRIX,), operand_strides=((1, 64),)))
        for v in (inner, x)
    ]
    run = build(
        compiled(builder.build(tuple(op.out for op in ops_))),
        with_functions({"python.look": look}),
    )
    x_ = torch.randn(64, 48)
    first, second = run([x_])
    assert seen == [(1, 64)] * 2
    assert torch.equal(first, x_.exp())
    assert torch.equal(second, x_)


@pytest.mark.parametrize("saved", [False, True])
def test_empty_tensors_with_a_symbolic_size(saved: bool) -> None:
    builder = Builder("empty")
    x = builder.input("x", TensorType(DType.F32, (symbol("s0"), 0)), InputSpec((1, 1)))
    empty = builder.emit(ops.Exp(x))
    total = builder.emit(ops.Sum(empty, (1,), False))
    specs = (OutputSpec((1, 1), saved=saved), OutputSpec())
    symbols = (SymbolRange("s0", 0, None),)
    chosen = slice(0, 1) if saved else slice(1, 2)
    graph = builder.build((empty, total)[chosen], specs[chosen], (), symbols)
    run = executable(graph)
    for rows in (3, 0, 5):
        results = run([torch.zeros(rows, 0)])
        assert torch.equal(results[-1], torch.zeros(rows, 0) if saved else torch.zeros(rows))
