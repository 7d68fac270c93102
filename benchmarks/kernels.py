"""Times generated C kernels against eager, Inductor and the memory bandwidth.

    python -m benchmarks.kernels [--threads 1 2] [--inductor] [--rows 256] [--columns 1024]

Each line is one kernel. All ways are timed in turn, call by call, and compared by the median of the
ratios of neighbouring calls, so that a change of clock or load falls on all. The limit is a copy of
as many bytes as the kernel must at least read and write, in pieces as large as its own operands.
Generated kernels write into given memory; eager and Inductor also allocate their results.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from lynx.backends.c import compile_segments
from lynx.ir import DType, Kernel
from lynx.ir.kernel import Index, KernelBuilder, Scalar, Term
from lynx.ir.native import KernelCall, Pointer, Segment

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
KINDS = {F32: torch.float32, BF16: torch.bfloat16, I64: torch.int64}


@dataclass(frozen=True)
class Case:
    """A kernel, the contents of its buffers, and what it computes, in torch."""

    name: str
    kernel: Kernel
    buffers: list[torch.Tensor]
    function: Callable[..., object]
    inputs: list[torch.Tensor]


class Sheet(KernelBuilder):
    """A builder for rows `i` and columns `j` that makes tensors along with buffers."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.sizes = {"i": rows, "j": columns}
        for name, size in self.sizes.items():
            self.axis(name, size)
        self.tensors: list[torch.Tensor] = []
        self.inputs: list[torch.Tensor] = []

    def index(self, axes: str) -> Index:
        """Return the row-major index over the axes."""
        stride, terms = 1, []
        for axis in reversed(axes):
            terms.append(Term(axis, stride))
            stride *= self.sizes[axis]
        return Index(tuple(terms[::-1]))

    def read(self, axes: str, dtype: DType = F32) -> Scalar:
        """Load from a new input."""
        shape = [self.sizes[axis] for axis in axes]
        tensor = torch.randn(shape).to(KINDS[dtype])
        if dtype is I64:
            tensor = torch.randint(0, self.sizes["j"], shape)
        self.tensors.append(tensor)
        self.inputs.append(tensor)
        buffer = self.buffer(f"b{len(self.tensors)}", dtype, tensor.numel())
        loaded = self.load(buffer, self.index(axes))
        return self.convert(loaded, F32) if dtype is BF16 else loaded

    def write(self, value: Scalar, axes: str, dtype: DType = F32) -> None:
        """Store to a new output."""
        tensor = torch.empty([self.sizes[axis] for axis in axes], dtype=KINDS[dtype])
        self.tensors.append(tensor)
        buffer = self.buffer(f"b{len(self.tensors)}", dtype, tensor.numel(), is_written=True)
        self.store(buffer, self.index(axes), self.convert(value, dtype))

    def f(self, function: str, *arguments: Scalar | float) -> Scalar:
        """Apply a function in `f32`."""
        scalars = [a if isinstance(a, Scalar) else self.constant(a, F32) for a in arguments]
        return self.apply(function, *scalars, dtype=F32)

    def total(self, x: Scalar, *over: str) -> Scalar:
        """Sum over axes."""
        return self.reduce("sum", x, over)[0]

    def case(self, name: str, function: Callable[..., object]) -> Case:
        """Return the finished case."""
        return Case(name, self.build(name), self.tensors, function, self.inputs)


