"""Communication in two halves: it starts on a lane, and later the program waits for it.

Between a start and its wait the operands may be read, and the results, which are being filled, may
not be touched. A start of several tensors is a bucket: they travel together. Starts of one lane
run in their order, at the same time as everything else.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from lynx.ir.core import Op, Value
from lynx.ir.types import TensorType

from .communication import (
    Communication,
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)


class Start(Op):
    """Base of starts: `lane` is the queue of the group along `axes`, each result is in flight.

    Attributes that hold one entry for each tensor are named in the plural; `sites` may be empty.
    """

    xs: tuple[Value, ...]
    axes: tuple[str, ...]
    lane: str
    sites: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def is_removable(self) -> bool:
        """Never: other devices wait for this one."""
        return False

    def part(self, position: int) -> Communication:
        """Return what happens to the tensor at a position, as an op that does not return early."""
        raise NotImplementedError(type(self).__name__)

    def site(self, position: int) -> int:
        """Return the number in the program of the mesh of what happens to a tensor."""
        return self.sites[position] if self.sites else -1

    @property
    def parts(self) -> tuple[Communication, ...]:
        """What happens to each tensor."""
        return tuple(map(self.part, range(len(self.xs))))

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of what the tensors become."""
        if not self.xs:
            raise self.error("no-operands", "needs at least one tensor")
        first = self.xs[0].tensor_type
        for x in self.xs:
            if (x.tensor_type.dtype, x.tensor_type.device) != (first.dtype, first.device):
                raise self.error("bad-bucket", f"holds {first} and {x.type}, which differ in kind")
        self._check_counts()
        return tuple(part.out.tensor_type for part in self.parts)

    def _check_counts(self) -> None:
        """Raise unless each attribute in the plural has an entry for each tensor."""
        for name, entries in self.attributes.items():
            is_list = isinstance(entries, tuple) and name != "axes" and (entries or name != "sites")
            if is_list and len(entries) != len(self.xs):
                counts = f"{len(entries)} entries for {len(self.xs)} tensors"
                raise self.error("bad-bucket", f"has in '{name}' {counts}")


class StartAllReduce(Start, name="start_all_reduce"):
    """Begin to combine tensors of all members.

    %p = start_all_reduce [%x] {axes = ["tp"], lane = "tp", reduction = "sum"} : f32[4, 8]
    """

    reduction: str = "sum"

    def part(self, position: int) -> LocalAllReduce:
        """Return the reduction of one tensor."""
        return LocalAllReduce(
            self.xs[position], self.axes, self.reduction, site=self.site(position), loc=self.loc
        )


class StartAllGather(Start, name="start_all_gather"):
    """Begin to put pieces of all members one after the other, of each tensor along its dimension.

    %p = start_all_gather [%x]
      {axes = ["tp"], lane = "tp", dims = [0], sizes = [[3, 2]], index = 0} : f32[5, 8]
    """

    dims: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    index: int

    def part(self, position: int) -> LocalAllGather:
        """Return the gather of one tensor."""
        x, dim, sizes = self.xs[position], self.dims[position], self.sizes[position]
        return LocalAllGather(
            x, self.axes, dim, sizes, self.index, site=self.site(position), loc=self.loc
        )


class StartReduceScatter(Start, name="start_reduce_scatter"):
    """Begin to combine tensors of all members, of which each gets its pieces.

    %p = start_reduce_scatter [%x]
      {axes = ["tp"], lane = "tp", dims = [0], sizes = [[3, 2]], index = 0} : f32[3, 8]
    """

    dims: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    index: int
    reduction: str = "sum"

    def part(self, position: int) -> LocalReduceScatter:
        """Return the reduction of one tensor."""
        x, dim, sizes = self.xs[position], self.dims[position], self.sizes[position]
        return LocalReduceScatter(
            x,
            self.axes,
            dim,
            sizes,
            self.index,
            self.reduction,
            site=self.site(position),
            loc=self.loc,
        )


class StartAllToAll(Start, name="start_all_to_all"):
    """Begin to exchange pieces, of each tensor between two dimensions.

    %p = start_all_to_all [%x]
      {axes = ["t"], sources = [0], targets = [1], source_sizes = [[3]], index = 0} : i8[3, 4]
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    source_sizes: tuple[tuple[int, ...], ...]
    target_sizes: tuple[tuple[int, ...], ...]
    index: int

    def part(self, position: int) -> LocalAllToAll:
        """Return the exchange of one tensor."""
        return LocalAllToAll(
            self.xs[position],
            self.axes,
            self.sources[position],
            self.targets[position],
            self.source_sizes[position],
            self.target_sizes[position],
            self.index,
            site=self.site(position),
            loc=self.loc,
        )


class Wait(Op, name="wait"):
    """Go on when a start has done its work; each result is in the memory of what was in flight.

        %y = wait [%p], [%x] : f32[5, 8]

    `pending` are all results of one start, `xs` its operands, whose memory is needed until then.
    """

    infers_from_types: ClassVar[bool] = False

    pending: tuple[Value, ...]
    xs: tuple[Value, ...]

    @property
    def is_removable(self) -> bool:
        """Never: what is in flight must arrive before its memory serves something else."""
        return False

    @property
    def start(self) -> Start:
        """The start whose results are waited for."""
        start = self.pending[0].op if self.pending else None
        if not isinstance(start, Start):
            raise self.error("bad-wait", "waits for nothing that was started")
        return start

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of what arrives."""
        if self.pending != self.start.results or self.xs != self.start.xs:
            raise self.error("bad-wait", "does not name all results and operands of one start")
        return tuple(value.tensor_type for value in self.pending)


def lane_of(axes: tuple[str, ...]) -> str:
    """Return the name of the lane of the groups along mesh axes, in whatever order."""
    return "+".join(sorted(axes))
