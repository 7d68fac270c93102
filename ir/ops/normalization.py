"""Layer, root-mean-square, group and batch normalization, kept whole, with their derivatives.

In the backward ops the rows (or the batch) are a factor of kind reduction: the gradient of the
input has it in its map and is computed part by part, the gradients of the weights do not and are
summed over it.
"""

from __future__ import annotations

import dataclasses

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, floor_div, may_equal
from lynx.ir.space import Factor, FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, OpaqueType, TensorType, Type

_NONE = OpaqueType("none")


def _statistics_dtype(x: TensorType, *others: Value | None) -> DType:
    """Return the type in which torch saves means and variances.

    On a CPU that is the type of the input, unless it is of low precision and mixed with `f32`;
    elsewhere low precision is always accumulated, and saved, in `f32`.
    """
    if not x.dtype.is_low_precision:
        return x.dtype
    mixed = any(v is not None and v.tensor_type.dtype is not x.dtype for v in others)
    return DType.F32 if mixed or not x.device.startswith("cpu") else x.dtype


def _check_vectors(op: Op, x: TensorType, shape: tuple[Dim, ...], *values: Value | None) -> None:
    """Raise unless each value is None or has this shape and goes with the type of `x`."""
    for value in values:
        if value is None:
            continue
        type_ = value.tensor_type
        if type_.rank != len(shape) or not all(map(may_equal, type_.shape, shape)):
            raise op.error("shape-mismatch", f"expects {x.with_shape(shape)}, got {type_}")
        if type_.dtype is not x.dtype and not (
            x.dtype.is_low_precision and type_.dtype is DType.F32
        ):
            raise op.error("dtype-mismatch", f"mixes {x.dtype} and {type_.dtype}")


def _check_input(op: Op, x: TensorType, axis: int) -> None:
    if not 0 <= axis < x.rank:
        raise op.error("bad-axis", f"normalises from dimension {axis} on, got {x}")
    if not x.dtype.is_floating:
        raise op.error("bad-dtype", f"needs floating elements, got {x.dtype}")


def _masked(
    op: Op, mask: tuple[bool, ...], x: TensorType, weight: Value | None, shape: tuple[Dim, ...]
) -> tuple[Type, ...]:
    """Return the types of the gradients: of `x` first, then of the weights; none if masked."""
    if any(mask[1:]) and weight is None:
        raise op.error("no-weight", "has no weight to give a gradient for")
    dtype = x.dtype if weight is None else weight.tensor_type.dtype
    of_weights = TensorType(dtype, shape, x.device)
    wanted = (x.with_shape(x.shape), *(of_weights for _ in mask[1:]))
    return tuple(t if wants else _NONE for t, wants in zip(wanted, mask, strict=True))


def _present(*pairs: tuple[Value | None, IndexMap]) -> tuple[IndexMap, ...]:
    return tuple(index_map for value, index_map in pairs if value is not None)


class _Rows:
    """The index maps of an input whose dimensions from `axis` on are normalised."""

    def __init__(self, x: Value, axis: int, rows: FactorKind) -> None:
        combine = "sum" if rows is FactorKind.REDUCTION else ""
        self.factors = tuple(
            Factor(f"d{i}", size, rows, combine)
            if i < axis
            else Factor(f"d{i}", size, FactorKind.OPAQUE)
            for i, size in enumerate(x.shape)
        )
        self.whole: IndexMap = tuple((factor.name,) for factor in self.factors)
        self.weights = self.whole[axis:]
        self.statistics: IndexMap = (*self.whole[:axis], *((),) * (len(self.whole) - axis))


def _row_statistics(x: TensorType, axis: int, dtype: DType) -> TensorType:
    return TensorType(dtype, (*x.shape[:axis], *(1,) * (x.rank - axis)), x.device)


