"""Lowered programs: the ops of a graph in order, with the memory that each result lives in."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .core import Graph, Mutation, Op, Value
from .dims import Dim, contiguous_strides, is_equal, product, simplify
from .types import TensorType

ALIGNMENT = 64
"""Offsets within an arena are multiples of this many bytes: a cache line, a vector register."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one result of a step lives. `strides`, in elements, are None where torch decides them.

    `word` is the name in text; with `is_written` the op computes its results into memory that is
    given to it.
    """

    word: ClassVar[str] = ""
    is_written: ClassVar[bool] = False

    strides: tuple[Dim, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arena(Placement):
    """In the arena of the result's device: `size` bytes, at `offset` once that is planned."""

    word: ClassVar[str] = "arena"
    is_written: ClassVar[bool] = True

    size: Dim = 0
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Saved(Placement):
    """In the arena of what is kept for backward, which lives until nobody needs it."""

    word: ClassVar[str] = "saved"
    is_written: ClassVar[bool] = True

    size: Dim = 0
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Fresh(Placement):
    """In memory of its own, which the runtime allocates and the program hands out."""

    word: ClassVar[str] = "fresh"
    is_written: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class InPlace(Placement):
    """Over the operand `of`, which nobody reads afterwards."""

    word: ClassVar[str] = "in_place"
    is_written: ClassVar[bool] = True

    of: Value | None = None


@dataclass(frozen=True, slots=True)
class Target(Placement):
    """Over the input `of`, which the graph mutates to this very value."""

    word: ClassVar[str] = "target"
    is_written: ClassVar[bool] = True

    of: Value | None = None


@dataclass(frozen=True, slots=True)
class View(Placement):
    """In the memory of the operands `of`, or, where `strides` are unknown, perhaps in its own."""

    word: ClassVar[str] = "view"

    of: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Dynamic(Placement):
    """In memory that the op allocates. Results that are no tensors are all of this kind."""

    word: ClassVar[str] = "dynamic"


@dataclass(frozen=True, slots=True)
class Step:
    """One op, the placement of each of its results, and the values that nobody names afterwards."""

    op: Op
    placements: tuple[Placement, ...]
    frees: tuple[Value, ...] = ()

    @property
    def is_written(self) -> bool:
        """Whether the op computes into memory that it is given."""
        return any(placement.is_written for placement in self.placements)


@dataclass(frozen=True, slots=True)
class Return:
    """How an output leaves the program.

    `copy`: as a copy, since its memory belongs to someone else. `restride`: the runtime compares
    its strides with those of the output spec, and copies if they differ. `unshare`: the runtime
    compares its memory with that of these values, and copies if it is the same.
    """

    copy: bool = False
    restride: bool = False
    unshare: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """How a mutation is done at the end.

    `in_place`: the input was written by the step that computed the value; `copy`: with `copy_`;
    `snapshot`: with `copy_` from a copy made before any input changes; `none`: it holds the value.
    """

    mutation: Mutation
    kind: str = "copy"


WRITE_KINDS = ("in_place", "copy", "snapshot", "none")


@dataclass(frozen=True, slots=True)
class ArenaSize:
    """The planned size in bytes of the arena of a device; `saved` is that kept for backward."""

    device: str
    saved: bool
    size: int


