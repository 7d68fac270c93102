"""What `explain` says of the native part of a program."""

from __future__ import annotations

from lynx.backends.reference import call_of
from lynx.ir import Builder, InputSpec, Location, SymbolRange, ops, symbol
from lynx.ir.types import DType, TensorType
from lynx.native_text import describe_native
from lynx.runtime import build
from tests.runtime.interpreted import Interpreter
from tests.runtime.programs import compiled
from tests.runtime.test_segments import MATRIX, ROWS, double, fuse, softmax, three_kernels


def test_segments_and_their_calls() -> None:
    builder = Builder("described")
    x = builder.input("x", MATRIX, ROWS)
    builder.loc = Location("model.py", 3)
    a = fuse(builder, (x,), double)
    builder.loc = Location("model.py", 4)
    product = builder.emit(ops.Matmul(a, builder.emit(ops.Permute(a, (1, 0)))))
    builder.loc = Location("model.py", 5)
    result = fuse(builder, (product,), softmax)
    run = build(compiled(builder.build((result,))), call_of, native=Interpreter())
    lines = list(describe_native(run.native))
    assert lines[0] == "segment_0: 2 kernels, 1 product"
    assert lines[1] == "  mul over 48, 384 B  (model.py:3)"
    assert lines[2] == "  product of f32, 6 x 8 x 6  (model.py:4)"
    assert "over 6 x 6, 288 B  (model.py:5)" in lines[3]


def test_symbolic_sizes() -> None:
    n = symbol("n")
    builder = Builder("dynamic")
    x = builder.input("x", TensorType(DType.F32, (n, 4)), InputSpec((4, 1)))
    result = fuse(builder, (x,), softmax)
    graph = builder.build((result,), symbols=(SymbolRange("n", 1, None),))
    run = build(compiled(graph), call_of, native=Interpreter())
    (_, line) = describe_native(run.native)
    assert "over n x 4, 32*n bytes" in line


def test_what_did_not_build() -> None:
    compiler = Interpreter(lambda kernel: "exp" in kernel.name)
    run = build(compiled(three_kernels()), call_of, native=compiler)
    assert any(line.startswith("did not build") for line in describe_native(run.native))