class LayerNorm(Op, name="layer_norm"):
    """Normalise over the dimensions from `axis` on; return also means and inverse deviations.

    %y, %m, %r = layer_norm %x, %w, %b {axis = 1, eps = 1e-05} : f32[4, 16], f32[4, 1], f32[4, 1]
    """

    x: Value
    weight: Value | None
    bias: Value | None
    axis: int
    eps: float

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the result and of the statistics."""
        x = self.x.tensor_type
        _check_input(self, x, self.axis)
        _check_vectors(self, x, x.shape[self.axis :], self.weight, self.bias)
        statistics = _row_statistics(x, self.axis, _statistics_dtype(x, self.weight, self.bias))
        return x.with_shape(x.shape), statistics, statistics

    def space(self) -> IterationSpace:
        """Return parallel rows; the normalised dimensions are whole."""
        rows = _Rows(self.x, self.axis, FactorKind.PARALLEL)
        weights = _present((self.weight, rows.weights), (self.bias, rows.weights))
        results = (rows.whole, rows.statistics, rows.statistics)
        return IterationSpace(rows.factors, (rows.whole, *weights), results)


class LayerNormBackward(Op, name="layer_norm_backward"):
    """Compute the gradients of a layer norm: of its input, weight and bias, as `mask` says.

    %a, %b, %c = layer_norm_backward %g, %x, %m, %r, %w, none {axis = 0} : f32[8], f32[8], f32[8]
    """

    grad: Value
    x: Value
    mean: Value
    rstd: Value
    weight: Value | None
    bias: Value | None
    axis: int
    mask: tuple[bool, bool, bool] = (True, True, True)

    def infer(self) -> tuple[Type, ...]:
        """Return the types of the gradients."""
        x = self.x.tensor_type
        _check_input(self, x, self.axis)
        _check_vectors(self, x, x.shape, self.grad)
        _check_vectors(self, x, x.shape[self.axis :], self.weight, self.bias)
        statistics = _row_statistics(x, self.axis, x.dtype).shape
        _check_vectors(self, x, statistics, self.mean, self.rstd)
        return _masked(self, self.mask, x, self.weight, x.shape[self.axis :])

    def space(self) -> IterationSpace:
        """Return rows that are summed for the weights."""
        sums = any(self.mask[1:])
        kind = FactorKind.REDUCTION if sums else FactorKind.PARALLEL
        rows = _Rows(self.x, self.axis, kind)
        weights = _present((self.weight, rows.weights), (self.bias, rows.weights))
        operands = (rows.whole, rows.whole, rows.statistics, rows.statistics, *weights)
        results = (rows.whole, rows.weights, rows.weights)
        return IterationSpace(rows.factors, operands, _mask_maps(results, self.mask), ((0,),))


def _mask_maps(maps: tuple[IndexMap, ...], mask: tuple[bool, ...]) -> tuple[IndexMap, ...]:
    return tuple(index_map if wants else () for index_map, wants in zip(maps, mask, strict=True))


class RmsNorm(Op, name="rms_norm"):
    """Divide by the root mean square over the dimensions from `axis` on; return also its inverse.

        %y, %r = rms_norm %x, %w {axis = 1, eps = 1e-06} : f32[4, 16], f32[4, 1]

    Without `eps` the machine epsilon of the type is added to the mean square.
    """

    x: Value
    weight: Value | None
    axis: int
    eps: float | None = None

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the result and of the inverse root mean square."""
        x = self.x.tensor_type
        _check_input(self, x, self.axis)
        _check_vectors(self, x, x.shape[self.axis :], self.weight)
        dtype = DType.F32 if x.dtype.is_low_precision else x.dtype
        return x.with_shape(x.shape), _row_statistics(x, self.axis, dtype)

    def space(self) -> IterationSpace:
        """Return parallel rows; the normalised dimensions are whole."""
        rows = _Rows(self.x, self.axis, FactorKind.PARALLEL)
        weights = _present((self.weight, rows.weights))
        results = (rows.whole, rows.statistics)
        return IterationSpace(rows.factors, (rows.whole, *weights), results)


class RmsNormBackward(Op, name="rms_norm_backward"):
    """Compute the gradients of an RMS norm: of its input and weight, as `mask` says.

    %x, %w = rms_norm_backward %g, %x0, %r, %w0 {axis = 1} : f32[4, 16], f32[16]
    """

    grad: Value
    x: Value
    rstd: Value
    weight: Value | None
    axis: int
    mask: tuple[bool, bool] = (True, True)

    def infer(self) -> tuple[Type, ...]:
        """Return the types of the gradients."""
        x = self.x.tensor_type
        _check_input(self, x, self.axis)
        _check_vectors(self, x, x.shape, self.grad)
        _check_vectors(self, x, x.shape[self.axis :], self.weight)
        _check_vectors(self, x, _row_statistics(x, self.axis, x.dtype).shape, self.rstd)
        return _masked(self, self.mask, x, self.weight, x.shape[self.axis :])

    def space(self) -> IterationSpace:
        """Return rows that are summed for the weight."""
        kind = FactorKind.REDUCTION if self.mask[1] else FactorKind.PARALLEL
        rows = _Rows(self.x, self.axis, kind)
        weights = _present((self.weight, rows.weights))
        operands = (rows.whole, rows.whole, rows.statistics, *weights)
        results = _mask_maps((rows.whole, rows.weights), self.mask)
        return IterationSpace(rows.factors, operands, results, ((0,),))


