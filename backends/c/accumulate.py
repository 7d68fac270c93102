"""C text of accumulators: how reductions start, combine, and end."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.types import DType

from .text import UNSIGNED, memory_type, number, value_type

LEAST = {DType.I8: -(1 << 7), DType.I16: -(1 << 15), DType.I32: -(1 << 31), DType.I64: -(1 << 63)}


def is_float(dtype: DType) -> bool:
    """Whether rounding and NaN are to be thought of."""
    return dtype in (DType.F32, DType.F64)


def kind_of(combine: str, dtype: DType) -> str:
    """Return the combination; of truth values, sums and extremes are `any` and `all`."""
    if dtype is DType.BOOL:
        return {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(combine, combine)
    return combine


def identity(combine: str, dtype: DType) -> str:
    """Return what a reduction over no point gives."""
    kind = kind_of(combine, dtype)
    if kind in ("sum", "any"):
        return number(0, dtype)
    if kind in ("prod", "all"):
        return number(1, dtype)
    is_max = kind == "max"
    if is_float(dtype):
        return number(float("-inf") if is_max else float("inf"), dtype)
    least = LEAST.get(dtype, 0)
    most = (1 << (dtype.itemsize * 8)) - 1 + least
    return number(least if is_max else most, dtype)


def fold(combine: str, dtype: DType, a: str, b: str) -> str:
    """Return the combination of two values."""
    kind = kind_of(combine, dtype)
    if kind in ("any", "all"):
        return f"{a} {'|' if kind == 'any' else '&'} {b}"
    if kind in ("sum", "prod"):
        sign = "+" if kind == "sum" else "*"
        if is_float(dtype):
            return f"{a} {sign} {b}"
        wide = UNSIGNED[dtype]
        return f"({memory_type(dtype)})(({wide}){a} {sign} ({wide}){b})"
    if is_float(dtype):
        return f"lynx_{kind}imum_{dtype}({a}, {b})"
    return f"{a} {'>' if kind == 'max' else '<'} {b} ? {a} : {b}"


@dataclass(frozen=True)
class Accumulator:
    """A variable that a vectorized loop combines into; extremes of floats also note NaN."""

    name: str
    combine: str
    dtype: DType

    @property
    def kind(self) -> str:
        """The combination."""
        return kind_of(self.combine, self.dtype)

    @property
    def type(self) -> str:
        """The C type in which it is combined."""
        if self.dtype is DType.BOOL:
            return "i32"
        if self.kind in ("sum", "prod") and not is_float(self.dtype):
            return UNSIGNED[self.dtype]
        return value_type(self.dtype)

    @property
    def notes_nan(self) -> bool:
        """Whether a second variable notes NaN, since comparisons lose it."""
        return self.kind in ("max", "min") and is_float(self.dtype)

    @property
    def neutral(self) -> str:
        """The value that changes nothing."""
        return identity(self.combine, self.dtype)

    def declaration(self) -> list[str]:
        """Return the declaration with the neutral value."""
        lines = [f"{self.type} {self.name} = {self.neutral};"]
        if self.notes_nan:
            lines.append(f"{self.nan_type} {self.name}_nan = 0;")
        return lines

    @property
    def nan_type(self) -> str:
        """An integer as wide as the values, so that both are vectorized alike."""
        return "i32" if self.dtype is DType.F32 else "i64"

    def clauses(self) -> list[str]:
        """Return the reduction clauses of the loop."""
        sign = {"sum": "+", "prod": "*", "any": "|", "all": "&"}.get(self.kind, self.kind)
        clauses = [f"reduction({sign}:{self.name})"]
        if self.notes_nan:
            clauses.append(f"reduction(|:{self.name}_nan)")
        return clauses

    def update(self, x: str, lane: str = "") -> list[str]:
        """Return the statements that take in a value; `lane` indexes an array of accumulators."""
        name = f"{self.name}{lane}"
        match self.kind:
            case "sum" | "prod":
                cast = "" if is_float(self.dtype) else f"({self.type})"
                return [f"{name} {'+' if self.kind == 'sum' else '*'}= {cast}{x};"]
            case "any" | "all":
                return [f"{name} {'|' if self.kind == 'any' else '&'}= {x};"]
        sign = ">" if self.kind == "max" else "<"
        lines = [f"{name} = {x} {sign} {name} ? {x} : {name};"]
        if self.notes_nan:
            lines.insert(0, f"{self.name}_nan |= SEEN({x}, {sign}, {self.neutral});")
        return lines

    def result(self) -> str:
        """Return the combined value."""
        if self.notes_nan:
            nan = number(float("nan"), self.dtype)
            return f"FOUND({self.name}_nan, {self.name}, {nan}, {self.neutral})"
        if self.type != value_type(self.dtype):
            return f"({value_type(self.dtype)}){self.name}"
        return self.name
