"""What starts and waits mean in torch: jobs for the lane of a group, kept until somebody waits.

The tensors of a bucket travel as one. A result is the same, bit for bit, as that of its tensor
alone if the communicator combines members in an order that no size or place changes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from lynx.ir.call import Call
from lynx.ir.errors import InternalError, LynxError
from lynx.ir.ops import schedule

from .communication import Communicator, communicator
from .registry import means

Tensors = Sequence[torch.Tensor]
Finish = Callable[[], None]


@runtime_checkable
class LaneCommunicator(Protocol):
    """A communicator that can work while the program goes on."""

    def submit(self, job: Finish, given: Tensors) -> Finish:
        """Run a job after those submitted before; return what waits for it and raises its error.

        The job reads the tensors `given`, as they are now.
        """


@dataclass(frozen=True)
class Flight:
    """What is in flight: memory that is kept until then, and what waits for it."""

    outs: Tensors
    xs: Tensors
    finish: Finish


@dataclass(frozen=True)
class Pieces:
    """What lies in a row along a dimension, but is not together yet."""

    pieces: Tensors
    dim: int

    def fill(self, out: torch.Tensor) -> None:
        """Put the pieces together in a tensor."""
        sizes = [piece.shape[self.dim] for piece in self.pieces]
        for place, piece in zip(out.split_with_sizes(sizes, self.dim), self.pieces, strict=True):
            place.copy_(piece)


Results = Sequence[torch.Tensor | Pieces]

in_flight: dict[int, Flight] = {}
"""All that was started and not waited for, by the identity of the first tensor that it fills."""


def _begin(
    axes: Sequence[str], xs: Tensors, outs: Tensors, exchange: Callable[..., Results]
) -> None:
    """Let the group fill `outs` by `exchange`, which takes the communicator and `xs`.

    It gives for each tensor what goes into it, whole or in pieces along a dimension.
    """
    group = communicator(axes)

    def job() -> None:
        for out, result in zip(outs, exchange(group, xs), strict=True):
            if isinstance(result, Pieces):
                result.fill(out)
            else:
                out.copy_(result)

    if isinstance(group, LaneCommunicator):
        finish = group.submit(job, xs)
    else:
        job()
        finish = _nothing
    in_flight[id(outs[0])] = Flight(outs, xs, finish)


def _nothing() -> None:
    pass


def abandon() -> None:
    """Wait for all that is in flight, whatever becomes of it: what it fills is about to be reused.

    It is called when a program stops in the middle.
    """
    while in_flight:
        _, flight = in_flight.popitem()
        with contextlib.suppress(Exception):  # the program stops for the first error
            flight.finish()


def _fresh(xs: Tensors, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    return [x.new_empty(list(shape)) for x, shape in zip(xs, shapes, strict=True)]


def _resized(x: torch.Tensor, dim: int, size: int) -> list[int]:
    return [*x.shape[:dim], size, *x.shape[dim + 1 :]]


def _unpacked(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    pieces = flat.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.view(list(shape)) for piece, shape in zip(pieces, shapes, strict=True)]


def _packed(xs: Tensors) -> torch.Tensor:
    return torch.cat([x.reshape(-1) for x in xs])


# all-reduce


def _start_all_reduce(
    xs: Tensors, axes: Sequence[str], reduction: str, outs: Tensors | None = None
) -> Tensors:
    outs = _fresh(xs, [x.shape for x in xs]) if outs is None else outs

    def exchange(group: Communicator, xs: Tensors) -> Tensors:
        if len(xs) == 1:
            return [group.all_reduce(xs[0], reduction)]
        return _unpacked(group.all_reduce(_packed(xs), reduction), [x.shape for x in xs])

    _begin(axes, xs, outs, exchange)
    return outs


@means(schedule.StartAllReduce)
def start_all_reduce(op: schedule.StartAllReduce) -> Call:
    """Submit the reduction."""
    return _call(op, _start_all_reduce, (op.xs, op.axes, op.reduction))


# all-gather


def _start_all_gather(
    xs: Tensors,
    axes: Sequence[str],
    dims: Sequence[int],
    sizes: Sequence[Sequence[int]],
    index: int,
    outs: Tensors | None = None,
) -> Tensors:
    if outs is None:
        entries = zip(xs, dims, sizes, strict=True)
        outs = _fresh(xs, [_resized(x, dim, sum(size)) for x, dim, size in entries])

    def exchange(group: Communicator, xs: Tensors) -> Results:
        if len(xs) == 1:
            return [group.all_gather(xs[0], dims[0], sizes[0], index)]
        shapes = _shapes(xs, dims, sizes)
        flat = group.all_gather(_packed(xs), 0, list(map(_numel, shapes)), index)
        members = flat.split_with_sizes(list(map(_numel, shapes)))
        pieces = [_unpacked(*pair) for pair in zip(members, shapes, strict=True)]
        return list(map(Pieces, zip(*pieces, strict=True), dims))

    _begin(axes, xs, outs, exchange)
    return outs


def _shapes(
    xs: Tensors, dims: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Return for each member the shapes of its pieces of all tensors."""
    return [
        [_resized(x, dim, size) for x, dim, size in zip(xs, dims, member, strict=True)]
        for member in zip(*sizes, strict=True)
    ]