def gelu(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij")
    phi = b.f("add", b.f("erf", b.f("mul", x, 2**-0.5)), 1.0)
    b.write(b.f("mul", b.f("mul", x, 0.5), phi), "ij")
    return b.case("GELU erf", functional.gelu)


def gelu_tanh(rows: int, columns: int, dtype: DType = F32) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij", dtype)
    cube = b.f("mul", b.f("mul", x, x), x)
    inner = b.f("mul", b.f("add", x, b.f("mul", cube, 0.044715)), 0.7978845608028654)
    result = b.f("mul", b.f("mul", x, 0.5), b.f("add", b.f("tanh", inner), 1.0))
    b.write(result, "ij", dtype)
    name = "GELU tanh" if dtype is F32 else "GELU tanh bf16"
    return b.case(name, lambda x: functional.gelu(x, approximate="tanh"))


def silu(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij")
    b.write(b.f("mul", x, b.f("sigmoid", x)), "ij")
    return b.case("SiLU", functional.silu)


def softmax(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij")
    power = b.f("exp", b.f("sub", x, b.reduce("max", x, ("j",))[0]))
    b.write(b.f("div", power, b.total(power, "j")), "ij")
    return b.case("softmax", lambda x: functional.softmax(x, 1))


def layer_norm(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x, weight, bias = b.read("ij"), b.read("j"), b.read("j")
    mean, squares = b.reduce("welford", x, ("j",))
    scale = b.f("rsqrt", b.f("add", b.f("mul", squares, 1 / columns), 1e-5))
    y = b.f("mul", b.f("mul", b.f("sub", x, mean), scale), weight)
    b.write(b.f("add", y, bias), "ij")
    b.write(mean, "i")
    b.write(scale, "i")
    return b.case(
        "LayerNorm",
        lambda x, weight, bias: torch.native_layer_norm(x, [columns], weight, bias, 1e-5),
    )


def layer_norm_backward(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    g, x, mean, scale, weight = (b.read(axes) for axes in ("ij", "ij", "i", "i", "j"))
    normal = b.f("mul", b.f("sub", x, mean), scale)
    scaled = b.f("mul", g, weight)
    first = b.f("mul", b.total(scaled, "j"), 1 / columns)
    second = b.f("mul", b.total(b.f("mul", scaled, normal), "j"), 1 / columns)
    rest = b.f("sub", b.f("sub", scaled, first), b.f("mul", normal, second))
    b.write(b.f("mul", rest, scale), "ij")
    b.write(b.total(b.f("mul", g, normal), "i"), "j")
    b.write(b.total(g, "i"), "j")

    def backward(g: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> object:
        mean, scale, weight = rest
        return torch.ops.aten.native_layer_norm_backward(
            g, x, [columns], mean[:, None], scale[:, None], weight, weight, [True] * 3
        )

    return b.case("LayerNorm backward", backward)


def rms_norm(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x, weight = b.read("ij"), b.read("j")
    mean = b.f("mul", b.total(b.f("mul", x, x), "j"), 1 / columns)
    scale = b.f("rsqrt", b.f("add", mean, 1e-6))
    b.write(b.f("mul", b.f("mul", x, scale), weight), "ij")
    b.write(scale, "i")
    return b.case("RMSNorm", lambda x, weight: functional.rms_norm(x, [columns], weight, 1e-6))


def rms_norm_backward(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    g, x, scale, weight = (b.read(axes) for axes in ("ij", "ij", "i", "j"))
    normal, scaled = b.f("mul", x, scale), b.f("mul", g, weight)
    dot = b.f("mul", b.total(b.f("mul", scaled, normal), "j"), 1 / columns)
    b.write(b.f("mul", b.f("sub", scaled, b.f("mul", normal, dot)), scale), "ij")
    b.write(b.total(b.f("mul", g, normal), "i"), "j")

    def backward(g: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> object:
        scale, weight = rest[0][:, None], rest[1]
        normal, scaled = x * scale, g * weight
        dot = (scaled * normal).mean(1, keepdim=True)
        return (scaled - normal * dot) * scale, (g * normal).sum(0)

    return b.case("RMSNorm backward", backward)


def cross_entropy(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij")
    target = b.read("i", I64)
    largest, total = b.reduce("softmax", x, ("j",))
    chosen = b.load(b.buffers[0], Index((Term("i", columns), Term(target))))
    row = b.f("sub", b.f("add", b.f("log", total), largest), chosen)
    b.write(b.f("mul", b.total(row, "i"), 1 / rows), "")
    return b.case("cross-entropy", functional.cross_entropy)


def cross_entropy_backward(rows: int, columns: int) -> Case:
    b = Sheet(rows, columns)
    x = b.read("ij")
    target = b.read("i", I64)
    power = b.f("exp", b.f("sub", x, b.reduce("max", x, ("j",))[0]))
    share = b.f("div", power, b.total(power, "j"))
    place = b.position(Index((Term("j"),)))
    hit = b.apply("eq", place, target, dtype=DType.BOOL)
    one = b.apply("where", hit, b.constant(1.0, F32), b.constant(0.0, F32), dtype=F32)
    b.write(b.f("mul", b.f("sub", share, one), 1 / rows), "ij")

    def backward(x: torch.Tensor, target: torch.Tensor) -> object:
        return (torch.softmax(x, 1) - functional.one_hot(target, columns)) / rows

    return b.case("cross-entropy backward", backward)


def adamw(rows: int, columns: int, count: int = 24) -> Case:
    """One step over many tensors of several sizes."""
    b = Sheet(1, 1)
    inputs: list[torch.Tensor] = []
    for number in range(count):
        size = (rows * columns // 8) if number % 3 == 0 else columns * (1 + number % 5)
        axis = b.axis(f"t{number}", size)
        index = Index((Term(axis),))
        names = [f"{name}{number}" for name in ("p", "g", "m", "v")]
        tensors = [torch.rand(size) for _ in names]
        inputs += tensors
        buffers = [b.buffer(n, F32, size, is_written=n[0] != "g") for n in names]
        p, g, m, v = (b.load(buffer, index) for buffer in buffers)
        m = b.f("add", m, b.f("mul", b.f("sub", g, m), 0.1))
        v = b.f("add", b.f("mul", v, 0.999), b.f("mul", b.f("mul", g, g), 0.001))
        step = b.f("div", m, b.f("add", b.f("sqrt", v), 1e-8))
        p = b.f("sub", b.f("mul", p, 0.99999), b.f("mul", step, 1e-3))
        for place, value in ((0, p), (2, m), (3, v)):
            b.store(buffers[place], index, value)

    def step_of_all(*tensors: torch.Tensor) -> None:
        p, g, m, v = (list(tensors[start::4]) for start in range(4))
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, g, g, 0.001)
        root = torch._foreach_sqrt(v)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_mul_(p, 0.99999)
        torch._foreach_addcdiv_(p, m, root, -1e-3)

    return Case(f"AdamW, {count} tensors", b.build("adamw"), inputs, step_of_all, inputs)


CASES = (
    gelu, gelu_tanh, silu, softmax, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward,
    cross_entropy, cross_entropy_backward, adamw,
)  # fmt: skip


def moved_bytes(case: Case) -> int:
    """Return what must be read and written at least; what is overwritten counts twice."""
    twice = {buffer.name for buffer in case.kernel.buffers if buffer.is_written} if (
        case.buffers is case.inputs
    ) else set()  # fmt: skip
    return sum(
        tensor.numel() * tensor.element_size() * (2 if buffer.name in twice else 1)
        for buffer, tensor in zip(case.kernel.buffers, case.buffers, strict=True)
    )


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compiled(cases: Sequence[Case]) -> list[Callable[[], object]]:
    """Compile all kernels together."""
    segments = []
    for case in cases:
        pointers = tuple(Pointer(slot) for slot in range(len(case.buffers)))
        calls = (KernelCall(case.kernel, pointers),)
        segments.append(Segment(case.name, calls, len(pointers), ()))
    functions = compile_segments(tuple(segments))
    runs: list[Callable[[], object]] = []
    for case, function in zip(cases, functions, strict=True):
        addresses = [tensor.data_ptr() for tensor in case.buffers]
        packed = struct.pack(f"{len(addresses)}q", *addresses)
        runs.append(lambda run=function.run, packed=packed: run(packed))
    return runs


def row(case: Case, run: Callable[[], object], inductor: bool, repeats: int) -> str:
    """Time one kernel in all ways and return its line of the table."""
    ways: dict[str, Callable[[], object]] = {
        "lynx": run,
        "eager": lambda: case.function(*case.inputs),
    }
    if inductor:
        faster = torch.compile(case.function)
        ways["inductor"] = lambda: faster(*case.inputs)
    source = torch.empty(moved_bytes(case) // 8)
    target = torch.empty_like(source)
    ways["limit"] = lambda: target.copy_(source)
    for way in ways.values():
        way()
        way()
    times = {name: [] for name in ways}  # type: dict[str, list[float]]
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(seconds(way))
    ours = times["lynx"]
    cells = [f"{case.name:22s} {statistics.median(ours) * 1e6:9.1f}"]
    for name in ("eager", "inductor", "limit"):
        if name in times:
            ratios = [other / own for other, own in zip(times[name], ours, strict=True)]
            cells.append(f"{statistics.median(ratios):9.2f}")
    return " ".join(cells)


def main() -> None:
    """Print one table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--inductor", action="store_true", help="compile with Inductor too (slow)")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = [make(options.rows, options.columns) for make in CASES]
    cases.insert(2, gelu_tanh(options.rows, options.columns, BF16))
    start = time.perf_counter()
    runs = compiled(cases)
    print(f"compiled {len(cases)} kernels in {time.perf_counter() - start:.2f} s")
    names = ["eager/lynx", *(["inductor/lynx"] if options.inductor else []), "limit/lynx"]
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"\n{threads} threads, {options.rows} x {options.columns}")
        print(f"{'kernel':22s} {'lynx, us':>9s} {' '.join(f'{name:>9s}' for name in names)}")
        with torch.no_grad():
            for case, run in zip(cases, runs, strict=True):
                print(row(case, run, options.inductor, options.repeats), flush=True)


if __name__ == "__main__":
    main()
