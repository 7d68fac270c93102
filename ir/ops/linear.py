"""Contractions: products of matrices and vectors, with and without an added term."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, may_equal
from lynx.ir.space import FactorKind, IndexMap, IterationSpace, space
from lynx.ir.types import TensorType

from .factors import (
    Factors,
    broadcast_axes,
    broadcast_shapes,
    require_equal,
    require_rank,
    require_same_dtype,
)

_EACH = ((0,), (1,))
"""A product is linear in either operand."""


class MatrixProduct(Op):
    """Base of products of two tensors over their common axis; linear in each of them."""

    a: Value
    b: Value


class Matmul(MatrixProduct, name="matmul"):
    """Multiply two matrices.

        %c = matmul %a, %b : f32[4, 16]

    The last axis of `a` contracts with the first axis of `b`.
    """

    def infer(self) -> TensorType:
        """Return a matrix of the rows of `a` and the columns of `b`."""
        a, b = require_rank(self, self.a, 2), require_rank(self, self.b, 2)
        _require_contraction(self, a, b)
        return TensorType(a.dtype, (a.shape[0], b.shape[1]), a.device)

    def space(self) -> IterationSpace:
        """Sum over the contracted axis."""
        (i, k), j = self.a.shape, self.b.shape[1]
        sizes = {"i": i, "k": k, "j": j}
        return space("i k, k j -> i j", sizes, reduction={"k": "sum"}, linear=_EACH)


class BatchMatmul(MatrixProduct, name="batch_matmul"):
    """Multiply matrices pairwise along one or more leading batch axes.

    %c = batch_matmul %a, %b : f32[8, 4, 16]
    """

    def infer(self) -> TensorType:
        """Return a batch of matrices."""
        a, b = self.a.tensor_type, self.b.tensor_type
        if a.rank < 3 or a.rank != b.rank:
            raise self.error("bad-rank", f"expects two batches of matrices, got {a} and {b}")
        for one, other in zip(a.shape[:-2], b.shape[:-2], strict=True):
            require_equal(self, one, other, "batch sizes")
        _require_contraction(self, a, b)
        return TensorType(a.dtype, (*a.shape[:-1], b.shape[-1]), a.device)

    def space(self) -> IterationSpace:
        """Run in parallel over the batch; sum over the contracted axis."""
        *batch, i, k = self.a.shape
        names = ["b"] if len(batch) == 1 else [f"b{n}" for n in range(len(batch))]
        sizes = {**dict(zip(names, batch, strict=True)), "i": i, "k": k, "j": self.b.shape[-1]}
        along = " ".join(names)
        return space(
            f"{along} i k, {along} k j -> {along} i j",
            sizes,
            reduction={"k": "sum"},
            linear=_EACH,
        )


class Dot(MatrixProduct, name="dot"):
    """Multiply two vectors elementwise and add up.

    %c = dot %a, %b : f32[]
    """

    def infer(self) -> TensorType:
        """Return a 0-dim tensor."""
        a, b = require_rank(self, self.a, 1), require_rank(self, self.b, 1)
        _require_contraction(self, a, b)
        return TensorType(a.dtype, (), a.device)

    def space(self) -> IterationSpace:
        """Sum over the vector."""
        return space(
            "k, k -> ",
            {"k": self.a.shape[0]},
            reduction={"k": "sum"},
            linear=_EACH,
        )


class MatrixVector(MatrixProduct, name="matrix_vector"):
    """Multiply a matrix by a vector.

    %c = matrix_vector %a, %b : f32[4]
    """

    def infer(self) -> TensorType:
        """Return a vector of the rows of `a`."""
        a, b = require_rank(self, self.a, 2), require_rank(self, self.b, 1)
        _require_contraction(self, a, b)
        return TensorType(a.dtype, (a.shape[0],), a.device)

    def space(self) -> IterationSpace:
        """Sum over the contracted axis."""
        i, k = self.a.shape
        return space(
            "i k, k -> i",
            {"i": i, "k": k},
            reduction={"k": "sum"},
            linear=_EACH,
        )


class AddProduct(Op):
    """Base of `beta * bias + alpha * (a @ b)`, where `bias` is broadcast to the product's shape.

    A `beta` of 0 ignores the bias, NaN included. Integer tensors take `alpha` and `beta` that are
    integers. The sum over the contracted axis cannot be cut, since each part would add the bias;
    bias and product are linear together.
    """

    bias: Value
    a: Value
    b: Value
    alpha: float = 1
    beta: float = 1

    def infer(self) -> TensorType:
        """Return the type of the product."""
        dtype = require_same_dtype(self, self.bias, self.a, self.b)
        shape, _ = self._product()
        joint = broadcast_shapes(self, [self.bias.shape, shape])
        if len(joint) != len(shape) or any(
            x != 1 and y == 1 for x, y in zip(joint, shape, strict=True)
        ):
            raise self.error("shape-mismatch", f"cannot broadcast {self.bias.type} to the product")
        return TensorType(dtype, shape, self.a.tensor_type.device)

    def space(self) -> IterationSpace:
        """Return the product's space; the contracted axis is a sum if the bias is ignored."""
        shape, names = self._product()
        factors = Factors()
        axes = {
            name: factors.parallel(name, size) for name, size in zip(names[2], shape, strict=True)
        }
        if "k" in names[0]:
            kind = FactorKind.REDUCTION if self.beta == 0 else FactorKind.OPAQUE
            axes["k"] = factors.of(kind, "k", self.a.shape[-1])
        a, b, result = (tuple(axes[name] for name in text) for text in names)
        bias: IndexMap = broadcast_axes(self.bias.shape, shape, result)
        linear = ((1,), (2,)) if self.beta == 0 else ((0, 1), (0, 2))
        return factors.space((bias, a, b), (result,), linear)

    def _product(self) -> tuple[tuple[Dim, ...], tuple[str, str, str]]:
        """Return the shape of `a @ b`, and one letter for each dimension of a, b and the result."""
        raise NotImplementedError(self.name)


