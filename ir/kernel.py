"""The loop-level kernel IR: what a kernel computes at each point of its axes, without a schedule.

A kernel is a flat list of instructions over named axes. Each scalar depends on some of the axes,
its *domain*, which follows from how it is made; a reduction takes axes away. Nothing says in which
order the axes run, what is vectorized, or what is kept and what computed again: that is the
schedule, which each code generator chooses.

    kernel softmax(%x: f32[65536], %y: f32[65536] write) over i: 256, j: 256 {
        %0 = load %x[i*256 + j] : f32
        %1 = reduce max over j %0 : f32
        %2 = sub %0, %1 : f32
        %3 = exp %2 : f32
        %4 = reduce sum over j %3 : f32
        %5 = div %3, %4 : f32
        store %y[i*256 + j] %5
    }
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from .core import Number
from .dims import Dim, free_symbols
from .location import UNKNOWN, Location
from .types import DType


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """A named axis and its number of points."""

    name: str
    size: Dim


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """Memory that a kernel is given, as a flat array; compared by identity.

    `extent` is the number of elements from the first to the last that may be touched. No two
    buffers of a kernel overlap, unless both are only read.
    """

    name: str
    dtype: DType
    extent: Dim
    is_written: bool = False


class Scalar:
    """One number at each point of its domain; compared by identity.

    `axes` lists the names of the axes that it depends on, in the order of the kernel's axes.
    """

    __slots__ = ("axes", "dtype", "instruction")

    def __init__(self, dtype: DType, axes: tuple[str, ...], instruction: Instruction) -> None:
        self.dtype = dtype
        self.axes = axes
        self.instruction = instruction


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an index: `(of // divisor) % modulus * stride`, of an axis or of a scalar.

    No `modulus` means none. Scalars are integers, and not negative.
    """

    of: str | Scalar
    stride: Dim = 1
    divisor: Dim = 1
    modulus: Dim | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """A sum of terms and an offset: a position in a buffer, or a number to compute with."""

    terms: tuple[Term, ...] = ()
    offset: Dim = 0

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The scalars that the index depends on."""
        return tuple(term.of for term in self.terms if isinstance(term.of, Scalar))


@dataclass(frozen=True, eq=False)
class Instruction:
    """Base of instructions. `domain` lists the axes that it runs over; `results` what it gives.

    Instructions are built by `KernelBuilder`, which works the domains out.
    """

    domain: tuple[str, ...]
    loc: Location = field(default=UNKNOWN, kw_only=True)
    results: tuple[Scalar, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        results = tuple(Scalar(dtype, self.result_axes(), self) for dtype in self.result_dtypes())
        object.__setattr__(self, "results", results)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The scalars that the instruction reads, those of indices included."""
        return ()

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the element types of the results."""
        return ()

    def result_axes(self) -> tuple[str, ...]:
        """Return the axes that the results depend on."""
        return self.domain

    @property
    def out(self) -> Scalar:
        """The result of an instruction with exactly one."""
        (result,) = self.results
        return result


@dataclass(frozen=True, eq=False)
class Constant(Instruction):
    """A number, converted to `dtype`. A symbolic one is an integer expression."""

    value: Number
    dtype: DType

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the type of the number."""
        return (self.dtype,)


@dataclass(frozen=True, eq=False)
class Position(Instruction):
    """The value of an index, as `i64`: what masks and ranges are made of."""

    index: Index

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The scalars in the index."""
        return self.index.scalars

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return `i64`."""
        return (DType.I64,)


@dataclass(frozen=True, eq=False)
class Load(Instruction):
    """Read an element of a buffer; where `mask` is false, nothing is read and it is `other`."""

    buffer: Buffer
    index: Index
    mask: Scalar | None = None
    other: Number = 0

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The scalars in the index, and the mask."""
        return (*self.index.scalars, *((self.mask,) if self.mask is not None else ()))

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the type of the buffer's elements."""
        return (self.buffer.dtype,)


@dataclass(frozen=True, eq=False)
class Apply(Instruction):
    """Apply one of `FUNCTIONS` to scalars; `dtype` is the type of the result.

    The operands of arithmetic have one type, in which it computes; never a low-precision one.
    """

    function: str
    arguments: tuple[Scalar, ...]
    dtype: DType

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The arguments."""
        return self.arguments

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the type of the result."""
        return (self.dtype,)


