"""Kernels of the kinds that models are made of, built by hand in any size."""

from __future__ import annotations

from dataclasses import dataclass, field

from lynx.ir.dims import Dim, product
from lynx.ir.kernel import Buffer, Index, Kernel, KernelBuilder, Scalar, Term
from lynx.ir.types import DType

F32, BF16, I64, BOOL = DType.F32, DType.BF16, DType.I64, DType.BOOL


@dataclass
class Maker:
    """A kernel in the making over axes, with short names for what kernels consist of."""

    sizes: dict[str, Dim]
    dtype: DType = F32
    build: KernelBuilder = field(default_factory=KernelBuilder)

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            self.build.axis(name, size)

    def at(self, axes: str, offset: Dim = 0) -> Index:
        """Return the row-major index over axes, each named by a letter."""
        terms = []
        stride: Dim = 1
        for axis in reversed(axes):
            terms.append(Term(axis, stride))
            stride = product((stride, self.sizes[axis]))
        return Index(tuple(reversed(terms)), offset)

    def count(self, axes: str) -> Dim:
        return product(self.sizes[axis] for axis in axes)

    def input(self, name: str, axes: str, dtype: DType | None = None) -> Scalar:
        """Load an element of a row-major buffer; low precision is converted to f32."""
        buffer = self.build.buffer(name, dtype or self.dtype, self.count(axes))
        x = self.build.load(buffer, self.at(axes))
        return self.build.convert(x, F32) if x.dtype.is_low_precision else x

    def output(self, name: str, axes: str, value: Scalar) -> Buffer:
        """Store to a row-major buffer, of the maker's type if the value is floating."""
        dtype = self.dtype if value.dtype is F32 else value.dtype
        buffer = self.build.buffer(name, dtype, self.count(axes), is_written=True)
        self.build.store(buffer, self.at(axes), self.build.convert(value, dtype))
        return buffer

    def do(self, name: str, *operands: Scalar | float, dtype: DType = F32) -> Scalar:
        """Apply a function to scalars and numbers."""
        kind = next((x.dtype for x in operands if isinstance(x, Scalar)), F32)
        made = [x if isinstance(x, Scalar) else self.build.constant(x, kind) for x in operands]
        return self.build.apply(name, *made, dtype=dtype)

    def reduce(self, combine: str, x: Scalar, over: str) -> Scalar:
        return self.build.reduce(combine, x, tuple(over))[0]


def pointwise(n: Dim, dtype: DType = F32) -> Kernel:
    """GELU by tanh of a sum, and its operand: two results."""
    m = Maker({"i": n}, dtype)
    x = m.do("add", m.input("a", "i"), m.input("b", "i"))
    inner = m.do("mul", m.do("add", x, m.do("mul", m.do("mul", x, m.do("mul", x, x)), 0.044715)),
                 0.7978845608028654)  # fmt: skip
    m.output("y", "i", m.do("mul", m.do("mul", x, 0.5), m.do("add", m.do("tanh", inner), 1.0)))
    m.output("z", "i", x)
    return m.build.build("gelu")


def transposed(rows: Dim, columns: Dim) -> Kernel:
    """The sum of a matrix and a transposed one."""
    m = Maker({"i": rows, "j": columns})
    m.output("y", "ij", m.do("add", m.input("a", "ij"), m.input("b", "ji")))
    return m.build.build("add_transposed")


def softmax(rows: Dim, columns: Dim, dtype: DType = F32) -> Kernel:
    m = Maker({"i": rows, "j": columns}, dtype)
    x = m.input("x", "ij")
    e = m.do("exp", m.do("sub", x, m.reduce("max", x, "j")))
    m.output("y", "ij", m.do("div", e, m.reduce("sum", e, "j")))
    return m.build.build("softmax")


def layer_norm(rows: Dim, columns: int, dtype: DType = F32) -> Kernel:
    """Layer norm with weight and bias, and the statistics for the gradient."""
    m = Maker({"i": rows, "j": columns}, dtype)
    x = m.input("x", "ij")
    mean, squares = m.build.reduce("welford", x, ("j",))
    rstd = m.do("rsqrt", m.do("add", m.do("div", squares, float(columns)), 1e-5))
    normal = m.do("mul", m.do("sub", x, mean), rstd)
    scaled = m.do("add", m.do("mul", normal, m.input("w", "j")), m.input("b", "j"))
    m.output("y", "ij", scaled)
    m.output("mean", "i", mean)
    m.output("rstd", "i", rstd)
    return m.build.build("layer_norm")