class _Channels:
    """The index maps of an input `n (g c) s..`, with `g` groups of channels."""

    def __init__(self, x: Value, groups: Dim, batch: FactorKind) -> None:
        combine = "sum" if batch is FactorKind.REDUCTION else ""
        spatial = tuple(
            Factor(f"s{i}", size, FactorKind.OPAQUE) for i, size in enumerate(x.shape[2:])
        )
        self.factors = (
            Factor("n", x.shape[0], batch, combine),
            Factor("g", groups),
            Factor("c", floor_div(x.shape[1], groups), FactorKind.OPAQUE),
            *spatial,
        )
        self.weights: IndexMap = (("g", "c"),)
        self.statistics: IndexMap = (("n",), ("g",))
        self.whole: IndexMap = (("n",), ("g", "c"), *((factor.name,) for factor in spatial))


def _check_groups(op: Op, x: TensorType, groups: Dim) -> None:
    _check_input(op, x, 1)
    channels = x.shape[1]
    if isinstance(channels, int) and isinstance(groups, int) and (groups < 1 or channels % groups):
        raise op.error("bad-groups", f"cannot form {groups} groups of {channels} channels")


class GroupNorm(Op, name="group_norm"):
    """Normalise each group of channels; return also means and inverse deviations.

    %y, %m, %r = group_norm %x, %w, %b {groups = 2, eps = 1e-05} : f32[4, 6], f32[4, 2], f32[4, 2]
    """

    x: Value
    weight: Value | None
    bias: Value | None
    groups: Dim
    eps: float

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the result and of the statistics."""
        x = self.x.tensor_type
        _check_groups(self, x, self.groups)
        _check_vectors(self, x, (x.shape[1],), self.weight, self.bias)
        dtype = _statistics_dtype(x, self.weight, self.bias)
        statistics = TensorType(dtype, (x.shape[0], self.groups), x.device)
        return x.with_shape(x.shape), statistics, statistics

    def space(self) -> IterationSpace:
        """Return parallel samples and groups."""
        maps = _Channels(self.x, self.groups, FactorKind.PARALLEL)
        weights = _present((self.weight, maps.weights), (self.bias, maps.weights))
        results = (maps.whole, maps.statistics, maps.statistics)
        return IterationSpace(maps.factors, (maps.whole, *weights), results)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Count the groups of the part."""
        return _localized_groups(self, operands, factor, size)


class GroupNormBackward(Op, name="group_norm_backward"):
    """Compute the gradients of a group norm: of its input, weight and bias, as `mask` says.

    %a, %b, %c = group_norm_backward %g, %x, %m, %r, %w {groups = 2} : f32[4, 6], f32[6], f32[6]
    """

    grad: Value
    x: Value
    mean: Value
    rstd: Value
    weight: Value | None
    groups: Dim
    mask: tuple[bool, bool, bool] = (True, True, True)

    def infer(self) -> tuple[Type, ...]:
        """Return the types of the gradients."""
        x = self.x.tensor_type
        _check_groups(self, x, self.groups)
        _check_vectors(self, x, x.shape, self.grad)
        _check_vectors(self, x, (x.shape[1],), self.weight)
        _check_vectors(self, x, (x.shape[0], self.groups), self.mean, self.rstd)
        return _masked(self, self.mask, x, self.weight, (x.shape[1],))

    def space(self) -> IterationSpace:
        """Return samples that are summed for the weights, and parallel groups."""
        kind = FactorKind.REDUCTION if any(self.mask[1:]) else FactorKind.PARALLEL
        maps = _Channels(self.x, self.groups, kind)
        weights = _present((self.weight, maps.weights))
        operands = (maps.whole, maps.whole, maps.statistics, maps.statistics, *weights)
        results = _mask_maps((maps.whole, maps.weights, maps.weights), self.mask)
        return IterationSpace(maps.factors, operands, results, ((0,),))

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Count the groups of the part."""
        return _localized_groups(self, operands, factor, size)


def _localized_groups(
    op: GroupNorm | GroupNormBackward, operands: tuple[Value, ...], factor: str, size: Dim
) -> Op:
    """Put the operands in, which fit only once the number of groups is changed with them."""
    parts = iter(operands)
    changed: dict[str, Value | None] = {
        name: next(parts) if getattr(op, name) is not None else None for name in op.operand_fields
    }
    groups = size if factor == "g" else op.groups
    return dataclasses.replace(op, groups=groups, **changed)  # type: ignore[arg-type]  # by name


def _channel_maps(x: Value, kind: FactorKind) -> tuple[tuple[Factor, ...], IndexMap, IndexMap]:
    """Return the factors of `n c s..`, its index map, and that of one value for each channel."""
    combine = "sum" if kind is FactorKind.REDUCTION else ""
    factors = tuple(
        Factor(f"d{i}", size) if i == 1 else Factor(f"d{i}", size, kind, combine)
        for i, size in enumerate(x.shape)
    )
    return factors, tuple((factor.name,) for factor in factors), (("d1",),)


class BatchNorm(Op, name="batch_norm"):
    """Normalise each channel over batch and space, or by running statistics.

        %y, %m, %r = batch_norm %x, %w, none, none, none {momentum = 0.1, eps = 0.1} : f32[4], f32[4], f32[4]

    When `training`, the statistics are those of the batch: they are returned (means and inverse
    deviations), and running statistics, if given, are returned updated as results 3 and 4. When not
    training, the running ones are used and the second and third result are empty.
    """  # noqa: E501 - one line of IR

    x: Value
    weight: Value | None
    bias: Value | None
    running_mean: Value | None
    running_var: Value | None
    momentum: float
    eps: float
    training: bool = True

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the result and of the statistics."""
        x = self.x.tensor_type
        _check_input(self, x, 1)
        vectors = (self.weight, self.bias, self.running_mean, self.running_var)
        _check_vectors(self, x, (x.shape[1],), *vectors)
        if (self.running_mean is None) != (self.running_var is None):
            raise self.error("bad-statistics", "needs both running statistics or none")
        if self.running_mean is None and not self.training:
            raise self.error("bad-statistics", "needs running statistics when not training")
        size = x.shape[1] if self.training else 0
        statistics = TensorType(_statistics_dtype(x, *vectors), (size,), x.device)
        updated = (self.running_mean, self.running_var) if self.training else ()
        running = tuple(value.tensor_type for value in updated if value is not None)
        return x.with_shape(x.shape), statistics, statistics, *running

    def space(self) -> IterationSpace:
        """Return parallel channels; batch and space are whole when training."""
        kind = FactorKind.OPAQUE if self.training else FactorKind.PARALLEL
        factors, whole, channel = _channel_maps(self.x, kind)
        vectors = (self.weight, self.bias, self.running_mean, self.running_var)
        operands = (whole, *_present(*((value, channel) for value in vectors)))
        per_channel = channel if self.training else ((),)
        results = (whole, *(per_channel for _ in self.results[1:]))
        return IterationSpace(factors, operands, results)


