"""Ops that draw from the global random generator, in the order of the program.

Numbers are drawn in row-major order of the result, so an op cut in parts draws others than the
whole: cutting keeps the distribution and not the stream.
"""

from __future__ import annotations

from typing import ClassVar

from lynx.ir.core import Op, Operand
from lynx.ir.dims import Dim
from lynx.ir.space import IterationSpace, space
from lynx.ir.types import DType, TensorType

from .elementwise import Unary
from .factory import Factory


class RandomFactory(Factory):
    """Base of ops that fill a tensor with independent random numbers."""

    is_random: ClassVar[bool] = True


class RandomUniform(RandomFactory, name="random_uniform"):
    """Draw uniformly from `low` up to `high`, exclusive.

    %y = random_uniform 0.0, 1.0 {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    low: Operand
    high: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class RandomNormal(RandomFactory, name="random_normal"):
    """Draw from a normal distribution.

    %y = random_normal 0.0, 1.0 {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    mean: Operand
    deviation: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class RandomInteger(RandomFactory, name="random_integer"):
    """Draw integers uniformly from `low` up to `high`, exclusive.

    %y = random_integer 0, 10 {shape = [4, 8], dtype = i64} : i64[4, 8]
    """

    low: Operand
    high: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class RandomExponential(RandomFactory, name="random_exponential"):
    """Draw from an exponential distribution of the given rate.

    %y = random_exponential 1.0 {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    rate: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class RandomBernoulli(RandomFactory, name="random_bernoulli"):
    """Draw 1 with probability `p` and 0 otherwise.

    %y = random_bernoulli 0.5 {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    p: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class RandomPermutation(Op, name="random_permutation"):
    """Draw a permutation of `0 .. length - 1`.

    %y = random_permutation {length = 8} : i64[8]
    """

    is_random: ClassVar[bool] = True

    length: Dim
    dtype: DType = DType.I64
    device: str = "cpu"

    def infer(self) -> TensorType:
        """Return a vector of indices."""
        return TensorType(self.dtype, (self.length,), self.device)

    def space(self) -> IterationSpace:
        """Return one axis that is needed whole."""
        return space("-> i", {"i": self.length}, opaque=("i",))


class Bernoulli(Unary, name="bernoulli"):
    """Draw 1 with the probability that each element of the operand is, and 0 otherwise.

    %y = bernoulli %p : f32[4, 8]
    """

    is_random: ClassVar[bool] = True
    accepts: ClassVar[str] = "f"


class Dropout(Unary, name="dropout"):
    """Zero elements with probability `p`, scale the others by `1 / (1 - p)`; return the mask too.

    %y, %mask = dropout %x {p = 0.1} : f32[4, 8], bool[4, 8]
    """

    is_random: ClassVar[bool] = True
    accepts: ClassVar[str] = "fc"
    p: float

    def infer(self) -> tuple[TensorType, TensorType]:  # type: ignore[override]  # two results
        """Return the types of the result and of the mask of kept elements."""
        type_ = super().infer()
        return type_, type_.with_dtype(DType.BOOL)
