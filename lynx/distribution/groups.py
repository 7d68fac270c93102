"""Communication between the processes of a mesh, along any of its axes, by torch.distributed."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .callers import place_in_model
from .failures import CommunicationError, silent_ranks
from .lanes import Job, Lane
from .meshes import coordinates_of, mesh_of

DEFAULT_TIMEOUT = 300.0

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "and": dist.ReduceOp.MIN,
    "or": dist.ReduceOp.MAX,
}

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
}
"""Types that Gloo does not combine, or not as exactly as it might, and what they travel as."""

_SMALL = 1 << 16
"""Up to so many bytes of all members together are gathered at once, and combined by each."""


@dataclass
class Group:
    """Communicates among the processes that differ along `axes` alone.

    Members are counted in row-major order of their coordinates along `axes`: `ranks` are their
    ranks in the world, `index` is the own number. Pieces may differ in length, and be empty.
    Each collective gives up after `timeout` seconds with a `CommunicationError`.
    """

    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    index: int
    process_group: dist.ProcessGroup
    timeout: float = DEFAULT_TIMEOUT
    lane: Lane = field(default_factory=Lane)

    def __post_init__(self) -> None:
        order = [dist.get_group_rank(self.process_group, rank) for rank in self.ranks]
        self._to_member = order  # of each member, its number in the process group
        self._in_order = order == list(range(len(order)))
        self._is_gloo = dist.get_backend(self.process_group) == "gloo"

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    def submit(self, job: Job, given: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Let a job of this group run while the program goes on; return what waits for it."""
        return self.lane.submit(job, given)

    # collectives

    def all_reduce(self, x: torch.Tensor, reduction: str = "sum", where: str = "") -> torch.Tensor:
        """Return the tensors of all members, combined element by element."""
        if self.size == 1 or x.numel() == 0:
            return x.clone()
        if reduction in ("and", "or") and x.dtype is not torch.bool:
            raise CommunicationError("not-logical", f"'{reduction}' of {x.dtype}")
        if reduction in ("max", "min") and x.is_floating_point():
            return self._extreme(x, reduction, where)  # libraries differ in what they make of NaN
        if x.is_complex():
            real = torch.view_as_real(x.resolve_conj())
            return torch.view_as_complex(self.all_reduce(real, reduction, where))
        if self._is_gloo and x.is_floating_point():
            return self._reduced_in_order(x, reduction, where)
        return self._reduced(x, reduction, where)

    def all_gather(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], index: int = -1, where: str = ""
    ) -> torch.Tensor:
        """Return the pieces of all members, of lengths `sizes`, in a row along a dimension.

        `index` is the own number, which the group knows.
        """
        if self.size == 1:
            return x.clone()
        longest = max(sizes)
        shape = [*x.shape[:dim], longest, *x.shape[dim + 1 :]]
        if math.prod(shape) == 0:
            return x.new_empty([*x.shape[:dim], sum(sizes), *x.shape[dim + 1 :]])
        pieces = self._gathered(_padded(x, dim, longest), where)
        if dim == 0 and min(sizes) == longest:
            return pieces.view(-1, *x.shape[1:])
        return torch.cat([pieces[i].narrow(dim, 0, size) for i, size in enumerate(sizes)], dim)

    def reduce_scatter(
        self,
        x: torch.Tensor,
        dim: int,
        sizes: Sequence[int],
        index: int = -1,
        reduction: str = "sum",
        where: str = "",
    ) -> torch.Tensor:
        """Return the own piece of the combined tensors; parts are combined in the same order.

        Half precision is added up in `f32` and rounded once.
        """
        if self.size == 1:
            return x.clone()
        counts = [sizes[self.index]] * self.size
        return _combined(self._scattered(x, dim, sizes, counts, where, "reduce_scatter"), reduction)

    def all_to_all(
        self,
        x: torch.Tensor,
        source: int,
        target: int,
        source_sizes: Sequence[int],
        target_sizes: Sequence[int],
        index: int = -1,
        where: str = "",
    ) -> torch.Tensor:
        """Return the own piece along `target`, whole along `source`, where it was cut before."""
        if self.size == 1:
            return x.clone()
        parts = list(torch.split(x, list(target_sizes), target))
        received = self._exchanged(parts, source_sizes, source, where, "all_to_all")
        return torch.cat(received, source)

    def broadcast(self, x: torch.Tensor, where: str = "") -> None:
        """Give a tensor the values that it has on the first member."""
        data = _as_bytes(x)
        self._wait(
            "broadcast",
            where,
            lambda: dist.broadcast(
                data, src=self.ranks[0], group=self.process_group, async_op=True
            ),
        )

    def all_gather_bytes(self, content: bytes, where: str = "") -> list[bytes]:
        """Return what each member gives."""
        length = torch.tensor([len(content)], dtype=torch.int64)
        lengths = self.all_gather(length, 0, [1] * self.size, where=where).tolist()
        data = (
            torch.frombuffer(bytearray(content), dtype=torch.uint8)
            if content
            else (torch.empty(0, dtype=torch.uint8))
        )
        whole = self.all_gather(data, 0, lengths, where=where)
        return [bytes(part.numpy().tobytes()) for part in torch.split(whole, lengths)]

    # what they are made of

    def _travelling(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor, in a type that the library combines."""
        wide = _WIDE.get(x.dtype)
        if wide is not None and (self._is_gloo or x.dtype in (torch.bool, torch.int16)):
            return x.to(wide).contiguous()
        return x.clone(memory_format=torch.contiguous_format)

    def _reduced_in_order(self, x: torch.Tensor, reduction: str, where: str) -> torch.Tensor:
        """Combine members in their order: no place or size of a tensor changes its rounding."""
        if self.size == 2 and x.dtype in (torch.float32, torch.float64):
            return self._reduced(x, reduction, where)  # two numbers have the same sum either way
        if x.numel() * x.element_size() * self.size <= _SMALL:
            return _combined(list(self._gathered(x.contiguous(), where)), reduction)
        longest = -(-x.numel() // self.size)
        flat = _padded(x.reshape(-1), 0, longest * self.size)
        sizes = [longest] * self.size
        pieces = self._scattered(flat, 0, sizes, sizes, where, "all_reduce")
        whole = self.all_gather(_combined(pieces, reduction), 0, sizes, where=where)
        return whole[: x.numel()].view(x.shape)

    def _reduced(self, x: torch.Tensor, reduction: str, where: str) -> torch.Tensor:
        """Combine members as the library does."""
        travels = self._travelling(x)
        self._wait(
            "all_reduce",
            where,
            lambda: dist.all_reduce(
                travels, _OPERATIONS[reduction], group=self.process_group, async_op=True
            ),
        )
        return travels.to(x.dtype)

    def _extreme(self, x: torch.Tensor, reduction: str, where: str) -> torch.Tensor:
        stacked = self._gathered(x.contiguous(), where)
        return stacked.amax(0) if reduction == "max" else stacked.amin(0)

    def _gathered(self, x: torch.Tensor, where: str) -> torch.Tensor:
        """Return the tensors of all members, of one shape, stacked in their order."""
        result = x.new_empty((self.size, *x.shape))
        sent, received = _as_bytes(x), _as_bytes(result)
        self._wait(
            "all_gather",
            where,
            lambda: _all_gather(
                received.view(-1), sent.view(-1), group=self.process_group, async_op=True
            ),
        )
        return result if self._in_order else result[self._to_member]

    def _scattered(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], counts: Sequence[int], where: str,
        collective: str,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Send each member its piece of a tensor; return what they sent, of lengths `counts`."""
        parts = list(torch.split(x, list(sizes), dim))
        in_row = dim == 0 and self._in_order and x.is_contiguous()
        return self._exchanged(
            parts, counts, dim, where, collective, _as_bytes(x) if in_row else None
        )

    def _exchanged(
        self,
        parts: list[torch.Tensor],
        sizes: Sequence[int],
        dim: int,
        where: str,
        collective: str,
        packed: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Send each member its part; return what they sent, of lengths `sizes` along `dim`.

        `packed` has the bytes of all parts in the order of the process group, if there is such a
        tensor.
        """
        model = parts[self.index]
        shapes = [[*model.shape[:dim], size, *model.shape[dim + 1 :]] for size in sizes]
        order = sorted(range(self.size), key=self._to_member.__getitem__)
        if packed is None:
            rows = [_as_bytes(parts[member].contiguous()).reshape(-1) for member in order]
            packed = torch.cat(rows)
        sent = packed.view(-1)
        width = model.element_size()
        counts = [math.prod(shape) * width for shape in shapes]
        received = sent.new_empty(sum(counts))
        self._wait(
            collective,
            where,
            lambda: dist.all_to_all_single(
                received,
                sent,
                [counts[member] for member in order],
                [parts[member].numel() * width for member in order],
                group=self.process_group,
                async_op=True,
            ),
        )
        chunks = torch.split(received, [counts[member] for member in order])
        by_member = dict(zip(order, chunks, strict=True))
        return [
            by_member[i].view(model.dtype).view(shape) if counts[i] else model.new_empty(shape)
            for i, shape in enumerate(shapes)
        ]

    def _wait(self, collective: str, where: str, start: Callable[[], Any]) -> None:
        limit = datetime.timedelta(seconds=self.timeout)
        try:
            work = start()
            if work is not None:
                done = work.wait(limit)
                if done is False:
                    raise RuntimeError("it did not finish in time")
        except RuntimeError as error:
            raise self._failure(collective, where, error) from error

    def _failure(self, collective: str, where: str, error: RuntimeError) -> CommunicationError:
        return failed(collective, where, self.axes, self.ranks, error)


def failed(
    collective: str, where: str, axes: Sequence[str], ranks: Sequence[int], error: RuntimeError
) -> CommunicationError:
    """Return the error of a communication that failed, which says who does not answer."""
    silent = silent_ranks(ranks, "-".join(map(str, ranks)))
    blame = (
        f"rank {', '.join(map(str, silent))} does not answer"
        if silent
        else "all ranks of the group answer"
    )
    where = where or place_in_model()
    place = f" for {where}" if where else ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    message = (
        f"{collective}{place} over ({', '.join(axes)}) among ranks "
        f"{list(ranks)} failed on rank {dist.get_rank()}: {blame}: {first}"
    )
    return CommunicationError("collective-failed", message)


class Groups:
    """The groups of a mesh, made when they are first asked for: by all ranks in one order."""

    def __init__(self, device_mesh: DeviceMesh, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.device_mesh = device_mesh
        self.mesh = mesh_of(device_mesh)
        self.coordinates = coordinates_of(device_mesh)
        self.timeout = timeout
        self._groups: dict[tuple[str, ...], Group] = {}
        self._process_groups: dict[tuple[str, ...], dist.ProcessGroup] = {}
        self._lanes: dict[str, Lane] = {}

    def group(self, axes: tuple[str, ...]) -> Group:
        """Return the group of processes that differ from this one along the axes alone."""
        found = self._groups.get(axes)
        if found is None:
            found = self._groups[axes] = self._make(axes)
        found.timeout = self.timeout
        return found

    def control(self) -> Group:
        """Return a group of the whole mesh apart from those of programs, on the CPU."""
        found = self._groups.get(("control",))
        if found is None:
            ranks = self._members(self.mesh.names)
            process_group = self._new_group(self.mesh.names, ranks, "gloo")
            index = ranks.index(dist.get_rank())
            found = Group(self.mesh.names, ranks, index, process_group, self.timeout)
            self._groups["control",] = found
        return found

    def _members(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Return the ranks of a group in row-major order of their coordinates along the axes."""
        table = self.device_mesh.mesh
        ranks = []
        for place in itertools.product(*(range(self.mesh.size(axis)) for axis in axes)):
            where = self.coordinates | dict(zip(axes, place, strict=True))
            ranks.append(int(table[tuple(where[name] for name in self.mesh.names)]))
        return tuple(ranks)

    def _make(self, axes: tuple[str, ...]) -> Group:
        ranks = self._members(axes)
        process_group = self._process_group(axes, ranks)
        # What shares a process group shares its lane, which keeps the order.
        lane = self._lanes.setdefault(process_group.group_name, Lane(", ".join(axes)))
        own = ranks.index(dist.get_rank())
        return Group(axes, ranks, own, process_group, self.timeout, lane)

    def _process_group(self, axes: tuple[str, ...], ranks: tuple[int, ...]) -> dist.ProcessGroup:
        key = tuple(sorted(axes))
        found = self._process_groups.get(key)
        if found is None:
            if len(axes) == 1:
                found = self.device_mesh.get_group(self.mesh.names.index(axes[0]))
            elif len(ranks) == dist.get_world_size():
                found = dist.group.WORLD
                assert found is not None
            else:
                found = self._new_group(axes, ranks)
            self._process_groups[key] = found
        return found

    def _new_group(
        self, axes: Sequence[str], ranks: Sequence[int], backend: str | None = None
    ) -> dist.ProcessGroup:
        """Make a group with the other members; `CommunicationError` if they do not come."""
        try:
            made: dist.ProcessGroup = dist.new_group(
                sorted(ranks),
                backend=backend,
                use_local_synchronization=True,
                timeout=datetime.timedelta(seconds=self.timeout),
            )
        except RuntimeError as error:
            raise failed("making a group", "", axes, ranks, error) from error
        return made


def _padded(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    if x.shape[dim] == size:
        return x.contiguous()
    result = x.new_zeros([*x.shape[:dim], size, *x.shape[dim + 1 :]])
    result.narrow(dim, 0, x.shape[dim]).copy_(x)
    return result


def _as_bytes(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1) if x.dim() == 0 else x
    return flat.view(torch.uint8)


_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}


def _combined(pieces: list[torch.Tensor], reduction: str) -> torch.Tensor:
    """Combine tensors in order, half precision in `f32`."""
    first = pieces[0]
    half = first.dtype in (torch.float16, torch.bfloat16)
    total = first.float() if half else first
    for piece in pieces[1:]:
        total = _COMBINE[reduction](total, piece).to(total.dtype)
    return total.to(first.dtype)