@dataclass(frozen=True, eq=False)
class Convert(Instruction):
    """Convert to another element type as torch does; to a low-precision one, round half to even."""

    x: Scalar
    dtype: DType

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The converted scalar."""
        return (self.x,)

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the new type."""
        return (self.dtype,)


COMBINES: dict[str, int] = {
    "sum": 1,
    "prod": 1,
    "max": 1,
    "min": 1,
    "any": 1,
    "all": 1,
    "argmax": 2,
    "argmin": 2,
    "welford": 2,
    "softmax": 2,
}
"""How reductions combine, with the number of their results.

`max` and `min` give NaN if there is one. `argmax` and `argmin` give the value and its position
(`i64`, row-major over the reduced axes as `over` lists them; the first of equals, the first NaN
before all). `welford` gives the mean and the sum of squared deviations, `softmax` the maximum `m`
and the sum of `exp(x - m)`. Over no point: sum 0, prod 1, max and min the infinities or the least
and greatest integer, any false, all true.
"""


@dataclass(frozen=True, eq=False)
class Reduce(Instruction):
    """Combine a scalar over some axes, in an order that the schedule chooses.

    The results depend on the other axes of the domain. Where a floating sum is rounded is up to the
    schedule too, which must not lose more than a blocked summation in the type of `x` does.
    """

    combine: str
    x: Scalar
    over: tuple[str, ...]

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The combined scalar."""
        return (self.x,)

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the types of the results."""
        if self.combine in ("argmax", "argmin"):
            return (self.x.dtype, DType.I64)
        return (self.x.dtype,) * COMBINES[self.combine]

    def result_axes(self) -> tuple[str, ...]:
        """Return the axes that stay."""
        return tuple(axis for axis in self.domain if axis not in self.over)


STORES = ("set", "last", "add")
"""How stores combine what several points write to one place."""


@dataclass(frozen=True, eq=False)
class Store(Instruction):
    """Write a scalar to a buffer, at each point of the domain for which `mask` holds.

    With `combine` "set" no two points write one place. With "last" several may, and what the last
    of them in the row-major order of the domain writes stays. With "add" the scalar is added to
    what is there, for all points in that order.
    """

    buffer: Buffer
    index: Index
    value: Scalar
    mask: Scalar | None = None
    combine: str = "set"

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The value, the scalars in the index, and the mask."""
        mask = (self.mask,) if self.mask is not None else ()
        return (self.value, *self.index.scalars, *mask)

    @property
    def is_ordered(self) -> bool:
        """Whether several points may write one place, so that their order matters."""
        return self.combine != "set"


@dataclass(frozen=True, eq=False)
class Check(Instruction):
    """Let the call fail with an `IndexError` if a truth value is false anywhere.

    What follows must be safe to run all the same: an index is replaced where the check fails.
    """

    condition: Scalar
    message: str

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The condition."""
        return (self.condition,)


KernelBody: TypeAlias = tuple[Instruction, ...]