def layer_norm_backward(rows: Dim, columns: int, dtype: DType = F32) -> Kernel:
    """The gradients of layer norm: of its input along rows, of its parameters along columns."""
    m = Maker({"i": rows, "j": columns}, dtype)
    grad, x = m.input("grad", "ij"), m.input("x", "ij")
    rstd = m.input("rstd", "i", F32)
    normal = m.do("mul", m.do("sub", x, m.input("mean", "i", F32)), rstd)
    weighted = m.do("mul", grad, m.input("w", "j"))
    first = m.do("div", m.reduce("sum", weighted, "j"), float(columns))
    second = m.do("div", m.reduce("sum", m.do("mul", weighted, normal), "j"), float(columns))
    inner = m.do("sub", m.do("sub", weighted, first), m.do("mul", normal, second))
    m.output("dx", "ij", m.do("mul", inner, rstd))
    m.output("dw", "j", m.reduce("sum", m.do("mul", grad, normal), "i"))
    m.output("db", "j", m.reduce("sum", grad, "i"))
    return m.build.build("layer_norm_backward")


def cross_entropy(rows: Dim, classes: Dim) -> Kernel:
    """The mean loss of rows of logits, whose targets are checked."""
    m = Maker({"i": rows, "j": classes})
    x = m.input("logits", "ij")
    most, total = m.build.reduce("softmax", x, ("j",))
    target = m.input("target", "i", I64)
    m.build.check(inside(m, target, classes), "target out of range")
    safe = m.do("where", inside(m, target, classes), target, 0, dtype=I64)
    logits = m.build.buffers[0]
    chosen = m.build.load(logits, Index((Term("i", classes), Term(safe))))
    loss = m.do("sub", m.do("add", most, m.do("log", total)), chosen)
    mean = m.do("div", m.reduce("sum", loss, "i"), m.build.constant(rows, F32))
    m.output("loss", "", mean)
    return m.build.build("cross_entropy")


def inside(m: Maker, index: Scalar, size: Dim) -> Scalar:
    low = m.do("ge", index, 0, dtype=BOOL)
    high = m.build.apply("lt", index, m.build.constant(size, I64), dtype=BOOL)
    return m.do("and", low, high, dtype=BOOL)


def gather(rows: Dim, width: int, table: int) -> Kernel:
    """Rows of a table, as an embedding reads them."""
    m = Maker({"i": rows, "j": width, "v": table})
    index = m.input("index", "i", I64)
    weights = m.build.buffer("weights", F32, m.count("vj"))
    m.output("y", "ij", m.build.load(weights, Index((Term(index, width), Term("j")))))
    return m.build.build("embedding")


def scatter_add(rows: Dim, width: int, table: int, dtype: DType = F32) -> Kernel:
    """The gradient of an embedding: zeros, to which rows are added."""
    m = Maker({"v": table, "i": rows, "j": width}, dtype)
    index = m.input("index", "i", I64)
    grad = m.build.load(m.build.buffer("grad", dtype, m.count("ij")), m.at("ij"))
    out = m.build.buffer("out", dtype, m.count("vj"), is_written=True)
    m.build.store(out, m.at("vj"), m.build.constant(0, dtype))
    m.build.store(out, Index((Term(index, width), Term("j"))), grad, combine="add")
    return m.build.build("embedding_backward")


def reduction(combine: str, rows: Dim, columns: Dim, over: str, dtype: DType = F32) -> Kernel:
    """One reduction of a matrix along rows, columns or both, with all its results."""
    m = Maker({"i": rows, "j": columns}, dtype)
    x = m.build.load(m.build.buffer("x", dtype, m.count("ij")), m.at("ij"))
    kept = "".join(axis for axis in "ij" if axis not in over)
    for place, result in enumerate(m.build.reduce(combine, x, tuple(over))):
        out = m.build.buffer(f"y{place}", result.dtype, m.count(kept), is_written=True)
        m.build.store(out, m.at(kept), result)
    return m.build.build(f"{combine}_over_{over}")


def product_of(
    batch: int, rows: Dim, columns: int, depth: int, dtype: DType = F32, *, prologue: bool = False
) -> Kernel:
    """A product with a bias and an activation, of a transposed second factor."""
    m = Maker({"b": batch, "i": rows, "j": columns, "k": depth}, dtype)
    x, w = m.input("x", "bik"), m.input("w", "bjk")
    if prologue:
        x = m.do("add", m.do("exp", x), m.input("shift", "k"))
    total = m.reduce("sum", m.do("mul", x, w), "k")
    m.output("y", "bij", m.do("maximum", m.do("add", total, m.input("bias", "j")), 0.0))
    return m.build.build("linear_relu")
