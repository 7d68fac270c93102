"""What may not run at the same time, or in another order, since it touches the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Index, Instruction, Kernel, Load, Store, Term
from lynx.ir.types import DType

ATOMIC = frozenset(
    (DType.F16, DType.BF16, DType.F32, DType.F64, DType.I32, DType.U32, DType.I64, DType.U64)
)
"""The types that devices can add to memory in one step."""


def accumulates_in_order(store: Store, is_deterministic: bool) -> bool:
    """Whether a store must be done in the order of its points.

    Integers give the same sum in any order.
    """
    dtype = store.buffer.dtype
    if store.combine == "last":
        return True
    rounds = is_deterministic and dtype.is_floating
    return store.combine == "add" and (rounds or dtype not in ATOMIC)


def colliding_axes(store: Store, kernel: Kernel) -> tuple[str, ...]:
    """Return the axes along which points of a store, unless it sets, may touch one place.

    Those that the index does not depend on, and those of scalars in the index, since nothing is
    known of their values. The others must tell places apart whatever the scalars are, or all axes
    count.
    """
    if not store.is_ordered:
        return ()
    unknown: set[str] = set(store.domain)
    plain = [term for term in store.index.terms if isinstance(term.of, str)]
    gathered = [term for term in store.index.terms if not isinstance(term.of, str)]
    unknown.difference_update(_axis(term) for term in plain)
    for scalar in store.index.scalars:
        unknown.update(scalar.axes)
    safe = [term for term in plain if _axis(term) not in unknown]
    span = _span(safe, kernel)
    steps = [term.stride for term in (*gathered, *plain) if term not in safe]
    is_apart = span is not None and all(isinstance(step, int) and step > span for step in steps)
    if not is_apart:
        unknown.update(store.domain)
    return tuple(axis for axis in store.domain if axis in unknown)


def _axis(term: Term) -> str:
    assert isinstance(term.of, str)
    return term.of


def _span(terms: list[Term], kernel: Kernel) -> int | None:
    """Return how far the sum of terms reaches if each value is another place, else None."""
    reached = 0
    axes = [_axis(term) for term in terms]
    if len(axes) != len(set(axes)):
        return None
    sized = []
    for term in terms:
        size, stride = kernel.sizes[_axis(term)], term.stride
        whole = term.divisor == 1 and term.modulus is None
        if not (isinstance(size, int) and isinstance(stride, int) and whole):
            return None
        sized.append((stride, size))
    for stride, size in sorted(sized):
        if stride <= reached:
            return None
        reached += stride * (size - 1)
    return reached


def touches_apart(one: Store, other: Store, kernel: Kernel) -> bool:
    """Whether two stores to one buffer may run at the same time.

    Additions commute; other stores must write different places for sure, as parts of a
    concatenation do.
    """
    if one.combine == "add" and other.combine == "add":
        return True
    if one.combine != "set" or other.combine != "set":
        return False
    if not isinstance(one.index.offset, int) or not isinstance(other.index.offset, int):
        return False
    first, second = _strided(one.index, kernel), _strided(other.index, kernel)
    if first is None or second is None:
        return False
    gap = abs(one.index.offset - other.index.offset)
    return _are_apart(first, second, gap)


def _strided(index: Index, kernel: Kernel) -> dict[int, int] | None:
    """Return how far the terms of each stride reach; None if that is not known."""
    found: dict[int, int] = {}
    for term in index.terms:
        if not isinstance(term.of, str) or term.divisor != 1 or term.modulus is not None:
            return None
        size = kernel.sizes[term.of]
        if not isinstance(size, int) or not isinstance(term.stride, int) or term.stride < 0:
            return None
        found[term.stride] = found.get(term.stride, 0) + term.stride * max(size - 1, 0)
    return found


def _are_apart(first: dict[int, int], second: dict[int, int], gap: int) -> bool:
    """Whether sums of multiples of strides never meet, for bases that are `gap` apart.

    True if there is a stride from which on all are multiples of one that the lower part, gap and
    all, cannot bridge, while the lower parts of both lie on different sides of the gap.
    """
    reach = 0
    strides = sorted({*first, *second})
    for place in range(len(strides) + 1):
        higher = strides[place:]
        if gap > reach and all(step > gap + reach for step in _common_steps(higher)):
            return True
        if place < len(strides):
            reach += max(first.get(strides[place], 0), second.get(strides[place], 0))
    return False


def _common_steps(strides: list[int]) -> list[int]:
    """Return the greatest common divisor of strides, in a list; an empty one for none."""
    common = 0
    for stride in strides:
        while stride:
            common, stride = stride, common % stride
    return [common] if strides else []


def find_snapshots(
    kernel: Kernel,
    stages_by_load: Mapping[Load, Iterable[int]],
    stage_of: Mapping[Instruction, int],
) -> tuple[set[Load], dict[Buffer, Buffer]]:
    """Return the loads that must read a copy made beforehand, and the copies.

    A load before a store in the kernel must not run after it, nor at the same time at another
    place. The copies map to the buffers whose first contents they hold.
    """
    places = {instruction: place for place, instruction in enumerate(kernel.body)}
    stores: dict[Buffer, list[Store]] = {}
    for instruction in kernel.body:
        if isinstance(instruction, Store):
            stores.setdefault(instruction.buffer, []).append(instruction)
    copied: set[Load] = set()
    copies: dict[Buffer, Buffer] = {}
    for load, numbers in stages_by_load.items():
        later = [s for s in stores.get(load.buffer, ()) if places[s] > places[load]]
        if all(_is_safe(load, store, numbers, stage_of[store]) for store in later):
            continue
        if len(later) < len(stores[load.buffer]):
            message = f"'{load.buffer.name}' is read between stores in an order that no launch has"
            raise CompileError("kernel-hazard", message, load.loc)
        buffer = load.buffer
        copied.add(load)
        if not any(held is buffer for held in copies.values()):
            copies[Buffer(f"{buffer.name}_before", buffer.dtype, buffer.extent)] = buffer
    return copied, copies


def _is_safe(load: Load, store: Store, numbers: Iterable[int], stored: int) -> bool:
    same_place = store.combine == "set" and load.index == store.index
    return all(number < stored or (number == stored and same_place) for number in numbers)
