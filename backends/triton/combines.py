"""How reductions combine in Triton: lanes that collect numbers, and what is made of the lanes.

Each lane of a tile collects the numbers that it meets; at the end the lanes are combined along an
axis of the tile. A partial result, from one of several programs, is the same kind of thing as a
lane, so the kernel that merges partial results combines them as lanes.

The lanes of `welford` (mean, sum of squared deviations) need to know how many numbers each has
seen; those of `softmax` hold a maximum and a sum relative to it. Merging follows Chan, Golub and
LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979), and
Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.types import DType

from .dtypes import greatest, least, triton_type
from .functions import literal

LAST_POSITION = str(2**63 - 1)
"""The position of a lane that has seen nothing yet."""


@dataclass(frozen=True)
class Lane:
    """A number that each lane keeps: the suffix of its name, its type, and the neutral value."""

    suffix: str
    dtype: DType
    neutral: str


def lanes_of(combine: str, dtype: DType) -> tuple[Lane, ...]:
    """Return what a lane keeps when it collects numbers of a type."""
    if combine in ("argmax", "argmin"):
        worst = least(dtype) if combine == "argmax" else greatest(dtype)
        return (
            Lane("", dtype, literal(worst, dtype)),
            Lane("_position", DType.I64, LAST_POSITION),
        )
    if combine == "welford":
        return Lane("_mean", dtype, "0.0"), Lane("_squares", dtype, "0.0")
    if combine == "softmax":
        return Lane("_max", dtype, 'float("-inf")'), Lane("_sum", dtype, "0.0")
    neutral: dict[str, bool | int | float] = {
        "sum": 0,
        "prod": 1,
        "any": False,
        "all": True,
        "max": least(dtype),
        "min": greatest(dtype),
    }
    return (Lane("", dtype, literal(neutral[combine], dtype)),)


@dataclass(frozen=True)
class Collected:
    """The names of a reduction's lanes, and where they lie.

    `axis` is the axis of the tile along which they are combined. `seen` is how many numbers each
    lane has seen, or for `direct` all together and at least 1; only `welford` asks.
    """

    combine: str
    dtype: DType
    names: tuple[str, ...]
    axis: int
    seen: str = ""


def update(lanes: Collected, x: str, position: str, mask: str) -> list[str]:
    """Return lines that let each lane collect `x`, where the mask (if any) holds."""
    combine, names = lanes.combine, lanes.names
    if combine in ("argmax", "argmin"):
        better = "is_greater" if combine == "argmax" else "is_smaller"
        chosen = f"{better}({x}, {position}, {names[0]}, {names[1]})"
        guard = f"{chosen} & {mask}" if mask else chosen
        return [
            f"better = {guard}",
            f"{names[0]} = tl.where(better, {x}, {names[0]})",
            f"{names[1]} = tl.where(better, {position}, {names[1]})",
        ]
    if combine == "welford":
        return _update_welford(names, x, mask)
    if combine == "softmax":
        return _update_softmax(names, x, mask)
    (name,) = names
    x = masked(lanes, x, mask)
    template = {
        "sum": "{0} + {1}",
        "prod": "{0} * {1}",
        "any": "{0} | {1}",
        "all": "{0} & {1}",
        "max": _extreme("maximum", lanes.dtype),
        "min": _extreme("minimum", lanes.dtype),
    }[combine]
    return [f"{name} = {template.format(name, x)}"]


def _extreme(name: str, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "{0} | {1}" if name == "maximum" else "{0} & {1}"
    return f"{'' if dtype.is_floating else 'tl.'}{name}({{0}}, {{1}})"


def _update_welford(names: tuple[str, ...], x: str, mask: str) -> list[str]:
    mean, squares = names
    # All lanes that see a number in this round have seen equally many.
    step, change = "divide(delta, rounds)", f"delta * ({x} - {mean})"
    if mask:
        step, change = f"tl.where({mask}, {step}, 0.0)", f"tl.where({mask}, {change}, 0.0)"
    return [f"delta = {x} - {mean}", f"{mean} += {step}", f"{squares} += {change}"]


def _update_softmax(names: tuple[str, ...], x: str, mask: str) -> list[str]:
    largest, total = names
    value = f'tl.where({mask}, {x}, float("-inf"))' if mask else x
    return [
        f"new_max = maximum({largest}, {value})",
        "shift = softmax_shift(new_max)",
        f"{total} = {total} * libdevice.exp({largest} - shift) + libdevice.exp({value} - shift)",
        f"{largest} = new_max",
    ]


def masked(lanes: Collected, x: str, mask: str) -> str:
    """Return `x` where the mask holds and the neutral value elsewhere."""
    if not mask:
        return x
    return f"tl.where({mask}, {x}, {lanes_of(lanes.combine, lanes.dtype)[0].neutral})"


def result(lanes: Collected, names: tuple[str, ...]) -> list[str]:
    """Return lines that combine lanes, along their axis, into variables of these names."""
    combine, axis, dtype = lanes.combine, lanes.axis, lanes.dtype
    if combine in ("argmax", "argmin"):
        extreme = result(_plain(lanes, "max" if combine == "argmax" else "min"), names[:1])
        found = f"first_position({lanes.names[0]}, {lanes.names[1]}, {names[0]}, {axis})"
        return [*extreme, f"{names[1]} = {found}"]
    if combine == "welford":
        return _result_welford(lanes, names)
    if combine == "softmax":
        return _result_softmax(lanes, names)
    x = lanes.names[0]
    keep = f"{axis}, keep_dims=True"
    if dtype is DType.BOOL:
        chosen = "max" if combine in ("any", "max") else "min"
        return [f"{names[0]} = tl.{chosen}({x}.to(tl.int32), {keep}) != 0"]
    text = {
        "sum": f"tl.sum({x}, {keep})",
        "prod": f"reduce_product({x}, {axis})",
        "max": f"reduce_maximum({x}, {axis})",
        "min": f"reduce_minimum({x}, {axis})",
    }[combine]
    # Triton widens sums of small integers; the sum wraps around.
    small = dtype.is_integer and dtype.itemsize < 4
    return [f"{names[0]} = {text}{f'.to({triton_type(dtype)})' if small else ''}"]


def _plain(lanes: Collected, combine: str) -> Collected:
    return Collected(combine, lanes.dtype, lanes.names[:1], lanes.axis)


def _result_welford(lanes: Collected, names: tuple[str, ...]) -> list[str]:
    (mean, squares), axis = lanes.names, lanes.axis
    return [
        f"seen = {lanes.seen}",
        f"all_seen = tl.maximum(tl.sum(seen, {axis}, keep_dims=True), 1.0)",
        f"{names[0]} = divide(tl.sum({mean} * seen, {axis}, keep_dims=True), all_seen)",
        f"apart = {mean} - {names[0]}",
        f"{names[1]} = tl.sum({squares} + apart * apart * seen, {axis}, keep_dims=True)",
    ]


def _result_softmax(lanes: Collected, names: tuple[str, ...]) -> list[str]:
    (largest, total), axis = lanes.names, lanes.axis
    return [
        f"{names[0]} = reduce_maximum({largest}, {axis})",
        f"scale = libdevice.exp({largest} - softmax_shift({names[0]}))",
        f"{names[1]} = tl.sum({total} * scale, {axis}, keep_dims=True)",
    ]


def finish(combine: str, names: tuple[str, ...], nonempty: str = "") -> list[str]:
    """Return lines that make results of what was combined from all lanes of all programs.

    `nonempty` is the condition that there was anything, where that is not known.
    """
    if combine == "softmax":
        # exp(-inf - -inf) is NaN, which only the whole row decides.
        nothing = f'({names[0]} == float("-inf"))'
        nothing = f"{nothing} & ({nonempty})" if nonempty else nothing
        return [f'{names[1]} = tl.where({nothing}, float("nan"), {names[1]})']
    return []


def direct(lanes: Collected, x: str, position: str, mask: str, names: tuple[str, ...]) -> list[str]:
    """Return lines that reduce a tile that holds all numbers at once into variables."""
    combine, axis = lanes.combine, lanes.axis
    if combine == "welford":
        kept = f"tl.where({mask}, {x}, 0.0)" if mask else x
        apart = f"{x} - {names[0]}"
        apart = f"tl.where({mask}, {apart}, 0.0)" if mask else apart
        return [
            f"{names[0]} = divide(tl.sum({kept}, {axis}, keep_dims=True), {lanes.seen})",
            f"apart = {apart}",
            f"{names[1]} = tl.sum(apart * apart, {axis}, keep_dims=True)",
        ]
    if combine == "softmax":
        kept = f'tl.where({mask}, {x}, float("-inf"))' if mask else x
        scaled = f"libdevice.exp({x} - {names[0]})"
        scaled = f"tl.where({mask}, {scaled}, 0.0)" if mask else scaled
        return [
            f"{names[0]} = reduce_maximum({kept}, {axis})",
            f"{names[1]} = tl.sum({scaled}, {axis}, keep_dims=True)",
        ]
    kept_names = tuple(f"{names[0]}_lanes{lane.suffix}" for lane in lanes_of(combine, lanes.dtype))
    lines = [f"{kept_names[0]} = {masked(lanes, x, mask)}"]
    if combine in ("argmax", "argmin"):
        where = f"tl.where({mask}, {position}, {LAST_POSITION})" if mask else position
        lines.append(f"{kept_names[1]} = {where}")
    return [*lines, *result(Collected(combine, lanes.dtype, kept_names, axis), names)]
