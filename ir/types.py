"""Types of values: tensors, symbolic scalars, and what Lynx only passes along."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import sympy

from .dims import Dim, format_dim, is_equal, product
from .sharding import Sharding, quote_name

_DEVICE = re.compile(r"[A-Za-z_]\w*(?::\d+)?", re.ASCII)
_KIND = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


class DType(enum.Enum):
    """An element type. The value is its name in text."""

    BOOL = "bool"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    C32 = "c32"
    C64 = "c64"
    C128 = "c128"

    def __str__(self) -> str:
        return self.value

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        """Whether this is a real floating type."""
        return self.value.startswith(("f", "bf"))

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self.value.startswith("c")

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type; `bool` is none."""
        return self.value.startswith(("i", "u"))

    @property
    def is_low_precision(self) -> bool:
        """Whether eager computes this type in `f32` and rounds the result."""
        return self in (DType.F16, DType.BF16)


_ITEMSIZE = {
    DType.BOOL: 1, DType.U8: 1, DType.U16: 2, DType.U32: 4, DType.U64: 8,
    DType.I8: 1, DType.I16: 2, DType.I32: 4, DType.I64: 8,
    DType.F8E4M3FN: 1, DType.F8E4M3FNUZ: 1, DType.F8E5M2: 1, DType.F8E5M2FNUZ: 1,
    DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8,
    DType.C32: 4, DType.C64: 8, DType.C128: 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: element type, shape, device, and how it lies on the mesh.

        f32[s0 @ dp, 512] + partial(sum: tp) on cuda:0

    Shapes are global; strides are no part of a type (values have value semantics). No `sharding`
    means that nothing was decided; one that uses no axis is printed as `replicated`.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    device: str = "cpu"
    sharding: Sharding | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """The number of bytes of a dense layout."""
        return product((*self.shape, self.dtype.itemsize))

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        """Return the type with another shape, not sharded."""
        return TensorType(self.dtype, shape, self.device)

    def with_dtype(self, dtype: DType) -> TensorType:
        """Return the type with another element type."""
        return TensorType(dtype, self.shape, self.device, self.sharding)

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(self._dim_texts())}]"
        if self.sharding is not None:
            text += "".join(f" + {partial}" for partial in self.sharding.partial)
            text += "" if self.sharding.axes else " replicated"
        return text if self.device == "cpu" else f"{text} on {quote_name(self.device, _DEVICE)}"

    def _dim_texts(self) -> list[str]:
        texts = [format_dim(dim) for dim in self.shape]
        if self.sharding is None:
            return texts
        for index, split in enumerate(self.sharding.splits[: self.rank]):
            if split.axes:
                texts[index] += f" @ {split}"
        return texts


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A Python number that is known only when the program runs; `kind` is int, float or bool.

    `expr` is its value over the graph's symbols, where it has one: `int(s0*2)`.
    """

    kind: str
    expr: Dim | None = None

    def __str__(self) -> str:
        return self.kind if self.expr is None else f"{self.kind}({format_dim(self.expr)})"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """Something that only torch understands: a sparse tensor, a token, a script object."""

    kind: str

    def __str__(self) -> str:
        return f"opaque<{quote_name(self.kind, _KIND)}>"


Type: TypeAlias = TensorType | ScalarType | OpaqueType


def is_same_type(a: Type, b: Type) -> bool:
    """Whether the types are equal, with dimensions compared by meaning and not by form."""
    if a == b:
        return True
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return (
            (a.dtype, a.rank, a.device, a.sharding) == (b.dtype, b.rank, b.device, b.sharding)
        ) and all(map(_is_same_dim, a.shape, b.shape))
    if not (isinstance(a, ScalarType) and isinstance(b, ScalarType) and a.kind == b.kind):
        return False
    return a.expr is not None and b.expr is not None and _is_same_dim(a.expr, b.expr)


def is_alike(a: Type, b: Type) -> bool:
    """Whether the types are equal but for how tensors lie on the mesh."""
    if a is b:
        return True
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype is b.dtype and a.shape == b.shape and a.device == b.device
    return a == b


def _is_same_dim(a: Dim, b: Dim) -> bool:
    # The text normalises exact divisions, which have no common polynomial form.
    return is_equal(a, b) or format_dim(a) == format_dim(b)


def unsharded(type_: Type) -> Type:
    """Return the type without how it lies on the mesh."""
    if not isinstance(type_, TensorType) or type_.sharding is None:
        return type_
    return type_.with_shape(type_.shape)


def symbols_told(type_: Type) -> Iterator[str]:
    """Yield the symbols that are a number of this type, or a size of a tensor of it."""
    dims: tuple[Dim | None, ...] = ()
    if isinstance(type_, ScalarType):
        dims = (type_.expr,)
    elif isinstance(type_, TensorType):
        dims = type_.shape
    for dim in dims:
        if isinstance(dim, sympy.Symbol):
            yield dim.name
