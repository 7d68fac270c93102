"""The parts that a kernel is cut into, and the instructions that only such parts have."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.kernel import Buffer, Instruction, Kernel, Scalar
from lynx.ir.types import DType


@dataclass(frozen=True, eq=False)
class Partial(Instruction):
    """Combine over the part of the columns that a program sees; store the lanes, one a split.

    `buffers` take one lane each, indexed by split and then by the axes of the result.
    """

    combine: str
    x: Scalar
    over: tuple[str, ...]
    buffers: tuple[Buffer, ...]

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The combined scalar."""
        return (self.x,)

    @property
    def result_order(self) -> tuple[str, ...]:
        """The axes of the result, in the order in which they lie in the buffers."""
        return tuple(axis for axis in self.domain if axis not in self.over)


@dataclass(frozen=True, eq=False)
class Merge(Instruction):
    """Combine the lanes that `Partial` stored, along the axis of the splits.

    `count` is the number of numbers in all parts together, `chunk` in each part but the last.
    """

    combine: str
    dtype: DType
    lanes: tuple[Scalar, ...]
    over: tuple[str, ...]
    count: Dim
    chunk: Dim

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The lanes."""
        return self.lanes

    def result_dtypes(self) -> tuple[DType, ...]:
        """Return the types of the results, which are those of the lanes."""
        return tuple(lane.dtype for lane in self.lanes)

    def result_axes(self) -> tuple[str, ...]:
        """Return the axes that stay."""
        return tuple(axis for axis in self.domain if axis not in self.over)


@dataclass(frozen=True)
class Stage:
    """A part of a kernel that one launch does: a kernel whose reductions all run over `columns`.

    With `splits`, the columns are divided among that many programs. With `across`, that many
    programs share the rows, and `Partial` combines over all rows of a program. `is_serial` says
    that the columns must be run through one after the other, since they add to the same places.
    """

    kernel: Kernel
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    splits: Dim | None = None
    is_serial: bool = False
    across: Dim | None = None


@dataclass(frozen=True)
class Staged:
    """The stages of a kernel, the scratch buffers between them, and buffers copied beforehand.

    `snapshots` maps a buffer that stands for the first contents of another to that other.
    """

    stages: tuple[Stage, ...]
    scratch: tuple[Buffer, ...]
    snapshots: dict[Buffer, Buffer]
