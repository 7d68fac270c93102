"""What Triton's interpreter needs beyond itself to run our kernels as a device would."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "sin", "cos"),
            *("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("erf", "erfc", "floor", "ceil", "trunc", "pow", "atan2", "hypot", "copysign"),
            "nextafter",
        )
    },
    "rint": torch.round,
    # That of torch on vectors is NaN where the quotient overflows.
    "fmod": lambda a, b: torch.from_numpy(np.fmod(a.numpy(), b.numpy())),
}
"""The functions of libdevice that kernels call."""


def patch_interpreter() -> None:
    """Change the interpreter of this process."""
    for name, function in _TORCH.items():
        setattr(libdevice, name, _on_tiles(function))
    interpreter._convert_float = _converting(interpreter._convert_float)
    interpreter.InterpreterBuilder.create_splat = _splat
    rmw = interpreter.InterpreterBuilder.create_atomic_rmw
    interpreter.InterpreterBuilder.create_atomic_rmw = _atomic(rmw)
    interpreter.InterpreterBuilder.create_dot = _dot(interpreter.InterpreterBuilder.create_dot)
    interpreter.ReduceOps.generic_reduce = _reducing(interpreter.ReduceOps.generic_reduce)


def _on_tiles(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return a function of torch as one of tiles of the interpreter."""

    def call(*tiles: Any) -> Any:
        arrays = [np.asarray(tile.handle.data) for tile in tiles]
        out = function(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        first = max(tiles, key=lambda tile: len(tile.shape))
        handle = interpreter.TensorHandle(out.numpy(), first.handle.dtype)
        shape = list(out.shape) if len(first.shape) else []
        type_ = tl.block_type(first.dtype, shape) if shape else first.type
        return tl.tensor(handle, type_)

    return call


def _converting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Round `f32` to bfloat16 to nearest, ties to even, and back, as devices do."""

    def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source == tl.float32 and target == tl.bfloat16:
            wide = torch.from_numpy(np.ascontiguousarray(data).view(np.float32))
            return wide.bfloat16().view(torch.int16).numpy().view(np.uint16)
        if source == tl.bfloat16 and target == tl.float32:
            bits = np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16
            return bits.reshape(np.shape(data))
        return original(data, source, target, mode)

    return convert


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    """Multiply tiles of bfloat16, which the interpreter holds as bits, as the numbers they are."""

    def dot(self: Any, a: Any, b: Any, total: Any, *options: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            x, y = ((one.data.astype(np.uint32) << 16).view(np.float32) for one in (a, b))
            product = np.matmul(x, y, dtype=np.float32) + total.data
            return interpreter.TensorHandle(product, total.dtype.scalar)
        return original(self, a, b, total, *options)

    return dot


def _atomic(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add to bfloat16 in memory, place by place, rounding each time."""

    def atomic(self: Any, kind: Any, places: Any, value: Any, mask: Any, *options: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return original(self, kind, places, value, mask, *options)
        assert "FADD" in str(kind), "kernels only add"
        lanes = (np.broadcast_to(one.data, places.data.shape) for one in (places, value, mask))
        for place, bits, chosen in zip(*(lane.reshape(-1) for lane in lanes), strict=True):
            if chosen:
                cell = ctypes.c_uint16.from_address(int(place))
                total = _from_bits(cell.value) + _from_bits(int(bits))
                cell.value = int(torch.tensor(total).bfloat16().view(torch.uint16))
        return value

    return atomic


def _from_bits(bits: int) -> float:
    return float(np.uint32(bits << 16).view(np.float32))


def _splat(self: Any, type_: Any, scalar: Any) -> Any:
    """Spread a scalar over a tile: a truth value as such, which comparisons mislabel."""
    del self
    array = np.full(type_.shape, scalar.data.reshape(-1)[0], dtype=scalar.data.dtype)
    return interpreter.TensorHandle(array, scalar.dtype.scalar)


_REDUCED: dict[str, Callable[..., Any]] = {
    "maximum": np.max,
    "minimum": np.min,
    "multiply": np.prod,
}
"""What numpy calls the functions that kernels combine with; `max` of numpy is NaN if one is."""


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Combine whole arrays, instead of one pair of numbers at a time."""

    def reduce(self: Any, tiles: Any) -> Any:
        function = _REDUCED.get(self.combine_fn.fn.__name__)
        if function is None or len(tiles) != 1 or self.axis is None:
            return original(self, tiles)
        data = function(tiles[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(data, tiles[0].dtype)]

    return reduce
