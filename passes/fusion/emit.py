"""From ops to instructions of a kernel: what an op computes for one element of its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Index, KernelBuilder, Scalar
from lynx.ir.types import DType
from lynx.ir.writing import is_write

from .coordinates import Coordinates, Splitter, position_of
from .naming import AxisList, AxisNames

_O = TypeVar("_O", bound=Op)


@dataclass(frozen=True, slots=True)
class Want:
    """A request for the element of a value at some coordinates.

    Where `mask` is false the element is not needed, and may lie outside of the value.
    """

    value: Value
    at: Coordinates
    mask: Scalar | None = None


Emission: TypeAlias = Generator[Want, Scalar, tuple[Scalar, ...]]
"""A rule at work: it yields what it wants, is sent scalars, and returns one for each result."""

Rule: TypeAlias = Callable[["Emitter", Any, Want], Emission]


@dataclass(frozen=True, slots=True)
class Write:
    """What is written for one point: a value, at some coordinates, where `mask` holds."""

    at: Coordinates
    value: Scalar
    mask: Scalar | None = None
    combine: str = "set"


WriteEmission: TypeAlias = Generator[Want, Scalar, Write]
"""The rule of an op that writes parts of a tensor, for a point of what is written."""

WriteRule: TypeAlias = Callable[["Emitter", Any, Coordinates], WriteEmission]

_RULES: dict[type[Op], Rule] = {}
_REFUSALS: dict[type[Op], Callable[[Any], str]] = {}
_WRITES: dict[type[Op], WriteRule] = {}

KERNEL_DTYPES = frozenset(
    {
        DType.BOOL,
        DType.U8,
        DType.I8,
        DType.I16,
        DType.I32,
        DType.I64,
        DType.F16,
        DType.BF16,
        DType.F32,
        DType.F64,
    }
)
"""The element types that kernels compute with."""


def emits(*kinds: type[_O], unless: Callable[[_O], str] | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for these op classes; `unless` gives the reason to refuse an op, or ""."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind] = rule
            if unless is not None:
                _REFUSALS[kind] = unless
        return rule

    return register


def writes(
    *kinds: type[_O], unless: Callable[[Any], str] | None = None
) -> Callable[[WriteRule], WriteRule]:
    """Register the rule of ops that write parts of a tensor; `unless` as for `emits`."""

    def register(rule: WriteRule) -> WriteRule:
        for kind in kinds:
            _WRITES[kind] = rule
            if unless is not None:
                _REFUSALS[kind] = unless
        return rule

    return register


def why_not(op: Op) -> str:
    """Return why an op cannot be part of a kernel, an empty text if it can."""
    if type(op) not in (_WRITES if is_write(op) else _RULES):
        return "has no kernel rule"
    for value in (*op.operands, *op.results):
        reason = _type_refusal(value)
        if reason:
            return reason
    refuse = _REFUSALS.get(type(op))
    return refuse(op) if refuse is not None else ""


def _type_refusal(value: Value) -> str:
    dtype = getattr(value.type, "dtype", None)
    if isinstance(dtype, DType):
        return "" if dtype in KERNEL_DTYPES else f"computes with {dtype}"
    expression = getattr(value.type, "expr", None)
    return "" if expression is not None else f"reads {value.type}"


class Emitter:
    """Builds the instructions for the elements of a region's values, each once per place.

    `sources` gives the memory of each parameter, with its strides. Without `contracts` products
    and sums are two functions where eager rounds them at once, for those who look at sums.
    """

    def __init__(
        self,
        builder: KernelBuilder,
        names: AxisNames,
        sources: Mapping[Value, tuple[Buffer, tuple[Dim, ...]]],
        *,
        contracts: bool = True,
    ) -> None:
        self.builder = builder
        self.contracts = contracts
        self.names = names
        self.sources = sources
        self.splitter = Splitter(builder)
        self._done: dict[tuple[object, ...], tuple[Scalar, ...]] = {}

    def write(self, op: Op, at: Coordinates) -> Write:
        """Return what an op writes for a point of its own space, after what that depends on."""
        emission = _WRITES[type(op)](self, op, at)
        answer: Scalar | None = None
        while True:
            self.builder.loc = op.loc
            try:
                wanted = next(emission) if answer is None else emission.send(answer)
            except StopIteration as stop:
                made: Write = stop.value
                return made
            answer = self.element(wanted.value, wanted.at, wanted.mask)

    def element(self, value: Value, at: Coordinates, mask: Scalar | None = None) -> Scalar:
        """Return the scalar for an element, after what it depends on."""
        wanted = Want(value, at, mask)
        answer = self._known(wanted)
        stack = [] if answer is not None else [(wanted, self._begin(wanted))]
        while stack:
            wanted, emission = stack[-1]
            assert wanted.value.op is not None, wanted
            self.builder.loc = wanted.value.op.loc
            try:
                inner = next(emission) if answer is None else emission.send(answer)
            except StopIteration as stop:
                self._done[_key(wanted)] = stop.value
                stack.pop()
                answer = stop.value[wanted.value.index]
                continue
            answer = self._known(inner)
            if answer is None:
                stack.append((inner, self._begin(inner)))
        assert answer is not None, value
        return answer

    def _known(self, want: Want) -> Scalar | None:
        """Return what was emitted before, or the element of a parameter."""
        if want.value.op is None:
            buffer, strides = self.sources[want.value]
            return self.builder.load(buffer, position_of(want.at, strides), want.mask)
        done = self._done.get(_key(want))
        return None if done is None else done[want.value.index]

    def _begin(self, want: Want) -> Emission:
        op = want.value.op
        assert op is not None, want
        rule = _RULES.get(type(op))
        if rule is None or is_write(op):
            raise CompileError("no-kernel", f"'{op.name}' is read where it is not complete", op.loc)
        return rule(self, op, want)

    def reduction_axes(self, value: Value, dim: int, taken: set[str]) -> AxisList:
        """Return axes for a dimension that a reduction runs over, none of them in `taken`."""
        axes = self.names.of(value, dim)
        if any(name in taken for name, _ in axes):
            axes = self.names.fresh(value.shape[dim])
        self.enter(axes)
        return axes

    def enter(self, axes: AxisList) -> None:
        """Make sure that the kernel has these axes."""
        for name, size in axes:
            if name not in self.builder.axes:
                self.builder.axis(name, size)


def _key(want: Want) -> tuple[object, ...]:
    return (want.value.op, want.at, want.mask)


def axes_in(coordinates: Coordinates) -> set[str]:
    """Return the names of the axes that coordinates depend on."""
    found: set[str] = set()
    for coordinate in coordinates:
        for term in coordinate.terms:
            if isinstance(term.of, str):
                found.add(term.of)
            else:
                found.update(term.of.axes)
    return found


def place(coordinate: Index, builder: KernelBuilder) -> Scalar:
    """Return a coordinate as a number."""
    return builder.position(coordinate)