class BatchNormBackward(Op, name="batch_norm_backward"):
    """Compute the gradients of a batch norm: of its input, weight and bias, as `mask` says.

        %a, %b, %c = batch_norm_backward %g, %x, %w, none, none, %m, %r {eps = 1e-05} : f32[4, 6], f32[6], f32[6]

    When `training`, `mean` and `rstd` are those of the batch, otherwise the running statistics
    count. A gradient that is not wanted is `none`.
    """  # noqa: E501 - one line of IR

    grad: Value
    x: Value
    weight: Value | None
    running_mean: Value | None
    running_var: Value | None
    mean: Value | None
    rstd: Value | None
    eps: float
    training: bool = True
    mask: tuple[bool, bool, bool] = (True, True, True)

    def infer(self) -> tuple[Type, ...]:
        """Return the types of the gradients."""
        x = self.x.tensor_type
        _check_input(self, x, 1)
        _check_vectors(self, x, x.shape, self.grad)
        channel = (x.shape[1],)
        _check_vectors(self, x, channel, self.weight, self.running_mean, self.running_var)
        used = (self.mean, self.rstd) if self.training else (self.running_mean, self.running_var)
        if None in used:
            raise self.error("bad-statistics", "lacks the statistics that it normalises by")
        if self.training:
            _check_vectors(self, x, channel, *used)
        vectors = (self.weight, self.running_mean, self.running_var, self.mean, self.rstd)
        dtype = _statistics_dtype(x, *vectors)
        if self.weight is not None:
            dtype = self.weight.tensor_type.dtype
        of_weights = TensorType(dtype, channel, x.device)
        wanted = (x.with_shape(x.shape), of_weights, of_weights)
        return tuple(t if w else _NONE for t, w in zip(wanted, self.mask, strict=True))

    def space(self) -> IterationSpace:
        """Return parallel channels; batch and space are summed, or whole for `x` when training."""
        kind = FactorKind.REDUCTION if any(self.mask[1:]) else FactorKind.PARALLEL
        if self.training and self.mask[0]:
            kind = FactorKind.OPAQUE
        factors, whole, channel = _channel_maps(self.x, kind)
        saved = channel if self.training else ((),)
        vectors = (
            (self.weight, channel), (self.running_mean, channel), (self.running_var, channel),
            (self.mean, saved), (self.rstd, saved),
        )  # fmt: skip
        results = _mask_maps((whole, channel, channel), self.mask)
        return IterationSpace(factors, (whole, whole, *_present(*vectors)), results, ((0,),))
