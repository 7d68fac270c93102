"""Functions that generated kernels call on the device, where Triton has none of torch's meaning."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton must not see the branch that does not suit the type, so an `else` stays after a `return`.
# ruff: noqa: RET505


@triton.jit
def maximum(a, b):  # type: ignore[no-untyped-def]
    """Return the greater; NaN if either is."""
    return tl.where((a != a) | (a > b), a, b)


@triton.jit
def minimum(a, b):  # type: ignore[no-untyped-def]
    """Return the smaller; NaN if either is."""
    return tl.where((a != a) | (a < b), a, b)


@triton.jit
def multiply(a, b):  # type: ignore[no-untyped-def]
    """Return the product: how `prod` combines."""
    return a * b


@triton.jit
def reduce_maximum(x, axis):  # type: ignore[no-untyped-def]
    """Return the greatest along an axis of a tile, kept as size 1; NaN if there is one."""
    return tl.reduce(x, axis, maximum, keep_dims=True)


@triton.jit
def reduce_minimum(x, axis):  # type: ignore[no-untyped-def]
    """Return the smallest along an axis of a tile, kept as size 1; NaN if there is one."""
    return tl.reduce(x, axis, minimum, keep_dims=True)


@triton.jit
def reduce_product(x, axis):  # type: ignore[no-untyped-def]
    """Return the product along an axis of a tile, kept as size 1."""
    return tl.reduce(x, axis, multiply, keep_dims=True)


@triton.jit
def is_before(x, position, best, best_position):  # type: ignore[no-untyped-def]
    """Whether of two equal numbers, or two NaNs, the first is the one at the lower position."""
    same = (x == best) | ((x != x) & (best != best))
    return same & (position < best_position)


@triton.jit
def is_greater(x, position, best, best_position):  # type: ignore[no-untyped-def]
    """Whether `argmax` prefers `x` at `position`: greater, or NaN; the first of equals."""
    wins = (x > best) | ((x != x) & (best == best))
    return wins | is_before(x, position, best, best_position)


@triton.jit
def is_smaller(x, position, best, best_position):  # type: ignore[no-untyped-def]
    """Whether `argmin` prefers `x` at `position`: smaller, or NaN; the first of equals."""
    wins = (x < best) | ((x != x) & (best == best))
    return wins | is_before(x, position, best, best_position)


@triton.jit
def first_position(x, position, best, axis):  # type: ignore[no-untyped-def]
    """Return the lowest position along an axis at which `x` is `best`, NaN included."""
    same = (x == best) | ((x != x) & (best != best))
    return tl.min(tl.where(same, position, 0x7FFFFFFFFFFFFFFF), axis, keep_dims=True)


@triton.jit
def softmax_shift(m):  # type: ignore[no-untyped-def]
    """Return what to subtract before `exp`: the maximum, or 0 where nothing was seen yet."""
    return tl.where(m == float("-inf"), tl.zeros_like(m), m)


@triton.jit
def trunc_div_float(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient rounded towards zero."""
    return libdevice.trunc(divide(a, b))


@triton.jit
def divide(a, b):  # type: ignore[no-untyped-def]
    """Return the correctly rounded quotient: `/` is an approximation for `f32`."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def square_root(x):  # type: ignore[no-untyped-def]
    """Return the correctly rounded root: `tl.sqrt` is an approximation for `f32`."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return `1 / (1 + exp(-x))`."""
    one = tl.full(x.shape, 1.0, x.dtype)
    return divide(one, one + libdevice.exp(-x))


@triton.jit
def remainder_float(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder with the sign of the divisor."""
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((b < 0) != (r < 0)), r + b, r)


@triton.jit
def floor_div_float(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient rounded down, by the algorithm of `c10::div_floor_floating`."""
    r = libdevice.fmod(a, b)
    q = divide(a - r, b)
    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)
    whole = libdevice.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    plain = divide(a, b)
    zero = libdevice.copysign(tl.zeros_like(plain), plain)
    return tl.where(b == 0, plain, tl.where(q == 0, zero, whole))


@triton.jit
def floor_div_integer(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient rounded down: `//` of Triton rounds towards zero."""
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def remainder_integer(a, b):  # type: ignore[no-untyped-def]
    """Return the remainder with the sign of the divisor: `%` of Triton has the dividend's."""
    r = a - (a // b) * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def shift_left(a, b):  # type: ignore[no-untyped-def]
    """Shift by `b` bits; 0 where `b` is negative or not less than the width."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < width)
    return tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def shift_right(a, b):  # type: ignore[no-untyped-def]
    """Shift by `b` bits; all bits where `b` is negative or not less than the width."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < width)
    last = a >> tl.full(a.shape, width - 1, a.dtype)
    # An unsigned number has no sign to fill with.
    gone = tl.where(a < 0, last, tl.zeros_like(a)).to(a.dtype)
    return tl.where(inside, a >> tl.where(inside, b, 0).to(a.dtype), gone).to(a.dtype)


@triton.jit
def sign_float(x):  # type: ignore[no-untyped-def]
    """Return -1, 0 or 1; 0 for NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def signbit_float(x):  # type: ignore[no-untyped-def]
    """Whether the sign bit is set, that of zeros and NaNs too."""
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) < 0
    else:
        return x.to(tl.int64, bitcast=True) < 0


HELPERS: dict[str, Any] = {
    name: value for name, value in sorted(globals().items()) if hasattr(value, "fn")
}
"""The functions by the names that kernels call them by."""
