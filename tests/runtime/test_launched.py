"""Programs whose kernels the host launches one by one give what the reference gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lynx.backends.reference import call_of, run_kernel
from lynx.ir import Builder, DType, Graph, InputSpec, SymbolRange, TensorType, ops, symbol
from lynx.ir.dims import evaluate as value_of
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Kernel
from lynx.ir.native import Launch, Launcher, LaunchRequest
from lynx.runtime import BlockPool, Executable, build
from tests.runtime.interpreted import check_apart
from tests.runtime.programs import check_run, compiled, same, with_border
from tests.runtime.test_executor import with_functions
from tests.runtime.test_segments import (
    MATRIX,
    ROWS,
    call,
    double,
    fuse,
    fused_program,
    lookup,
    softmax,
    three_kernels,
)
from tests.strategies import graphs, inputs_for


class Interpreter:
    """Compiles launches that interpret kernels; `fails` and `refuses` say which do not work."""

    def __init__(
        self,
        fails: Callable[[Kernel], bool] = lambda kernel: False,
        refuses: Callable[[Kernel], bool] = lambda kernel: False,
    ) -> None:
        self.fails = fails
        self.refuses = refuses
        self.requests: tuple[LaunchRequest, ...] = ()
        self.launched: list[str] = []

    def __call__(self, requests: tuple[LaunchRequest, ...]) -> tuple[Launch, ...]:
        self.requests = requests
        failed = tuple(r.kernel for r in requests if self.fails(r.kernel))
        if failed:
            error = CompileError("build-failed", f"{len(failed)} kernels do not build")
            error.kernels = failed  # type: ignore[attr-defined]  # as real compilers do
            raise error
        return tuple(Launch(self.launch(r.kernel), r.kernel.symbols, "text") for r in requests)

    def launch(self, kernel: Kernel) -> Callable[..., bool]:
        def run(tensors: Sequence[torch.Tensor], *values: int) -> bool:
            if self.refuses(kernel):
                return False
            self.launched.append(kernel.name)
            sizes = dict(zip(kernel.symbols, values, strict=True))
            memory, ranges = [], []
            for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
                count = value_of(buffer.extent, sizes)
                start, width = tensor.data_ptr(), buffer.dtype.itemsize
                memory.append(tensor.data.as_strided((count,), (1,)))
                ranges.append((start, start + count * width, buffer.is_written))
            check_apart(ranges)
            run_kernel(kernel, memory, sizes)
            return True

        return run


def launched(graph: Graph, *, fuse_ops: bool = False, **how: Any) -> tuple[Executable, Interpreter]:
    compiler = Interpreter(**how)
    program = fused_program(graph) if fuse_ops else compiled(graph)
    native = Launcher("cpu", compiler)
    return build(program, call_of, pool=BlockPool(), native=native), compiler


@given(graph=graphs(max_ops=20), seed=st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_random_programs(graph: Graph, seed: int) -> None:
    assume(not any(op.name == "cast" and op.out.tensor_type.dtype is DType.F64 for op in graph.ops))
    graph = with_border(graph, random.Random(seed))
    choice = random.Random(seed)
    run, _ = launched(graph, fuse_ops=True, refuses=lambda kernel: choice.random() < 0.2)
    first = check_run(graph, run, inputs_for(graph, seed))
    kept = [None if output is None else output.clone() for output in first]
    check_run(graph, run, inputs_for(graph, seed + 1))
    for output, before in zip(first, kept, strict=True):
        assert same(output, before), "a later call changed an output"


def test_equal_kernels_are_compiled_once_and_launched_in_order() -> None:
    builder = Builder("chain")
    value = builder.input("x", MATRIX, ROWS)
    for _ in range(3):
        value = fuse(builder, (value,), softmax)
        value = builder.emit(ops.CumulativeSum(value, 1))
    graph = builder.build((value,))
    run, compiler = launched(graph)
    assert len(compiler.requests) == 2  # one of them writes over its operand
    assert len(run.native.launched) == 3
    assert len(run.native.kernels) == 2
    check_run(graph, run, inputs_for(graph))
    assert len(compiler.launched) == 3
    assert run.native.source == "text"


def test_sizes_come_with_the_tensors() -> None:
    n = symbol("n")
    builder = Builder("dynamic")
    x = builder.input("x", TensorType(DType.F32, (n, 6)), InputSpec((6, 1)))
    a = fuse(builder, (x,), softmax)
    late = builder.emit(ops.Slice(a, 0, 1, n))
    graph = builder.build((fuse(builder, (late,), double),), symbols=(SymbolRange("n", 1, None),))
    run, compiler = launched(graph)
    assert all(request.kernel.symbols == ("n",) for request in compiler.requests)
    for size in (3, 1, 7, 3):
        given_ = torch.randn(size, 6)
        assert torch.allclose(run([given_])[0], given_.softmax(1)[1:] * 2, atol=1e-6)


def test_tensors_that_lie_as_torch_likes() -> None:
    """Kernels expect them row-major, and views of them too, at whatever offset."""
    builder = Builder("unknown")
    x = builder.input("x", MATRIX)
    turned = call(builder, "turned", x)
    part = builder.emit(ops.Select(turned, 1, 3))
    bits = builder.emit(ops.Bitcast(turned, DType.I32))
    row = builder.emit(ops.Select(bits, 0, 2))
    body = lambda b, p, q, r: (double(b, p), double(b, q), b.emit(ops.Add(r, 1)))  # noqa: E731
    graph = builder.build(fuse(builder, (x, part, row), body, 3))
    functions = with_functions({"python.turned": lambda t: t.t().contiguous().t()})
    compiler = Interpreter()
    run = build(compiled(graph), functions, native=Launcher("cpu", compiler))
    for x_ in (torch.randn(6, 8), torch.randn(8, 6).t(), torch.randn(6, 16)[:, ::2]):
        first, second, third = run([x_])
        assert torch.equal(first, x_ * 2)
        assert torch.equal(second, x_[:, 3] * 2)
        assert torch.equal(third, x_[2].contiguous().view(torch.int32) + 1)
    assert len(compiler.launched) == 3


def test_a_check_that_fails_raises_and_the_next_call_works() -> None:
    pool = BlockPool()
    run = build(compiled(lookup()), call_of, pool=pool, native=Launcher("cpu", Interpreter()))
    table = torch.randn(4, 3)
    good = run([table, torch.tensor([0, 3])])[0]
    before = pool.idle_bytes
    with pytest.raises(IndexError):
        run([table, torch.tensor([0, 4])])
    assert pool.idle_bytes == before
    assert torch.equal(run([table, torch.tensor([0, 3])])[0], good)


def is_exponential(kernel: Kernel) -> bool:
    return "exp" in kernel.name


def test_a_kernel_that_does_not_build_runs_through_torch() -> None:
    graph = three_kernels()
    run, compiler = launched(graph, fails=is_exponential)
    assert len(run.native.launched) == 2
    assert "build-failed" in run.native.failures[0]
    assert [remark.subject for remark in run.native.remarks] == ["kernel"]
    check_run(graph, run, inputs_for(graph))
    assert compiler.launched == ["tanh", "sin"]


def test_a_kernel_that_is_refused_runs_through_torch() -> None:
    graph = three_kernels()
    run, compiler = launched(graph, refuses=is_exponential)
    for seed in range(2):
        check_run(graph, run, inputs_for(graph, seed))
    assert compiler.launched == ["tanh", "sin"] * 2
    assert len(run.native.launched) == 3


def on(device: str, shape: tuple[int, ...] = (4, 3)) -> TensorType:
    return TensorType(DType.F32, shape, device)


def source_on_devices(graph: Graph, device: str = "cuda") -> tuple[str, Interpreter]:
    """Return the text of a program for devices that need not be there."""
    compiler = Interpreter()
    run = build(compiled(graph), call_of, native=Launcher(device, compiler))
    return run.source, compiler


def test_each_kernel_goes_to_its_device() -> None:
    builder = Builder("devices")
    made = []
    for device in ("cuda:0", "cuda:1", "cpu"):
        x = builder.input(f"x{len(made)}", on(device), InputSpec((3, 1)))
        made.append(fuse(builder, (x,), double))
    source, compiler = source_on_devices(builder.build(tuple(made)))
    assert [request.device for request in compiler.requests] == ["cuda:0", "cuda:1"]
    assert source.count("launch_mul") == 2
    assert "device='cuda:1'" in source


def test_a_number_on_the_cpu_is_sent_to_the_kernel() -> None:
    builder = Builder("number")
    x = builder.input("x", on("cuda:0"), InputSpec((3, 1)))
    scale = builder.input("scale", on("cpu", ()), InputSpec(()))
    scaled = fuse(builder, (x, scale), lambda b, p, s: b.emit(ops.Multiply(p, s)))
    source, compiler = source_on_devices(builder.build((scaled,)))
    assert len(compiler.requests) == 1
    assert "scale.to('cuda:0')" in source


def test_a_kernel_over_two_devices_is_none() -> None:
    builder = Builder("mixed")
    x = builder.input("x", on("cuda:0"), InputSpec((3, 1)))
    y = builder.input("y", on("cuda:1"), InputSpec((3, 1)))
    both = fuse(builder, (x, y), lambda b, p, q: (double(b, p), double(b, q)), 2)
    _, compiler = source_on_devices(builder.build(both))
    assert compiler.requests == ()