def _numel(shapes: Sequence[Sequence[int]]) -> int:
    return sum(map(math.prod, shapes))


@means(schedule.StartAllGather)
def start_all_gather(op: schedule.StartAllGather) -> Call:
    """Submit the gather."""
    return _call(op, _start_all_gather, (op.xs, op.axes, op.dims, op.sizes, op.index))


# reduce-scatter


def _start_reduce_scatter(
    xs: Tensors,
    axes: Sequence[str],
    dims: Sequence[int],
    sizes: Sequence[Sequence[int]],
    index: int,
    reduction: str,
    outs: Tensors | None = None,
) -> Tensors:
    if outs is None:
        entries = zip(xs, dims, sizes, strict=True)
        outs = _fresh(xs, [_resized(x, dim, size[index]) for x, dim, size in entries])

    def exchange(group: Communicator, xs: Tensors) -> Tensors:
        if len(xs) == 1:
            return [group.reduce_scatter(xs[0], dims[0], sizes[0], index, reduction)]
        shapes = _shapes(xs, dims, sizes)
        cut = [
            x.split_with_sizes(list(size), dim)
            for x, dim, size in zip(xs, dims, sizes, strict=True)
        ]
        flat = _packed(list(itertools.chain.from_iterable(zip(*cut, strict=True))))
        counts = list(map(_numel, shapes))
        return _unpacked(group.reduce_scatter(flat, 0, counts, index, reduction), shapes[index])

    _begin(axes, xs, outs, exchange)
    return outs


@means(schedule.StartReduceScatter)
def start_reduce_scatter(op: schedule.StartReduceScatter) -> Call:
    """Submit the reduction."""
    arguments = (op.xs, op.axes, op.dims, op.sizes, op.index, op.reduction)
    return _call(op, _start_reduce_scatter, arguments)


# all-to-all


def _start_all_to_all(
    xs: Tensors,
    axes: Sequence[str],
    sources: Sequence[int],
    targets: Sequence[int],
    source_sizes: Sequence[Sequence[int]],
    target_sizes: Sequence[Sequence[int]],
    index: int,
    outs: Tensors | None = None,
) -> Tensors:
    entries = list(zip(xs, sources, targets, source_sizes, target_sizes, strict=True))
    if outs is None:
        shapes = [_resized(x, source, sum(before)) for x, source, _, before, _ in entries]
        for shape, (_, _, target, _, after) in zip(shapes, entries, strict=True):
            shape[target] = after[index]
        outs = _fresh(xs, shapes)

    def exchange(group: Communicator, _: Tensors) -> Tensors:
        return [group.all_to_all(*entry, index) for entry in entries]

    _begin(axes, xs, outs, exchange)
    return outs


@means(schedule.StartAllToAll)
def start_all_to_all(op: schedule.StartAllToAll) -> Call:
    """Submit the exchange."""
    sizes = (op.source_sizes, op.target_sizes)
    return _call(op, _start_all_to_all, (op.xs, op.axes, op.sources, op.targets, *sizes, op.index))


# waiting


def _wait(pending: Tensors, xs: Tensors) -> Tensors:
    flight = in_flight.pop(id(pending[0]), None)
    if flight is None:
        raise InternalError("not-started", "waits for a tensor that nobody fills")
    flight.finish()
    return pending


@means(schedule.Wait)
def wait(op: schedule.Wait) -> Call:
    """Wait for the job."""

    def waited(pending: Tensors, xs: Tensors) -> Tensors:
        try:
            return _wait(pending, xs)
        except LynxError as error:  # which knows the group and the rank, but not the user's line
            if op.loc.is_known and not error.loc.is_known:
                raise type(error)(error.code, error.message, op.loc) from error
            raise

    return _call(op, waited, (op.pending, op.xs))


def _call(
    op: schedule.Start | schedule.Wait,
    function: Callable[..., Tensors],
    arguments: tuple[object, ...],
) -> Call:
    """Return a call that gives one tensor if it is alone, or fills those that it is given."""
    names = tuple(f"out{position}" for position in range(len(op.results)))

    def returned(*given: object) -> object:
        results = function(*given)
        return results[0] if len(results) == 1 else tuple(results)

    def filled(*given: object, **outs: torch.Tensor) -> None:
        if isinstance(op, schedule.Wait):
            function(*given)
        else:
            function(*given, outs=[outs[name] for name in names])

    returned.__name__ = filled.__name__ = function.__name__.strip("_")
    return Call(returned, arguments, out=filled, out_names=names)
