"""What fused ops mean: their ops one after the other, with results in memory of their own."""

from __future__ import annotations

from typing import Any

import torch

from lynx.backends.reference import call_of, evaluate
from lynx.backends.reference.fusion import region_symbols
from lynx.ir import Graph, parse_graph, symbol
from lynx.ir.ops import Fused


def graph(body: str, types: str, results: str = "%0") -> Graph:
    return parse_graph(f"""
    graph @g(%a: f32[s0, 4], %b: f32[4]) symbols (s0) {{
      {results} = fused(%x = %a, %y = %b) {{
        {body}
      }} : {types}
      return {results}
    }}""")


def fused_of(made: Graph) -> Fused:
    (op,) = made.ops
    assert isinstance(op, Fused)
    return op


A, B = torch.randn(3, 4), torch.randn(4)


def run(made: Graph) -> list[Any]:
    return evaluate(made, [A, B])[0]


def test_ops_run_one_after_the_other() -> None:
    body = """
    %0 = add %x, %y : f32[s0, 4]
    %1 = sum %0 {dims = [1]} : f32[s0]
    yield %0, %1"""
    first, second = run(graph(body, "f32[s0, 4], f32[s0]", "%0, %1"))
    assert torch.equal(first, A + B)
    assert torch.equal(second, (A + B).sum(1))


def test_symbols_are_passed() -> None:
    body = """
    %0 = mul %x, s0 : f32[s0, 4]
    %1 = reshape %0 {shape = [4*s0]} : f32[4*s0]
    yield %1"""
    made = graph(body, "f32[4*s0]")
    assert region_symbols(fused_of(made).body) == ("s0",)
    call = call_of(fused_of(made))
    assert call.arguments == (fused_of(made).inputs, (symbol("s0"),))
    assert torch.equal(run(made)[0], (A * 3).flatten())


def test_results_share_no_memory_and_do_not_overlap_themselves() -> None:
    body = """
    %0 = permute %x {dims = [1, 0]} : f32[4, s0]
    %1 = broadcast %y {shape = [2, 4]} : f32[2, 4]
    %2 = exp %x : f32[s0, 4]
    %3 = reshape %2 {shape = [4*s0]} : f32[4*s0]
    yield %x, %0, %1, %2, %3, %2"""
    types = "f32[s0, 4], f32[4, s0], f32[2, 4], f32[s0, 4], f32[4*s0], f32[s0, 4]"
    found = run(graph(body, types, "%0, %1, %2, %3, %4, %5"))
    expected = [A, A.T, B.expand(2, 4), A.exp(), A.exp().flatten(), A.exp()]
    pointers = [tensor.data_ptr() for tensor in (A, B, *found)]
    assert len(set(pointers)) == len(pointers)
    for tensor, wanted in zip(found, expected, strict=True):
        assert torch.equal(tensor, wanted)
        tensor.add_(1)  # refused where elements share memory
    assert torch.equal(found[1], A.T + 1)


def test_out_form_writes_results_even_over_inputs() -> None:
    body = """
    %0 = add %x, 1 : f32[s0, 4]
    %1 = neg %x : f32[s0, 4]
    yield %0, %1"""
    call = call_of(fused_of(graph(body, "f32[s0, 4], f32[s0, 4]", "%0, %1")))
    assert call.out is not None
    assert call.out_names == ("out0", "out1")
    a, other = A.clone(), torch.empty(4, 3).T
    call.out([a, B], [], out0=a, out1=other)
    assert torch.equal(a, A + 1)
    assert torch.equal(other, -A)


def test_no_results_and_no_ops() -> None:
    body = "yield %x"
    (found,) = run(graph(body, "f32[s0, 4]"))
    assert torch.equal(found, A)
    assert found.data_ptr() != A.data_ptr()
    made = parse_graph("graph @g(%a: f32[4]) { fused(%x = %a) { yield }\n return %a }")
    assert torch.equal(evaluate(made, [B])[0][0], B)
