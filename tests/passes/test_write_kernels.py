"""Writes into parts of tensors as kernels: what they write, and what they refuse."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.backends.reference.kernels import run_kernel
from lynx.ir import parse_graph, parse_kernel, print_kernel, verify_kernel
from lynx.ir.core import Graph
from lynx.ir.kernel import Kernel, Load, Store
from lynx.ir.ops.fusion import Fused
from lynx.ir.overwriting import can_overwrite
from lynx.ir.program import extent
from lynx.passes import Fuse
from lynx.passes.fusion import kernel_of, why_not
from lynx.passes.kernel_reads import reads_in_step
from tests.backends.c.running import run as run_in_c
from tests.passes.test_fuse import fused, generating, groups
from tests.tools.fused import values_by_kernels

Run = Callable[[Kernel, dict[str, torch.Tensor]], None]


def in_c(kernel: Kernel, memory: dict[str, torch.Tensor]) -> None:
    run_in_c(kernel, memory, {})


RUNS: dict[str, Run] = {"interpreter": run_kernel, "c": in_c}

HEAD = "graph @f(%x: f32[5, 6, 8], %i: i64[{n}], %j: i64[{n}], %v: f32[{v}]) {{"

WRITES = {
    "index_copy": ("%0 = index_copy %x, %i, %v {dim = 1} : f32[5, 6, 8]", 4, "5, 4, 8"),
    "index_copy of one": ("%0 = index_copy %x, %i, %v {dim = 2} : f32[5, 6, 8]", 1, "5, 6, 1"),
    "index_add": ("%0 = index_add %x, %i, %v {dim = -2} : f32[5, 6, 8]", 7, "5, 7, 8"),
    "index_add scaled": (
        "%0 = index_add %x, %i, %v {dim = 0, alpha = -2.5} : f32[5, 6, 8]", 3, "3, 6, 8"
    ),
    "index_fill": ("%0 = index_fill %x, %j, 0.5 {dim = 1} : f32[5, 6, 8]", 3, "1"),
    "index_put": ("%0 = index_put %x, [%j], %v : f32[5, 6, 8]", 7, "7, 1, 8"),
    "index_put of two": ("%0 = index_put %x, [none, %j, %i], %v : f32[5, 6, 8]", 6, "5, 6"),
    "index_put apart": ("%0 = index_put %x, [%j, none, %i], %v : f32[5, 6, 8]", 6, "6, 1"),
    "index_put adding": (
        "%0 = index_put %x, [none, %j, none], %v {accumulate = true} : f32[5, 6, 8]", 9, "5, 9, 8"
    ),
    "slice_scatter": (
        "%0 = slice_scatter %x, %v {dim = 2, start = 1, stop = 7, step = 2, in_place = true}"
        " : f32[5, 6, 8]", 1, "5, 6, 3"
    ),
}  # fmt: skip
"""Ops, the number of their indices, and the shape of what they write."""


def drawn(graph: Graph, seed: int) -> list[torch.Tensor]:
    """Return inputs: `i` counts from the front, `j` from the end too."""
    torch.manual_seed(seed)
    count = graph.inputs[1].shape[0]
    assert isinstance(count, int)
    i, j = torch.randint(0, 5, (count,)), torch.randint(-5, 5, (count,))
    return [torch.randn(5, 6, 8), i, j, torch.randn(*map(int, graph.inputs[3].shape))]


def kernel_in(graph: Graph, strides: tuple[int, ...], *, in_place: bool) -> tuple[Fused, Kernel]:
    (op,) = (op for op in graph.ops if isinstance(op, Fused))
    inputs = [strides if v.shape == (5, 6, 8) else torch.empty(v.shape).stride() for v in op.inputs]
    over = {0: op.inputs.index(graph.inputs[0])} if in_place else {}
    kernel = kernel_of(op, inputs, [strides], over)
    verify_kernel(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    return op, kernel


def memory_of(op: Fused, graph: Graph, values: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    given = dict(zip(graph.inputs, values, strict=True))
    return {f"x{n}": flat(given[value]) for n, value in enumerate(op.inputs)}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(tensor, (int(extent(tuple(tensor.shape), tensor.stride())),), (1,))


@pytest.mark.parametrize("where", RUNS)
@pytest.mark.parametrize("key", WRITES)
def test_kernels_write_what_ops_do(key: str, where: str) -> None:
    body, count, values = WRITES[key]
    graph = fused(HEAD.format(n=count, v=values) + f"\n{body}\nreturn %0\n}}")
    op = next(op for op in graph.ops if isinstance(op, Fused))
    assert can_overwrite(op, op.results[0], graph.inputs[0])
    for seed, order in enumerate(((0, 1, 2), (2, 0, 1), (1, 2, 0))):
        inputs = drawn(graph, seed)
        x = torch.empty([inputs[0].shape[n] for n in order])
        x = x.permute([order.index(n) for n in range(3)]).copy_(inputs[0])
        (wanted,), _ = evaluate(graph, inputs)
        for in_place in (True, False):
            laid = torch.empty_strided(x.shape, x.stride()).copy_(x)
            op, kernel = kernel_in(graph, x.stride(), in_place=in_place)
            memory = memory_of(op, graph, [laid, *inputs[1:]])
            result = laid if in_place else torch.empty_strided(x.shape, x.stride())
            memory |= {"y0": flat(result)}
            RUNS[where](kernel, {b.name: memory[b.name] for b in kernel.buffers})
            torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-6)
            if not in_place:
                assert torch.equal(laid, x)
            assert reads_in_step(kernel, ["x0"]) or not in_place


@pytest.mark.parametrize("where", RUNS)
@pytest.mark.parametrize("kind", ["scatter", "scatter_add", "scatter_reduce"])
def test_scatters(kind: str, where: str) -> None:
    more = ', reduction = "sum"' if kind == "scatter_reduce" else ""
    graph = fused(
        f"""graph @f(%x: f32[4, 9, 7], %i: i64[4, 6, 5], %j: i64[1], %v: f32[4, 8, 6]) {{
          %0 = {kind} %x, %i, %v {{dim = 1{more}}} : f32[4, 9, 7]
          return %0
        }}"""
    )
    for seed in range(3):
        torch.manual_seed(seed)
        x, i, v = torch.randn(4, 9, 7), torch.randint(0, 9, (4, 6, 5)), torch.randn(4, 8, 6)
        (wanted,), _ = evaluate(graph, [x, i, torch.zeros(1, dtype=torch.int64), v])
        (op,) = graph.ops
        assert isinstance(op, Fused)
        strides = [tuple(torch.empty(value.shape).stride()) for value in op.inputs]
        kernel = kernel_of(op, strides, [x.stride()], {0: op.inputs.index(graph.inputs[0])})
        verify_kernel(kernel)
        result = x.clone()
        values = {"x": result, "i": i, "v": v}
        memory = {f"x{n}": values[str(u.name)].view(-1) for n, u in enumerate(op.inputs)}
        RUNS[where](kernel, {b.name: memory[b.name] for b in kernel.buffers})
        torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("where", RUNS)
def test_gradients_of_a_table(where: str) -> None:
    graph = fused(
        """graph @f(%g: f32[3, 5, 70], %i: i32[3, 5]) {
          %0 = exp %g : f32[3, 5, 70]
          %1 = embedding_backward %0, %i {rows = 11, padding = 2} : f32[11, 70]
          return %1
        }"""
    )
    assert groups(graph) == [["exp", "embedding_backward"]]
    g, i = torch.randn(3, 5, 70), torch.randint(0, 11, (3, 5), dtype=torch.int32)
    i[0, :2] = 2
    (wanted,), _ = evaluate(graph, [g, i])
    (op,) = graph.ops
    assert isinstance(op, Fused)
    kernel = kernel_of(op, [g.stride(), i.stride()], [(70, 1)], {})
    result = torch.full((11, 70), 7.0)
    RUNS[where](kernel, {"x0": g.view(-1), "x1": i.view(-1), "y0": result.view(-1)})
    torch.testing.assert_close(result, wanted)
    assert torch.equal(result[2], torch.zeros(70))


@pytest.mark.parametrize("where", RUNS)
@pytest.mark.parametrize("bad", [-1, 6, 2**40])
def test_a_wrong_index_raises_and_writes_nothing_there(bad: int, where: str) -> None:
    graph = fused(
        """graph @f(%x: f32[6, 3], %i: i64[3], %v: f32[3, 3]) {
          %0 = index_copy %x, %i, %v {dim = 0} : f32[6, 3]
          return %0
        }"""
    )
    (op,) = graph.ops
    assert isinstance(op, Fused)
    kernel = kernel_of(op, [(3, 1), (1,), (3, 1)], [(3, 1)], {0: 0})
    memory = torch.full((6 * 3 + 200,), 5.0)
    x = memory[100:118]
    buffers = {"x0": x, "x1": torch.tensor([1, bad, 2]), "x2": torch.ones(9)}
    with pytest.raises(IndexError):
        RUNS[where](kernel, buffers)
    x[3:9] = 5.0
    assert torch.equal(memory, torch.full_like(memory, 5.0))


def kernel_for(body: str, over: dict[int, int]) -> tuple[Fused, Kernel]:
    graph = parse_graph(body)
    (op,) = graph.ops
    assert isinstance(op, Fused)
    strides = [torch.empty([int(n) for n in v.shape]).stride() for v in (*op.inputs, *op.results)]
    count = len(op.inputs)
    return op, kernel_of(op, strides[:count], strides[count:], over)


def in_place_ops(region: str, types: str = "f32[6, 4]", results: str = "%0") -> str:
    return f"""graph @f(%x: f32[6, 4], %i: i64[2], %v: f32[2, 4], %r: f32[4]) {{
      {results} = fused(%x = %x, %i = %i, %v = %v, %r = %r) {{
        {region}
      }} : {types}
      return {results}
    }}"""


OVERWRITES = {
    "reads nothing": """
        %0 = index_copy %x, %i, %v {dim = 0} : f32[6, 4]
        yield %0""",
    "reads the part that it writes": """
        %0 = slice %x {dim = 0, start = 2, stop = 4} : f32[2, 4]
        %1 = add %0, %v : f32[2, 4]
        %2 = slice_scatter %x, %1 {dim = 0, start = 2, stop = 4, in_place = true} : f32[6, 4]
        yield %2""",
    "reads the index that it writes": """
        %0 = select %x {dim = 0, index = 3} : f32[4]
        %1 = mul %0, %r : f32[4]
        %2 = unsqueeze %1 {dim = 0} : f32[1, 4]
        %3 = slice_scatter %x, %2 {dim = 0, start = 3, stop = 4, in_place = true} : f32[6, 4]
        yield %3""",
    "writes a part of a part": """
        %0 = slice %x {dim = 1, start = 1, stop = 4} : f32[6, 3]
        %1 = index_fill %0, %i, 1.0 {dim = 0} : f32[6, 3]
        %2 = slice_scatter %x, %1 {dim = 1, start = 1, stop = 4, in_place = true} : f32[6, 4]
        yield %2""",
}

NEAR_MISSES = {
    "reads another part": """
        %0 = slice %x {dim = 0, start = 3, stop = 5} : f32[2, 4]
        %1 = add %0, %v : f32[2, 4]
        %2 = slice_scatter %x, %1 {dim = 0, start = 2, stop = 4, in_place = true} : f32[6, 4]
        yield %2""",
    "reads the part in another order": """
        %0 = slice %x {dim = 0, start = 2, stop = 4} : f32[2, 4]
        %1 = flip %0 {dims = [0]} : f32[2, 4]
        %2 = slice_scatter %x, %1 {dim = 0, start = 2, stop = 4, in_place = true} : f32[6, 4]
        yield %2""",
    "reads what it may write twice": """
        %0 = index_select %x, %i {dim = 0} : f32[2, 4]
        %1 = add %0, %v : f32[2, 4]
        %2 = index_copy %x, %i, %1 {dim = 0} : f32[6, 4]
        yield %2""",
    "reads all of it": """
        %0 = mul %x, %x : f32[6, 4]
        %1 = slice %0 {dim = 0, start = 2, stop = 4} : f32[2, 4]
        %2 = slice_scatter %x, %1 {dim = 0, start = 2, stop = 4, in_place = true} : f32[6, 4]
        yield %2""",
    "puts a part back elsewhere": """
        %0 = slice %x {dim = 1, start = 1, stop = 4} : f32[6, 3]
        %1 = index_fill %0, %i, 1.0 {dim = 0} : f32[6, 3]
        %2 = slice_scatter %x, %1 {dim = 1, start = 0, stop = 3, in_place = true} : f32[6, 4]
        yield %2""",
}


@pytest.mark.parametrize("key", OVERWRITES)
def test_what_may_be_written_over(key: str) -> None:
    op, kernel = kernel_for(in_place_ops(OVERWRITES[key]), {0: 0})
    assert can_overwrite(op, op.results[0], op.inputs[0])
    assert not can_overwrite(op, op.results[0], op.inputs[2])
    verify_kernel(kernel)
    assert reads_in_step(kernel, ["x0"])
    stores = [i for i in kernel.body if isinstance(i, Store)]
    loads = [i for i in kernel.body if isinstance(i, Load) and i.buffer.name == "x0"]
    assert len(stores) == 1
    assert len(loads) == ("reads the" in key)


@pytest.mark.parametrize("key", NEAR_MISSES)
def test_what_must_not_be_written_over(key: str) -> None:
    body = in_place_ops(NEAR_MISSES[key])
    op = parse_graph(body).ops[0]
    assert not can_overwrite(op, op.results[0], op.operands[0])


def test_what_is_yielded_of_the_old_tensor_keeps_it() -> None:
    region = """
        %0 = slice %x {dim = 1, start = 1, stop = 4} : f32[6, 3]
        %1 = index_fill %0, %i, 1.0 {dim = 0} : f32[6, 3]
        %2 = slice_scatter %x, %1 {dim = 1, start = 1, stop = 4, in_place = true} : f32[6, 4]
        yield %2, %1"""
    (op,) = parse_graph(in_place_ops(region, "f32[6, 4], f32[6, 3]", "%0, %1")).ops
    assert not can_overwrite(op, op.results[0], op.operands[0])


REFUSED = {
    "scatter_add %x, %i, %v {dim = 0} : bf16[4, 8]": "bf16",
    "index_put %x, [%i], %v {accumulate = true} : bool[4, 8, 8]": "bool",
    'scatter_reduce %x, %i, %v {dim = 0, reduction = "amax"} : f32[4, 8]': "f32",
    "index_add %x, %k, %v {dim = 0, alpha = 0.5} : bf16[4, 8]": "bf16",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_kernels_do_not_write(text: str) -> None:
    dtype = REFUSED[text]
    x = "4, 8, 8" if "index_put" in text else "4, 8"
    v = "3, 8, 8, 8" if "index_put" in text else "3, 8"
    graph = parse_graph(
        f"graph @f(%x: {dtype}[{x}], %i: i64[3, 8], %k: i64[3], %v: {dtype}[{v}]) {{\n"
        f"%0 = {text}\nreturn %0\n}}"
    )
    (op,) = graph.ops
    assert why_not(op)


def test_frequencies_are_left_to_torch() -> None:
    graph = parse_graph(
        """graph @f(%g: f32[3, 8], %i: i64[3]) {
          %0 = embedding_backward %g, %i {rows = 4, by_frequency = true} : f32[4, 8]
          return %0
        }"""
    )
    assert why_not(graph.ops[0]) == "divides by how often each row was looked up"


def test_a_producer_is_written_at_once() -> None:
    graph = fused(
        """graph @f(%x: f32[2, 16, 8], %i: i64[1], %v: f32[2, 1, 8]) {
          %0 = exp %v : f32[2, 1, 8]
          %1 = index_copy %x, %i, %0 {dim = 1} : f32[2, 16, 8]
          %2 = add %1, 1.0 : f32[2, 16, 8]
          return %2
        }"""
    )
    assert groups(graph) == [["exp", "index_copy"], ["add"]]


def test_what_is_read_is_written_by_another_kernel() -> None:
    graph = fused(
        """graph @f(%x: f32[16, 8], %i: i64[2], %v: f32[2, 8]) {
          %0 = index %x, [%i] : f32[2, 8]
          %1 = add %0, %v : f32[2, 8]
          %2 = index_put %x, [%i], %1 : f32[16, 8]
          return %2
        }"""
    )
    assert groups(graph) == [["index", "add"], ["index_put"]]


def test_a_single_row_is_written_in_parallel() -> None:
    """One place cannot be written twice, so the order does not matter."""
    for count, combine in ((1, "set"), (2, "last")):
        graph = fused(
            f"""graph @f(%x: f32[2, 16, 8], %i: i64[{count}], %v: f32[2, {count}, 8]) {{
              %0 = index_copy %x, %i, %v {{dim = 1}} : f32[2, 16, 8]
              return %0
            }}"""
        )
        (op,) = graph.ops
        assert isinstance(op, Fused)
        kernel = kernel_of(op, [(128, 8, 1), (1,), (8 * count, 8, 1)], [(128, 8, 1)], {0: 0})
        assert [i.combine for i in kernel.body if isinstance(i, Store)] == [combine]


def random_writes(seed: int) -> tuple[str, list[Any]]:
    """Return a graph of random writes after each other, and inputs."""
    rng = random.Random(seed)
    lines, last, count = [], "%x", 0
    for _ in range(rng.randint(1, 4)):
        n = rng.choice((1, 3))
        kind = rng.choice(("index_copy", "index_add", "index_put", "slice_scatter"))
        index, values = ("%i", "%v") if n == 3 else ("%j", "%w")
        part = f"{{dim = 1, start = {(start := rng.randint(0, 4))}, stop = {start + n}}}"
        end = {
            "index_copy": f"{last}, {index}, {values} {{dim = 1}}",
            "index_add": f"{last}, {index}, {values} {{dim = 1}}",
            "index_put": f"{last}, [none, {index}], {values} {{accumulate = true}}",
            "slice_scatter": f"{last}, {values} {part}",
        }[kind]
        lines.append(f"%{count} = {kind} {end} : f32[2, 7, 5]")
        last = f"%{count}"
        count += 1
        if rng.random() < 0.4:
            lines.append(f"%{count} = mul {last}, 2.0 : f32[2, 7, 5]")
            last = f"%{count}"
            count += 1
    text = (
        "graph @f(%x: f32[2, 7, 5], %i: i64[3], %j: i64[1], %v: f32[2, 3, 5], %w: f32[2, 1, 5]) {\n"
        + "\n".join(lines)
        + f"\nreturn {last}\n}}"
    )
    i, j = torch.randint(0, 7, (3,)), torch.randint(0, 7, (1,))
    return text, [torch.randn(2, 7, 5), i, j, torch.randn(2, 3, 5), torch.randn(2, 1, 5)]


@pytest.mark.parametrize("seed", range(25))
def test_random_writes(seed: int) -> None:
    torch.manual_seed(seed)
    text, inputs = random_writes(seed)
    (wanted,), _ = evaluate(parse_graph(text), inputs)
    (found,) = values_by_kernels(fused(text), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


ORDERLY = {
    "index_copy %x, %i, %v {dim = 0}": False,
    "index_copy %x, %one, %w {dim = 0}": True,
    "index_add %x, %i, %v {dim = 0}": True,
    "index_put %x, [%i], %v {accumulate = true}": True,
    "index_put %x, [%i], %v": False,
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("text", ORDERLY)
def test_a_gpu_writes_what_needs_no_order(text: str, dtype: str) -> None:
    graph = parse_graph(
        f"""graph @f(%x: {dtype}[8, 4] on cuda:0, %i: i64[3] on cuda:0,
            %v: {dtype}[3, 4] on cuda:0, %one: i64[1] on cuda:0,
            %w: {dtype}[1, 4] on cuda:0) {{
          %0 = {text} : {dtype}[8, 4] on cuda:0
          return %0
        }}"""
    )
    context = generating(graph)
    context.target = dataclasses.replace(context.target, device="cuda")
    result = Fuse().run(graph, context)
    rounds = dtype == "bf16" and ("add" in text or "accumulate" in text)
    assert isinstance(result.ops[0], Fused) == (ORDERLY[text] and not rounds)