@dataclass(frozen=True, eq=False)
class Kernel:
    """Axes, buffers and instructions in order of definition; immutable, compared by identity."""

    name: str
    axes: tuple[KernelAxis, ...]
    buffers: tuple[Buffer, ...]
    body: KernelBody

    @functools.cached_property
    def sizes(self) -> dict[str, Dim]:
        """The size of each axis."""
        return {axis.name: axis.size for axis in self.axes}

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that any dimension of the kernel depends on, sorted."""
        return tuple(sorted(free_symbols(self._dims())))

    def _dims(self) -> Iterator[Dim]:
        yield from (axis.size for axis in self.axes)
        yield from (buffer.extent for buffer in self.buffers)
        for instruction in self.body:
            if isinstance(instruction, Constant) and not isinstance(
                instruction.value, bool | int | float | complex
            ):
                yield instruction.value
            index = getattr(instruction, "index", None)
            if isinstance(index, Index):
                yield index.offset
                for term in index.terms:
                    yield from (term.stride, term.divisor)
                    if term.modulus is not None:
                        yield term.modulus


class KernelBuilder:
    """Builds a kernel, instruction by instruction, and works out the domains.

    Equal instructions without effect are built once. Axes are entered in the order in which the
    finished kernel lists them.
    """

    def __init__(self) -> None:
        self.axes: dict[str, KernelAxis] = {}
        self.buffers: list[Buffer] = []
        self.body: list[Instruction] = []
        self.loc = UNKNOWN
        self._known: dict[tuple[object, ...], Instruction] = {}

    def axis(self, name: str, size: Dim) -> str:
        """Enter an axis and return its name."""
        self.axes[name] = KernelAxis(name, size)
        return name

    def buffer(self, name: str, dtype: DType, extent: Dim, *, is_written: bool = False) -> Buffer:
        """Enter a buffer."""
        buffer = Buffer(name, dtype, extent, is_written)
        self.buffers.append(buffer)
        return buffer

    def constant(self, value: Number, dtype: DType) -> Scalar:
        """Return a number."""
        key = ("constant", type(value), repr(value), dtype)
        return self._once(key, lambda: Constant((), value, dtype, loc=self.loc))

    def position(self, index: Index) -> Scalar:
        """Return the value of an index."""
        domain = self._domain(index, ())
        return self._once(("position", index), lambda: Position(domain, index, loc=self.loc))

    def load(
        self, buffer: Buffer, index: Index, mask: Scalar | None = None, other: Number = 0
    ) -> Scalar:
        """Read an element."""
        domain = self._domain(index, (mask,) if mask is not None else ())
        key = ("load", buffer, index, mask, repr(other))
        return self._once(key, lambda: Load(domain, buffer, index, mask, other, loc=self.loc))

    def apply(self, function: str, *arguments: Scalar, dtype: DType) -> Scalar:
        """Apply a function."""
        domain = self._domain(Index(), arguments)
        key = ("apply", function, arguments, dtype)
        return self._once(key, lambda: Apply(domain, function, arguments, dtype, loc=self.loc))

    def convert(self, x: Scalar, dtype: DType) -> Scalar:
        """Convert to another type; nothing if it is of that type."""
        if x.dtype is dtype:
            return x
        return self._once(("convert", x, dtype), lambda: Convert(x.axes, x, dtype, loc=self.loc))

    def reduce(self, combine: str, x: Scalar, over: tuple[str, ...]) -> tuple[Scalar, ...]:
        """Combine over axes, which need not be in the domain of `x`."""
        key = ("reduce", combine, x, over)
        if key not in self._known:
            wanted = {*x.axes, *over}
            domain = tuple(axis for axis in self.axes if axis in wanted)
            self._known[key] = Reduce(domain, combine, x, over, loc=self.loc)
            self.body.append(self._known[key])
        return self._known[key].results

    def store(
        self,
        buffer: Buffer,
        index: Index,
        value: Scalar,
        mask: Scalar | None = None,
        combine: str = "set",
    ) -> None:
        """Write an element."""
        domain = self._domain(index, (value, *((mask,) if mask is not None else ())))
        self.body.append(Store(domain, buffer, index, value, mask, combine, loc=self.loc))

    def check(self, condition: Scalar, message: str) -> None:
        """Make sure that a truth value is true everywhere."""
        key = ("check", condition, message)
        if key not in self._known:
            self._known[key] = Check(condition.axes, condition, message, loc=self.loc)
            self.body.append(self._known[key])

    def build(self, name: str) -> Kernel:
        """Return the finished kernel."""
        return Kernel(name, tuple(self.axes.values()), tuple(self.buffers), tuple(self.body))

    def _once(self, key: tuple[object, ...], make: object) -> Scalar:
        instruction = self._known.get(key)
        if instruction is None:
            instruction = make()  # type: ignore[operator]
            self._known[key] = instruction
            self.body.append(instruction)
        return instruction.out

    def _domain(self, index: Index, scalars: tuple[Scalar, ...]) -> tuple[str, ...]:
        wanted = {term.of for term in index.terms if isinstance(term.of, str)}
        for scalar in (*scalars, *index.scalars):
            wanted.update(scalar.axes)
        return tuple(axis for axis in self.axes if axis in wanted)