@dataclass(frozen=True, eq=False)
class Program:
    """A graph with everything decided that its memory needs.

    `steps` has one entry for each op of the graph, `returns` one for each output, `writes` one for
    each mutation. `arenas` is empty until memory is planned, and stays empty for arenas with sizes
    that depend on symbols: those are planned when the program runs.
    """

    graph: Graph
    steps: tuple[Step, ...]
    returns: tuple[Return, ...]
    writes: tuple[Write, ...]
    arenas: tuple[ArenaSize, ...] = ()

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.graph.name

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops in order of execution."""
        return self.graph.ops

    @property
    def resources(self) -> Mapping[str, Any]:
        """The constants that the graph holds."""
        return self.graph.resources

    @functools.cached_property
    def placements(self) -> dict[Value, Placement]:
        """The placement of every result."""
        return {
            value: placement
            for step in self.steps
            for value, placement in zip(step.op.results, step.placements, strict=True)
        }

    @functools.cached_property
    def positions(self) -> dict[Op, int]:
        """The index of the step of each op."""
        return {step.op: index for index, step in enumerate(self.steps)}

    def strides(self, value: Value) -> tuple[Dim, ...] | None:
        """Return the strides of a value, None where they are not known before the program runs."""
        if value.op is None:
            return self.input_strides.get(value)
        return self.placements[value].strides

    @functools.cached_property
    def input_strides(self) -> dict[Value, tuple[Dim, ...] | None]:
        """The strides that the caller promises of each input."""
        specs = zip(self.graph.inputs, self.graph.input_specs, strict=True)
        return {value: spec.strides for value, spec in specs}

    @functools.cached_property
    def last_uses(self) -> dict[Value, int]:
        """For each value, the index of the last step that reads it; `len(steps)` at the end.

        A value that nobody reads has the index of the step that computes it, an input has -1.
        """
        uses: dict[Value, int] = dict.fromkeys(self.graph.inputs, -1)
        for index, step in enumerate(self.steps):
            for value in (*step.op.results, *step.op.operands):
                uses[value] = index
        for value in self.graph.uses:
            uses[value] = len(self.steps)
        return uses

    @functools.cached_property
    def ends(self) -> dict[Value, int]:
        """For each value, the last use of any value that may lie in its memory."""
        ends = dict(self.last_uses)
        for step in reversed(self.steps):
            for value, placement in zip(step.op.results, step.placements, strict=True):
                for source in sources(placement):
                    ends[source] = max(ends[source], ends[value])
        return ends

    @functools.cached_property
    def bases(self) -> dict[Value, Value | None]:
        """For each value, the input or result whose memory it lies in; None if that is not sure."""
        bases: dict[Value, Value | None] = {value: value for value in self.graph.inputs}
        for value, placement in self.placements.items():
            shared = sources(placement)
            if not shared:
                bases[value] = value
            elif isinstance(placement, View) and placement.strides is None:
                bases[value] = None
            else:
                bases[value] = bases[shared[0]]
        return bases

    def roots_of(self, value: Value) -> tuple[Value, ...]:
        """Return the inputs and results in whose memory a value may lie, itself among them.

        Linear in the number of values from which it may be derived.
        """
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        stack = [value]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            placement = None if current.op is None else self.placements[current]
            shared = () if placement is None else sources(placement)
            if not shared or (isinstance(placement, View) and placement.strides is None):
                found[current] = None
            stack.extend(shared)
        return tuple(found)


def sources(placement: Placement) -> tuple[Value, ...]:
    """Return the values whose memory a result with this placement lies in, or may lie in."""
    if isinstance(placement, InPlace | Target):
        assert placement.of is not None, placement
        return (placement.of,)
    return placement.of if isinstance(placement, View) else ()


def extent(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> Dim:
    """Return how many elements lie between the first and the last, both included."""
    if any(dim == 0 for dim in shape):
        return 0
    reach: Dim = 1
    for size, stride in zip(shape, strides, strict=True):
        reach = reach + (size - 1) * stride
    return simplify(reach)


def storage_bytes(type_: TensorType, strides: tuple[Dim, ...]) -> Dim:
    """Return the bytes that a tensor with dense strides takes."""
    if same_strides(type_.shape, strides, contiguous_strides(type_.shape)):
        return type_.nbytes
    return product((extent(type_.shape, strides), type_.dtype.itemsize))


def same_strides(
    shape: tuple[Dim, ...], a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None
) -> bool:
    """Whether two known layouts put every element at the same place."""
    if a is None or b is None or len(a) != len(b):
        return False
    if any(size == 0 for size in shape):
        return True
    pairs = zip(shape, a, b, strict=True)
    return all(size == 1 or is_equal(first, second) for size, first, second in pairs)


def equal_strides(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Whether two known layouts are equal to the last number, those of size 1 included."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(is_equal(first, second) for first, second in zip(a, b, strict=True))


def aligned(size: int) -> int:
    """Round a number of bytes up to the alignment of arenas."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def buffers(program: Program) -> Iterator[tuple[Value, Arena | Saved, int, int]]:
    """Yield what lies in arenas, with the first and the last step in which it is needed."""
    ends = program.ends
    for index, step in enumerate(program.steps):
        for value, placement in zip(step.op.results, step.placements, strict=True):
            if isinstance(placement, Arena):
                yield value, placement, index, ends[value]
            elif isinstance(placement, Saved):
                yield value, placement, index, len(program.steps)