class AddMatmul(AddProduct, name="addmm"):
    """Multiply two matrices and add a broadcast term: `beta * bias + alpha * (a @ b)`.

    %c = addmm %bias, %a, %b : f32[4, 16]
    """

    def _product(self) -> tuple[tuple[Dim, ...], tuple[str, str, str]]:
        a, b = require_rank(self, self.a, 2), require_rank(self, self.b, 2)
        _require_contraction(self, a, b)
        return (a.shape[0], b.shape[1]), ("ik", "kj", "ij")


class AddBatchMatmul(AddProduct, name="baddbmm"):
    """Multiply matrices pairwise and add a broadcast term: `beta * bias + alpha * (a @ b)`.

    %c = baddbmm %bias, %a, %b {beta = 0.0} : f32[8, 4, 16]
    """

    def _product(self) -> tuple[tuple[Dim, ...], tuple[str, str, str]]:
        a, b = require_rank(self, self.a, 3), require_rank(self, self.b, 3)
        require_equal(self, a.shape[0], b.shape[0], "batch sizes")
        _require_contraction(self, a, b)
        return (a.shape[0], a.shape[1], b.shape[2]), ("nik", "nkj", "nij")


class AddMatrixVector(AddProduct, name="addmv"):
    """Multiply a matrix by a vector and add a broadcast term: `beta * bias + alpha * (a @ b)`.

    %c = addmv %bias, %a, %b : f32[4]
    """

    def _product(self) -> tuple[tuple[Dim, ...], tuple[str, str, str]]:
        a, b = require_rank(self, self.a, 2), require_rank(self, self.b, 1)
        _require_contraction(self, a, b)
        return (a.shape[0],), ("ik", "k", "i")


class AddOuter(AddProduct, name="addr"):
    """Add the outer product of two vectors: `beta * bias + alpha * a[:, None] * b[None, :]`.

    %c = addr %bias, %a, %b : f32[4, 16]
    """

    def _product(self) -> tuple[tuple[Dim, ...], tuple[str, str, str]]:
        a, b = require_rank(self, self.a, 1), require_rank(self, self.b, 1)
        return (a.shape[0], b.shape[0]), ("i", "j", "ij")


def _require_contraction(op: Op, a: TensorType, b: TensorType) -> None:
    """Check that the last axis of `a` contracts with the last but one, or only, axis of `b`."""
    if a.dtype is not b.dtype:
        raise op.error("dtype-mismatch", f"mixes {a.dtype} and {b.dtype}")
    if not may_equal(a.shape[-1], b.shape[max(b.rank - 2, 0)]):
        raise op.error("shape-mismatch", f"cannot contract {a} with {b}")
