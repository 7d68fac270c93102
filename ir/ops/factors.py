"""Help for ops of irregular rank: collecting factors, and checks that several families share."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, may_equal
from lynx.ir.space import Factor, FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType


class Factors:
    """The factors of a space under construction; each method adds one and returns its axis."""

    def __init__(self) -> None:
        self._factors: list[Factor] = []

    def parallel(self, name: str, size: Dim) -> tuple[str, ...]:
        """Add a parallel factor."""
        return self._add(Factor(name, size))

    def opaque(self, name: str, size: Dim) -> tuple[str, ...]:
        """Add a factor whose whole extent is needed at once."""
        return self._add(Factor(name, size, FactorKind.OPAQUE))

    def sum(self, name: str, size: Dim) -> tuple[str, ...]:
        """Add a factor over which parts are added."""
        return self._add(Factor(name, size, FactorKind.REDUCTION, "sum"))

    def of(self, kind: FactorKind, name: str, size: Dim) -> tuple[str, ...]:
        """Add a factor of a kind; a reduction is a sum."""
        return self._add(Factor(name, size, kind, "sum" if kind is FactorKind.REDUCTION else ""))

    def _add(self, factor: Factor) -> tuple[str, ...]:
        self._factors.append(factor)
        return (factor.name,)

    def space(
        self,
        operands: tuple[IndexMap, ...],
        results: tuple[IndexMap, ...],
        linear: tuple[tuple[int, ...], ...] = (),
    ) -> IterationSpace:
        """Return the space over the factors added so far."""
        return IterationSpace(tuple(self._factors), operands, results, linear)


def broadcast_axes(shape: tuple[Dim, ...], full: tuple[Dim, ...], axes: IndexMap) -> IndexMap:
    """Return the index map of an operand that is broadcast to a shape with these axes."""
    first = len(full) - len(shape)
    return tuple(
        () if dim == 1 and full[index] != 1 else axes[index]
        for index, dim in enumerate(shape, first)
    )


def broadcast_shapes(op: Op, shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """Return the common shape after broadcasting as torch does."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for index, dim in enumerate(shape, rank - len(shape)):
            known = result[index]
            if known == 1:
                result[index] = dim
            elif dim != 1:
                require_equal(op, known, dim, "broadcast dimensions")
                result[index] = dim if isinstance(dim, int) else known
    return tuple(result)


def require_rank(op: Op, value: Value, *ranks: int) -> TensorType:
    """Return the type of a tensor that must have one of these ranks."""
    type_ = value.tensor_type
    if type_.rank not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise op.error("bad-rank", f"expects a tensor of rank {wanted}, got {type_}")
    return type_


def require_equal(op: Op, actual: Dim, expected: Dim, what: str) -> None:
    """Check that two dimensions may be equal."""
    if not may_equal(actual, expected):
        raise op.error("shape-mismatch", f"has {what} of {actual} and {expected}")


def require_shape(op: Op, value: Value, shape: tuple[Dim, ...], what: str) -> None:
    """Check that a tensor may have this shape."""
    actual = value.shape
    if len(actual) != len(shape) or not all(map(may_equal, actual, shape)):
        wanted = ", ".join(map(str, shape))
        raise op.error("shape-mismatch", f"expects {what} of shape [{wanted}], got {value.type}")


def require_same_dtype(op: Op, *values: Value) -> DType:
    """Return the element type that all tensors must share."""
    first = values[0].tensor_type.dtype
    for value in values[1:]:
        if value.tensor_type.dtype is not first:
            raise op.error("dtype-mismatch", f"mixes {first} and {value.tensor_type.dtype}")
    return first


def require_index(op: Op, value: Value) -> TensorType:
    """Return the type of a tensor that must hold indices."""
    type_ = value.tensor_type
    if type_.dtype not in (DType.I64, DType.I32):
        raise op.error("bad-dtype", f"expects indices of type i64 or i32, got {type_}")
    return type_


def normal_axis(op: Op, axis: int, rank: int) -> int:
    """Return the axis counted from the front; a 0-dim tensor counts as having one."""
    count = max(rank, 1)
    if not -count <= axis < count:
        raise op.error("bad-axis", f"has axis {axis} of a tensor of rank {rank}")
    return axis % count
