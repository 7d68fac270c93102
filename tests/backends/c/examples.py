"""Kernels like those that models need, over any sizes, static or symbolic."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import DType, Kernel
from lynx.ir.dims import Dim, evaluate
from lynx.ir.kernel import Index, KernelBuilder, Scalar, Term
from tests.backends.c.running import row_major

F32, BF16, F16, F64, I64 = DType.F32, DType.BF16, DType.F16, DType.F64, DType.I64
Example = Callable[[Dim, Dim], Kernel]


class Sheet(KernelBuilder):
    """A builder with two axes, and short names for what examples need."""

    def __init__(self, n: Dim, m: Dim) -> None:
        super().__init__()
        self.n, self.m = n, m
        self.axis("i", n)
        self.axis("j", m)

    def read(self, name: str, *axes: str, dtype: DType = F32) -> Scalar:
        """Load an element of a contiguous tensor; low precision becomes `f32`."""
        index = row_major(self, *axes)
        loaded = self.load(self.buffer(name, dtype, self.extent(axes)), index)
        return self.convert(loaded, F32) if dtype.is_low_precision else loaded

    def write(self, name: str, value: Scalar, *axes: str, dtype: DType | None = None) -> None:
        dtype = dtype or value.dtype
        buffer = self.buffer(name, dtype, self.extent(axes), is_written=True)
        self.store(buffer, row_major(self, *axes), self.convert(value, dtype))

    def extent(self, axes: tuple[str, ...]) -> Dim:
        size: Dim = 1
        for axis in axes:
            size = size * self.axes[axis].size
        return size

    def f(self, function: str, *arguments: Scalar | float) -> Scalar:
        """Apply a function; numbers become constants of the type of the other operand."""
        dtype = next(a.dtype for a in arguments if isinstance(a, Scalar))
        scalars = [a if isinstance(a, Scalar) else self.constant(a, dtype) for a in arguments]
        return self.apply(function, *scalars, dtype=dtype)

    def total(self, x: Scalar, *over: str) -> Scalar:
        return self.reduce("sum", x, over)[0]


def softmax_of_rows(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    (largest,) = b.reduce("max", x, ("j",))
    power = b.f("exp", b.f("sub", x, largest))
    b.write("y", b.f("div", power, b.total(power, "j")), "i", "j")
    return b.build("softmax")


def softmax_of_columns(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    largest, total = b.reduce("softmax", x, ("i",))
    b.write("y", b.f("div", b.f("exp", b.f("sub", x, largest)), total), "i", "j")
    return b.build("softmax_columns")


def layer_norm(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x, w = b.read("x", "i", "j", dtype=BF16), b.read("w", "j")
    mean, squares = b.reduce("welford", x, ("j",))
    count = b.constant(m, F32)
    scale = b.f("rsqrt", b.f("add", b.f("div", squares, count), 1e-5))
    y = b.f("mul", b.f("mul", b.f("sub", x, mean), scale), w)
    b.write("y", y, "i", "j", dtype=BF16)
    b.write("mean", mean, "i")
    b.write("scale", scale, "i")
    return b.build("layer_norm")


def layer_norm_backward(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    g, h, w = b.read("g", "i", "j"), b.read("h", "i", "j"), b.read("w", "j")
    scaled = b.f("mul", g, w)
    first = b.f("div", b.total(scaled, "j"), b.constant(m, F32))
    second = b.f("div", b.total(b.f("mul", scaled, h), "j"), b.constant(m, F32))
    b.write("dx", b.f("sub", b.f("sub", scaled, first), b.f("mul", h, second)), "i", "j")
    b.write("dw", b.total(b.f("mul", g, h), "i"), "j")
    b.write("db", b.total(g, "i"), "j")
    return b.build("layer_norm_backward")


def batch_norm(n: Dim, m: Dim) -> Kernel:
    """Channels last: statistics of columns, used along the columns."""
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    mean, squares = b.reduce("welford", x, ("i",))
    variance = b.f("div", squares, b.constant(n, F32))
    scale = b.f("rsqrt", b.f("add", variance, 1e-5))
    b.write("y", b.f("mul", b.f("sub", x, mean), scale), "i", "j")
    b.write("variance", variance, "j")
    return b.build("batch_norm")


def loss(n: Dim, m: Dim) -> Kernel:
    """The mean cross-entropy of rows, with targets."""
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    largest, total = b.reduce("softmax", x, ("j",))
    target = b.read("target", "i", dtype=I64)
    index = Index((Term("i", m), Term(target)))
    chosen = b.load(b.buffers[0], index)
    row = b.f("sub", b.f("add", b.f("log", total), largest), chosen)
    mean = b.f("div", b.total(row, "i"), b.constant(n, F32))
    b.write("loss", mean)
    return b.build("loss")


def sum_of_sums(n: Dim, m: Dim) -> Kernel:
    """A sum over columns of the logarithm of the sum of each; another like it over rows."""
    b = Sheet(n, m)
    x, scale = b.read("x", "i", "j"), b.read("scale", "j")
    size = b.f("exp", x)
    columns = b.f("log", b.total(size, "i"))
    b.write("of_columns", b.total(b.f("mul", columns, scale), "j"))
    b.write("of_rows", b.total(b.f("log", b.total(size, "j")), "i"))
    return b.build("sum_of_sums")


def normalized(n: Dim, m: Dim) -> Kernel:
    """Everything depends on one number made of everything."""
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    norm = b.f("sqrt", b.total(b.f("mul", x, x), "i", "j"))
    b.write("y", b.f("div", x, b.f("add", norm, 1e-6)), "i", "j")
    return b.build("normalized")


def sums_of_both(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.read("x", "i", "j", dtype=F64)
    b.write("rows", b.total(x, "j"), "i")
    b.write("columns", b.total(x, "i"), "j")
    b.write("all", b.total(x, "i", "j"))
    b.write("largest", b.reduce("max", x, ("i", "j"))[0])
    return b.build("sums")


def extremes(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    for name, over, kept in (
        ("rows", ("j",), "i"),
        ("columns", ("i",), "j"),
        ("all", ("i", "j"), ""),
    ):
        value, place = b.reduce("argmax", x, over)
        b.write(f"{name}_value", value, *kept)
        b.write(f"{name}_place", place, *kept)
    return b.build("extremes")


def transposed(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.load(b.buffer("x", F32, b.extent(("i", "j"))), Index((Term("j", n), Term("i"))))
    b.write("y", b.f("add", x, b.read("c", "j")), "i", "j")
    return b.build("transposed")


def gelu_in_half(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    x = b.read("x", "i", "j", dtype=F16)
    inner = b.f("add", b.f("erf", b.f("mul", x, 2**-0.5)), 1.0)
    b.write("y", b.f("mul", b.f("mul", x, 0.5), inner), "i", "j", dtype=F16)
    return b.build("gelu")


def embedding_gradient(n: Dim, m: Dim) -> Kernel:
    """Rows are added where an index says, some several times."""
    b = Sheet(n, m)
    row = b.read("index", "i", dtype=I64)
    g = b.read("g", "i", "j")
    out = b.buffer("out", F32, 10 * m, is_written=True)
    b.store(out, Index((Term(row, m), Term("j"))), g, combine="add")
    return b.build("embedding_gradient")


def histogram(n: Dim, m: Dim) -> Kernel:
    b = Sheet(n, m)
    place = b.read("index", "i", "j", dtype=I64)
    out = b.buffer("out", I64, 10, is_written=True)
    b.store(out, Index((Term(place),)), b.constant(1, I64), combine="add")
    return b.build("histogram")


def sums_by_group(n: Dim, m: Dim) -> Kernel:
    """Sums of rows are added up by groups, what is made of the sums of columns by others."""
    b = Sheet(n, m)
    x = b.read("x", "i", "j")
    rows = b.buffer("rows", F32, 10, is_written=True)
    group = b.read("row_group", "i", dtype=I64)
    b.store(rows, Index((Term(group),)), b.total(x, "j"), combine="add")
    columns = b.buffer("columns", F32, 10, is_written=True)
    group = b.read("column_group", "j", dtype=I64)
    b.store(columns, Index((Term(group),)), b.f("mul", b.total(x, "i"), 0.5), combine="add")
    return b.build("sums_by_group")


def rows_replaced(n: Dim, m: Dim) -> Kernel:
    """Rows go where an index says, if it is in range; the last of several that say the same."""
    b = Sheet(n, m)
    place = b.f("sub", b.read("index", "i", dtype=I64), 1)
    limit = b.constant(8, I64)
    low = b.apply("ge", place, b.constant(0, I64), dtype=DType.BOOL)
    high = b.apply("lt", place, limit, dtype=DType.BOOL)
    valid = b.apply("and", low, high, dtype=DType.BOOL)
    safe = b.apply("where", valid, place, b.constant(0, I64), dtype=I64)
    for dtype, combine in ((F32, "last"), (BF16, "last"), (F32, "add")):
        out = b.buffer(f"out_{combine}_{dtype}", dtype, 8 * m, is_written=True)
        value = b.convert(b.read(f"x_{combine}_{dtype}", "i", "j"), dtype)
        b.store(out, Index((Term(safe, m), Term("j"))), value, valid, combine)
    return b.build("rows_replaced")


def scaled_in_place(n: Dim, m: Dim) -> Kernel:
    """Rows are overwritten by what is made of their sums."""
    b = Sheet(n, m)
    x = b.buffer("x", F32, b.extent(("i", "j")), is_written=True)
    index = row_major(b, "i", "j")
    value = b.load(x, index)
    result = b.f("sub", value, b.f("mul", b.total(value, "j"), 0.125))
    b.store(x, index, result)
    b.write("columns", b.total(value, "i"), "j")
    return b.build("in_place")


def shifted_by_the_sum_of_all(n: Dim, m: Dim) -> Kernel:
    """A buffer is overwritten by what a sum of all is subtracted from, of which rows are summed."""
    b = Sheet(n, m)
    x = b.buffer("x", F32, b.extent(("i", "j")), is_written=True)
    value = b.load(x, row_major(b, "i", "j"))
    shifted = b.f("sub", value, b.f("mul", b.total(value, "i", "j"), 0.001))
    b.store(x, row_major(b, "i", "j"), shifted)
    b.write("rows", b.total(shifted, "j"), "i")
    return b.build("shifted_by_the_sum_of_all")


def shifted_by_the_largest_of_all(n: Dim, m: Dim) -> Kernel:
    """The same of exponentials, shifted by the largest of all."""
    b = Sheet(n, m)
    x = b.buffer("x", F32, b.extent(("i", "j")), is_written=True)
    value = b.load(x, row_major(b, "i", "j"))
    (largest,) = b.reduce("max", value, ("i", "j"))
    power = b.f("exp", b.f("sub", value, largest))
    b.store(x, row_major(b, "i", "j"), power)
    b.write("rows", b.total(power, "j"), "i")
    return b.build("shifted_by_the_largest_of_all")


def scattered_beside_in_place(n: Dim, m: Dim) -> Kernel:
    """Zeros that are partly overwritten by what is made of a buffer that is overwritten, too."""
    b = Sheet(n, m)
    place = b.read("index", "i", dtype=I64)
    out = b.buffer("out", F32, b.extent(("i",)), is_written=True)
    x = b.buffer("x", F32, b.extent(("i",)), is_written=True)
    value = b.load(x, row_major(b, "i"))
    b.store(out, row_major(b, "i"), b.constant(0.0, F32))
    b.store(out, Index((Term(place),)), b.f("mul", value, 2.0), combine="last")
    b.store(x, row_major(b, "i"), b.f("add", value, 1.0))
    return b.build("scattered_beside_in_place")


def joined(n: Dim, m: Dim) -> Kernel:
    """Two tensors side by side, and zeros that are partly overwritten."""
    b = Sheet(n, m)
    x, y = b.read("x", "i", "j"), b.read("y", "i", "j")
    out = b.buffer("out", F32, 2 * b.extent(("i", "j")), is_written=True)
    b.store(out, Index((Term("i", 2 * m), Term("j"))), x)
    b.store(out, Index((Term("i", 2 * m), Term("j")), m), y)
    zeros = b.buffer("zeros", F32, b.extent(("i", "j")), is_written=True)
    b.store(zeros, row_major(b, "i", "j"), b.constant(0.0, F32))
    b.store(zeros, Index((Term("j"),)), b.f("mul", b.read("z", "j"), 2.0))
    return b.build("joined")


def shifted(n: Dim, m: Dim) -> Kernel:
    """Each row moved by one, with zero where nothing is: masked loads."""
    b = Sheet(n, m)
    place = b.position(Index((Term("j"),), -1))
    inside = b.apply("ge", place, b.constant(0, I64), dtype=DType.BOOL)
    x = b.buffer("x", BF16, b.extent(("i", "j")))
    moved = b.load(x, Index((Term("i", m), Term("j")), -1), inside, 0.0)
    b.write("y", moved, "i", "j")
    return b.build("shifted")


def _within(b: Sheet, index: Index, low: Dim, high: Dim) -> Scalar:
    """Whether a position is at least `low` and below `high`."""
    place = b.position(index)
    above = b.apply("ge", place, b.constant(low, I64), dtype=DType.BOOL)
    below = b.apply("lt", place, b.constant(high, I64), dtype=DType.BOOL)
    return b.apply("and", above, below, dtype=DType.BOOL)


def joined_along(axis: str, n: Dim, m: Dim, dtype: DType) -> tuple[Sheet, Scalar]:
    """Three tensors one after the other along an axis, of which the first two have 5 each."""
    b = Sheet(n, m)
    chosen = b.constant(0.0, F32)
    for start, stop in ((0, 5), (5, 10), (10, b.axes[axis].size)):
        mask = _within(b, Index((Term(axis),)), start, stop)
        strides = {"i": m, "j": 1}
        if axis == "j":
            strides["i"] = 5 if stop == 5 or start == 5 else m
        terms = tuple(Term(name, stride) for name, stride in strides.items())
        buffer = b.buffer(f"x{start}", dtype, n * m + 10 * (n + m))
        loaded = b.load(buffer, Index(terms, -start * strides[axis]), mask)
        wide = b.convert(loaded, F32)
        chosen = b.apply("where", mask, wide, chosen, dtype=F32)
    return b, chosen


def joined_rows(n: Dim, m: Dim) -> Kernel:
    b, chosen = joined_along("j", n, m, F32)
    b.write("y", chosen, "i", "j")
    b.write("sums", b.total(chosen, "i"), "j")
    return b.build("joined_rows")


def joined_columns(n: Dim, m: Dim) -> Kernel:
    b, chosen = joined_along("i", n, m, BF16)
    b.write("y", chosen, "i", "j", dtype=BF16)
    b.write("sums", b.total(chosen, "j"), "i")
    return b.build("joined_columns")


def triangle(n: Dim, m: Dim) -> Kernel:
    """What lies above a diagonal counts for nothing; another mask looks at the row itself."""
    b = Sheet(n, m)
    place = b.position(Index((Term("j"), Term("i", -1))))
    inside = b.apply("le", place, b.constant(2, I64), dtype=DType.BOOL)
    x = b.buffer("x", F32, b.extent(("i", "j")))
    kept = b.load(x, row_major(b, "i", "j"), inside, float("-inf"))
    b.write("y", b.f("sub", kept, 1.0), "i", "j")
    b.write("largest", b.reduce("max", kept, ("j",))[0], "i")
    b.write("smallest", b.reduce("max", b.f("mul", kept, 0.5), ("i",))[0], "j")
    return b.build("triangle")


def framed(n: Dim, m: Dim) -> Kernel:
    """A tensor with one number around it on all sides."""
    b = Sheet(n, m)
    rows = _within(b, Index((Term("i"),), -2), 0, n - 4)
    columns = _within(b, Index((Term("j"),), -3), 0, m - 6)
    mask = b.apply("and", rows, columns, dtype=DType.BOOL)
    x = b.buffer("x", F32, n * m)
    loaded = b.load(x, Index((Term("i", m), Term("j")), -2 * m - 3), mask)
    b.write("y", b.apply("where", mask, loaded, b.constant(7.0, F32), dtype=F32), "i", "j")
    return b.build("framed")


EXAMPLES: list[Example] = [
    softmax_of_rows, softmax_of_columns, layer_norm, layer_norm_backward, batch_norm, loss,
    sum_of_sums,
    normalized, sums_of_both, extremes, transposed, gelu_in_half, embedding_gradient, histogram,
    sums_by_group, rows_replaced,
    scaled_in_place, shifted_by_the_sum_of_all, shifted_by_the_largest_of_all,
    scattered_beside_in_place, joined, shifted,
    joined_rows, joined_columns, triangle, framed,
]  # fmt: skip


def buffers_of(kernel: Kernel, symbols: dict[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Contents for a kernel's buffers; integers are places below 10 and below the sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [evaluate(axis.size, symbols) for axis in kernel.axes]
    buffers = {}
    for buffer in kernel.buffers:
        count, dtype = evaluate(buffer.extent, symbols), torch_dtype(buffer.dtype)
        if dtype.is_floating_point:
            values = torch.randn(count, generator=generator, dtype=torch.float64)
        else:
            values = torch.randint(0, max(1, min(10, *sizes)), (count,), generator=generator)
        buffers[buffer.name] = values.to(dtype)
    return buffers
