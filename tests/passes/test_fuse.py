"""Fusion: what is grouped, that it means the same, and that kernels compute it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lynx.backends.reference.kernels import run_kernel
from lynx.ir import parse_graph, verify
from lynx.ir.core import Graph
from lynx.ir.dims import contiguous_strides
from lynx.ir.kernel import Load
from lynx.ir.ops.fusion import Fused
from lynx.pass_context import pass_context
from lynx.passes import Fuse, PassContext, Target, parse_pipeline
from lynx.passes.fusion import KernelFactory, kernel_of
from tests.passes.values import evaluate_dense
from tests.strategies import graphs, inputs_for
from tests.tools.fused import kernels_of, values_by_kernels

BEFORE = "canonicalize,cse,dce,fold-constants,canonicalize,cse,dce,decompose{all=true},cse,dce"


def generating(graph: Graph) -> PassContext:
    """Return a context for a target for which kernels are generated."""
    context = pass_context(graph)
    context.target = dataclasses.replace(context.target, device="cpu", generates_code=True)
    return context


def fused(text: str) -> Graph:
    graph = parse_graph(text)
    result = Fuse().run(graph, generating(graph))
    verify(result)
    return result


def groups(graph: Graph) -> list[list[str]]:
    """Return the names of the ops in each kernel."""
    return [[part.name for part in op.body.ops] for op in graph.ops if isinstance(op, Fused)]


def assert_close(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        if isinstance(a, torch.Tensor) and a.numel():
            low = a.dtype in (torch.bfloat16, torch.float16)
            rtol, atol = (2e-2, 2e-2) if low else (1e-4, 1e-4)
            torch.testing.assert_close(a, b, equal_nan=True, rtol=rtol, atol=atol)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(max_ops=20))
def test_random_graphs_through_their_kernels(graph: Graph) -> None:
    inputs = inputs_for(graph)
    context = generating(graph)
    plain = parse_pipeline(BEFORE).run(graph, context)
    result = Fuse().run(plain, context)
    verify(result)
    expected = evaluate_dense(plain, inputs)
    assert_close(evaluate_dense(result, inputs), expected)
    assert_close(values_by_kernels(result, inputs), expected)


def test_a_norm_is_one_kernel_with_its_neighbours() -> None:
    graph = fused(
        """graph @f(%x: f32[32, 64], %r: f32[32, 64], %w: f32[64]) {
          %0 = add %x, %r : f32[32, 64]
          %1 = square %0 : f32[32, 64]
          %2 = mean %1 {dims = [1], keepdim = true} : f32[32, 1]
          %3 = add %2, 0.00001 : f32[32, 1]
          %4 = rsqrt %3 : f32[32, 1]
          %5 = mul %0, %4 : f32[32, 64]
          %6 = mul %5, %w : f32[32, 64]
          return %0, %6
        }"""
    )
    assert groups(graph) == [["add", "square", "mean", "add", "rsqrt", "mul", "mul"]]
    ((_, kernel),) = kernels_of(graph)
    assert [axis.size for axis in kernel.axes] == [32, 64]


def test_row_and_column_reductions_share_a_sweep() -> None:
    graph = fused(
        """graph @f(%g: f32[32, 64], %x: f32[32, 64]) {
          %0 = mul %g, %x : f32[32, 64]
          %1 = sum %0 {dims = [1], keepdim = true} : f32[32, 1]
          %2 = sub %0, %1 : f32[32, 64]
          %3 = sum %0 {dims = [0]} : f32[64]
          %4 = sum %g {dims = [0]} : f32[64]
          return %2, %3, %4
        }"""
    )
    assert len(groups(graph)) == 1


def test_what_needs_a_finished_column_sum_is_another_kernel() -> None:
    graph = fused(
        """graph @f(%x: f32[32, 64]) {
          %0 = sum %x {dims = [1], keepdim = true} : f32[32, 1]
          %1 = sub %x, %0 : f32[32, 64]
          %2 = sum %1 {dims = [0], keepdim = true} : f32[1, 64]
          %3 = add %1, %2 : f32[32, 64]
          return %3
        }"""
    )
    assert groups(graph) == [["sum", "sub", "sum"], ["add"]]


def test_an_op_between_two_of_a_group_keeps_them_apart() -> None:
    """Otherwise the kernel would need what depends on its own result."""
    graph = fused(
        """graph @f(%x: f32[8, 8]) {
          %0 = exp %x : f32[8, 8]
          %1 = matmul %0, %0 : f32[8, 8]
          %2 = add %0, %1 : f32[8, 8]
          return %2
        }"""
    )
    assert groups(graph) == [["exp"], ["add"]]
    assert [op.name for op in graph.ops] == ["fused", "matmul", "fused"]


def test_a_transposed_sum_reads_the_other_element() -> None:
    graph = fused(
        """graph @f(%x: f32[6, 6]) {
          %0 = exp %x : f32[6, 6]
          %1 = permute %0 {dims = [1, 0]} : f32[6, 6]
          %2 = add %0, %1 : f32[6, 6]
          return %2
        }"""
    )
    x = torch.randn(6, 6)
    (actual,) = values_by_kernels(graph, [x])
    torch.testing.assert_close(actual, x.exp() + x.exp().T)


def test_masks_from_nothing_are_computed_in_each_kernel() -> None:
    graph = fused(
        """graph @f(%x: f32[8, 8]) {
          %0 = iota 0, 1 {length = 8, dtype = i64} : i64[8]
          %1 = unsqueeze %0 {dim = 1} : i64[8, 1]
          %2 = ge %1, %0 : bool[8, 8]
          %3 = where %2, %x, 0.0 : f32[8, 8]
          %4 = matmul %3, %3 : f32[8, 8]
          %5 = where %2, %4, 0.0 : f32[8, 8]
          return %5
        }"""
    )
    assert [op.name for op in graph.ops] == ["fused", "matmul", "fused"]
    assert all("iota" in names for names in groups(graph))


def test_a_cheap_producer_is_not_written() -> None:
    graph = fused(
        """graph @f(%m: bool[8, 8], %x: f32[8, 8]) {
          %0 = bitwise_not %m : bool[8, 8]
          %1 = where %0, %x, 0.0 : f32[8, 8]
          %2 = matmul %1, %1 : f32[8, 8]
          %3 = where %0, %2, 0.0 : f32[8, 8]
          return %3
        }"""
    )
    assert groups(graph) == [["bitwise_not", "where"], ["bitwise_not", "where"]]


def test_parts_move_into_what_joins_them() -> None:
    graph = fused(
        """graph @f(%x: f32[4, 8], %c: f32[4, 8]) {
          %0 = slice %x {dim = 1, start = 4, stop = 8} : f32[4, 4]
          %1 = neg %0 : f32[4, 4]
          %2 = slice %x {dim = 1, start = 0, stop = 4} : f32[4, 4]
          %3 = concatenate [%1, %2] {dim = 1} : f32[4, 8]
          %4 = mul %3, %c : f32[4, 8]
          return %4
        }"""
    )
    assert len(groups(graph)) == 1
    x, c = torch.randn(4, 8), torch.randn(4, 8)
    (actual,) = values_by_kernels(graph, [x, c])
    torch.testing.assert_close(actual, torch.cat([-x[:, 4:], x[:, :4]], 1) * c)


def test_a_full_reduction_is_not_swept_by_its_consumer() -> None:
    """One row of many elements would leave all threads but one idle."""
    graph = fused(
        """graph @f(%x: f32[65536]) {
          %0 = sum %x {dims = [0]} : f32[]
          %1 = div %x, %0 : f32[65536]
          return %1
        }"""
    )
    assert groups(graph) == [["sum"], ["div"]]


def test_nothing_happens_without_code_generation() -> None:
    graph = parse_graph("graph @f(%x: f32[4]) {\n  %0 = exp %x : f32[4]\n  return %0\n}")
    assert Fuse().run(graph, PassContext(target=Target())) is graph


def test_ops_without_a_kernel_stay_and_say_why() -> None:
    graph = parse_graph("graph @f(%x: c64[4]) {\n  %0 = exp %x : c64[4]\n  return %0\n}")
    context = generating(graph)
    assert Fuse().run(graph, context).ops == graph.ops
    assert any("c64" in remark.message for remark in context.remarks)


def test_symbolic_sizes() -> None:
    graph = fused(
        """graph @f(%x: f32[s0, 64], %b: f32[64]) symbols (s0 in [1, inf]) {
          %0 = add %x, %b : f32[s0, 64]
          %1 = reshape %0 {shape = [s0, 4, 16]} : f32[s0, 4, 16]
          %2 = sum %1 {dims = [2]} : f32[s0, 4]
          return %2
        }"""
    )
    ((op, kernel),) = kernels_of(graph)
    assert kernel.symbols == ("s0",)
    for rows in (1, 3, 7):
        x, b = torch.randn(rows, 64), torch.randn(64)
        out = torch.empty(rows, 4)
        run_kernel(kernel, {"x0": x.flatten(), "x1": b, "y0": out.view(-1)}, {"s0": rows})
        torch.testing.assert_close(out, (x + b).view(rows, 4, 16).sum(-1))
    assert op.results[0].shape[1] == 4


@pytest.mark.parametrize("bad", [5, -1])
def test_indices_out_of_range_raise(bad: int) -> None:
    graph = fused(
        """graph @f(%w: f32[5, 4], %i: i64[3]) {
          %0 = embedding %w, %i : f32[3, 4]
          return %0
        }"""
    )
    with pytest.raises(IndexError, match="out of range"):
        values_by_kernels(graph, [torch.randn(5, 4), torch.tensor([0, bad, 1])])


def test_results_may_lie_in_another_order_and_over_an_input() -> None:
    graph = fused(
        """graph @f(%x: f32[4, 6], %y: f32[4, 6]) {
          %0 = add %x, %y : f32[4, 6]
          return %0
        }"""
    )
    (op,) = (op for op in graph.ops if isinstance(op, Fused))
    rows, columns = contiguous_strides((4, 6)), (1, 4)
    kernel = kernel_of(op, [rows, columns], [rows], {0: 0})
    assert [(b.name, b.is_written) for b in kernel.buffers] == [("x0", True), ("x1", False)]
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    expected = x + y.T
    run_kernel(kernel, {"x0": x.view(-1), "x1": y.view(-1)})
    torch.testing.assert_close(x, expected)


def test_equal_groups_share_a_kernel() -> None:
    text = """graph @f(%x: f32[4, 6], %y: f32[4, 6]) {{
      %0 = add %x, {} : f32[4, 6]
      %1 = exp %0 : f32[4, 6]
      %2 = matmul %1, %z : f32[4, 6]
      return %2
    }}"""
    row_major = contiguous_strides((4, 6))
    factory = KernelFactory()

    def kernel(number: str, strides: tuple[int, ...] = (6, 1)) -> object:
        graph = fused(
            text.format(number).replace("%z", "%w").replace("%y: f32[4, 6]", "%w: f32[6, 6]")
        )
        (op,) = (op for op in graph.ops if isinstance(op, Fused))
        return factory.kernel_of(op, [strides], [row_major], {})

    assert kernel("0.0") is kernel("0.0")
    assert kernel("0.0") is not kernel("-0.0")
    assert kernel("0.0") is not kernel("0.0", (1, 4))


def test_symbolic_sizes_that_multiply_run_along_one_axis() -> None:
    graph = fused(
        """graph @f(%x: f32[s0, s1, 32], %b: f32[32]) symbols (s0 in [1, inf], s1 in [1, inf]) {
          %0 = add %x, %b : f32[s0, s1, 32]
          %1 = reshape %0 {shape = [s0*s1, 32]} : f32[s0*s1, 32]
          %2 = exp %1 : f32[s0*s1, 32]
          return %0, %2
        }"""
    )
    ((_, kernel),) = kernels_of(graph)
    assert len(kernel.axes) == 2
    x, b = torch.randn(3, 5, 32), torch.randn(32)
    first, second = torch.empty(3, 5, 32), torch.empty(15, 32)
    memory = {"x0": x.view(-1), "x1": b, "y0": first.view(-1), "y1": second.view(-1)}
    run_kernel(kernel, memory, {"s0": 3, "s1": 5})
    torch.testing.assert_close(first, x + b)
    torch.testing.assert_close(second, (x + b).exp().view(15, 32))


def test_what_is_taken_apart_and_put_together_is_no_division() -> None:
    """Heads side by side are rows again, however many shapes lie between."""
    graph = fused(
        """graph @f(%x: f32[6, 4, 16], %y: f32[6, 64]) {
          %0 = exp %x : f32[6, 4, 16]
          %1 = reshape %0 {shape = [6, 64]} : f32[6, 64]
          %2 = concatenate [%1, %y] {dim = 1} : f32[6, 128]
          %3 = concatenate [%y, %1] {dim = 1} : f32[6, 128]
          return %2, %3
        }"""
    )
    for _, kernel in kernels_of(graph):
        loads = [i for i in kernel.body if isinstance(i, Load)]
        assert loads
        for load in loads:
            assert all(isinstance(t.of, str) and t.modulus is None for t in load.index.terms)
            assert all(t.divisor == 1 for t in load.index.terms)
    inputs = [torch.randn(6, 4, 16), torch.randn(6, 64)]
    expected = evaluate_dense(graph, inputs)
    assert_close(values_by_kernels(graph, inputs), expected)


@pytest.mark.parametrize("shifts", [(3, -2), (0, 5), (4, 9), (-1, 0)])
def test_rolls(shifts: tuple[int, int]) -> None:
    graph = fused(
        f"""graph @f(%x: f32[4, 8]) {{
          %0 = exp %x : f32[4, 8]
          %1 = roll %0 {{dims = [0, 1], shifts = [{shifts[0]}, {shifts[1]}]}} : f32[4, 8]
          return %1
        }}"""
    )
    x = torch.randn(4, 8)
    (found,) = values_by_kernels(graph, [x])
    torch.testing.assert_close(found, x.exp().roll(shifts, (0, 1)))


ORDERED = {
    "random numbers": "bernoulli %{} : f32[8, 8]",
    "communication": 'local_all_reduce %{} {{axes = ["tp"]}} : f32[8, 8]',
}


@pytest.mark.parametrize("kind", ORDERED)
def test_what_is_done_in_order_stays_in_order(kind: str) -> None:
    """A kernel of `exp` and `add` would have to wait for the second, and the first for it."""
    first, second = (ORDERED[kind].format(name) for name in ("0", "z"))
    graph = fused(
        f"""graph @g(%x: f32[8, 8], %z: f32[8, 8]) {{
          %0 = exp %x : f32[8, 8]
          %1 = {first}
          %2 = {second}
          %3 = add %0, %2 : f32[8, 8]
          return %1, %3
        }}"""
    )
    assert [op.operands[0].op is None for op in graph.ops if not op.is_removable] == [False, True]


@pytest.mark.parametrize("kind", ORDERED)
def test_what_is_done_in_order_is_not_fetched_early(kind: str) -> None:
    """The product needs `exp`, whose kernel may not pull the second before the first."""
    first, second = (ORDERED[kind].format(name) for name in ("y", "z"))
    graph = fused(
        f"""graph @g(%x: f32[8, 8], %y: f32[8, 8], %z: f32[8, 8]) {{
          %0 = exp %x : f32[8, 8]
          %1 = matmul %0, %0 : f32[8, 8]
          %2 = {first}
          %3 = {second}
          %4 = add %0, %3 : f32[8, 8]
          return %1, %2, %4
        }}"""
    )
    assert [op.operands[0].name for op in graph.ops if not op.is_removable] == ["y", "z"]
