"""Softmax and its relatives, kept whole, with their derivatives."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.dims import may_equal
from lynx.ir.space import IterationSpace
from lynx.ir.types import TensorType

from .layout import parallel_space


class Normalized(Op):
    """Base of functions that normalise along `dim`; a 0-dim tensor has a dimension 0 of size 1."""

    x: Value
    dim: int

    def infer(self) -> Any:
        """Return the type of `x`, whose elements are floating."""
        x = self.x.tensor_type
        _check(self, x, self.dim)
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return a space in which the normalised dimension is whole."""
        return parallel_space(self.x.shape, (self.dim,), linear=False)


class Softmax(Normalized, name="softmax"):
    """Compute `exp(x - max) / sum(exp(x - max))` along a dimension.

    %r = softmax %x {dim = 1} : f32[4, 16]
    """


class SafeSoftmax(Normalized, name="safe_softmax"):
    """Compute the softmax, but zeros where all elements are negative infinity.

    %r = safe_softmax %x {dim = 1} : f32[4, 16]
    """


class LogSoftmax(Normalized, name="log_softmax"):
    """Compute the logarithm of the softmax.

    %r = log_softmax %x {dim = 1} : f32[4, 16]
    """


class NormalizedBackward(Op):
    """Base of the derivatives, which need the gradient of the result and the result itself."""

    grad: Value
    result: Value
    dim: int

    def infer(self) -> Any:
        """Return the type of the gradient."""
        grad, result = self.grad.tensor_type, self.result.tensor_type
        _check(self, grad, self.dim)
        same = grad.rank == result.rank and all(map(may_equal, grad.shape, result.shape))
        if not same or grad.dtype is not result.dtype:
            raise self.error("type-mismatch", f"gradient {grad} of a result {result}")
        return result.with_shape(result.shape)

    def space(self) -> IterationSpace:
        """Return a space in which the normalised dimension is whole."""
        space = parallel_space(self.result.shape, (self.dim,))
        (axes,) = space.operands
        return IterationSpace(space.factors, (axes, axes), (axes,), ((0,),))


class SoftmaxBackward(NormalizedBackward, name="softmax_backward"):
    """Compute `(grad - sum(grad * result)) * result`, the gradient of softmax.

    %r = softmax_backward %grad, %result {dim = 1} : f32[4, 16]
    """


class LogSoftmaxBackward(NormalizedBackward, name="log_softmax_backward"):
    """Compute `grad - exp(result) * sum(grad)`, the gradient of the logarithm of softmax.

    %r = log_softmax_backward %grad, %result {dim = 1} : f32[4, 16]
    """


def _check(op: Op, type_: TensorType, dim: int) -> None:
    if not 0 <= dim < max(type_.rank, 1):
        raise op.error("bad-dim", f"has no dimension {dim} in {type_}")
    if not type_.dtype.is_floating:
        raise op.error("bad-dtype", f"needs floating elements, got {type_.dtype}")
