"""Convolutions of any number of spatial dimensions, and their gradients."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, floor_div, is_equal
from lynx.ir.space import Axis, FactorKind, IndexMap, IterationSpace, Window
from lynx.ir.types import TensorType

from .factors import Factors, require_equal, require_same_dtype, require_shape

Sizes = tuple[Dim, ...]


@dataclass(frozen=True)
class Geometry:
    """How a window slides over the spatial dimensions, with every attribute spelled out.

    `weight` is `[outputs, inputs of a group, *kernel]`, or `[inputs, outputs of a group, *kernel]`
    if transposed. `padding` is added before a dimension, `end_padding` after it.
    """

    weight: TensorType
    stride: Sizes
    padding: Sizes
    end_padding: Sizes
    dilation: Sizes
    transposed: bool
    output_padding: Sizes
    groups: int

    @staticmethod
    def of(op: Convolution | _ConvolutionBackward) -> Geometry:
        """Return the geometry of an op; an empty attribute stands for ones or zeros."""
        weight = op.weight.tensor_type
        ones, zeros = (1,) * (weight.rank - 2), (0,) * (weight.rank - 2)
        padding = op.padding or zeros
        end = op.end_padding if isinstance(op, Convolution) else ()
        return Geometry(
            weight,
            op.stride or ones,
            padding,
            end or padding,
            op.dilation or ones,
            op.transposed,
            op.output_padding or zeros,
            op.groups,
        )

    @property
    def output_channels(self) -> Dim:
        """The channels of the result."""
        first, second = self.weight.shape[:2]
        return second * self.groups if self.transposed else first

    @property
    def input_channels(self) -> Dim:
        """The channels of the input."""
        first, second = self.weight.shape[:2]
        return first if self.transposed else second * self.groups

    def check(self, op: Op, x: TensorType) -> None:
        """Check an input and the attributes against the weight."""
        spatial = x.rank - 2
        if spatial < 1 or self.weight.rank != x.rank:
            raise op.error("bad-rank", f"cannot convolve {x} with {self.weight}")
        if x.dtype is not self.weight.dtype:
            raise op.error("dtype-mismatch", f"mixes {x.dtype} and {self.weight.dtype}")
        for sizes in (
            self.stride, self.padding, self.end_padding, self.dilation, self.output_padding
        ):  # fmt: skip
            if len(sizes) != spatial:
                raise op.error("bad-attribute", f"expects {spatial} sizes, got {len(sizes)}")
        require_equal(op, x.shape[1], self.input_channels, "input channels")

    def output_shape(self, x: TensorType) -> Sizes:
        """Return the shape of the convolution of an input."""
        shape: list[Dim] = [x.shape[0], self.output_channels]
        for index, (size, kernel) in enumerate(
            zip(x.shape[2:], self.weight.shape[2:], strict=True)
        ):
            reach = self.dilation[index] * (kernel - 1)
            margin = self.padding[index] + self.end_padding[index]
            if self.transposed:
                extra = self.output_padding[index] + 1
                shape.append((size - 1) * self.stride[index] - margin + reach + extra)
            else:
                shape.append(floor_div(size + margin - reach - 1, self.stride[index]) + 1)
        return tuple(shape)

    def tiles(self, x: Value, index: int) -> bool:
        """Whether windows lie side by side along a spatial dimension, and cover it."""
        kernel, size = self.weight.shape[2 + index], x.shape[2 + index]
        is_plain = not (self.transposed or self.padding[index] or self.end_padding[index])
        is_adjacent = self.stride[index] == kernel and self.dilation[index] == 1
        return is_plain and is_adjacent and is_equal(floor_div(size, kernel) * kernel, size)

    def channels(
        self, factors: Factors, inner: FactorKind, outer: FactorKind
    ) -> tuple[Axis, Axis, IndexMap]:
        """Add factors for channels; return the axes of inputs, outputs and the weight's two."""
        group: tuple[str, ...] = ()
        if self.groups > 1:
            group = factors.parallel("g", self.groups)
        ci = factors.of(inner, "ci", floor_div(self.input_channels, self.groups))
        co = factors.of(outer, "co", floor_div(self.output_channels, self.groups))
        return group + ci, group + co, (group + ci, co) if self.transposed else (group + co, ci)


class Convolution(Op, name="convolution"):
    """Convolve a batch of images with filters, and add a bias to each output channel.

        %y = convolution %x, %weight, none {padding = [1, 1]} : f32[2, 8, 5, 5]

    `x` is `[batch, channels, *spatial]`; `weight` is `[outputs, inputs of a group, *kernel]`, or
    `[inputs, outputs of a group, *kernel]` if transposed. Channels fall into `groups` that do not
    mix. Empty attributes stand for ones (`stride`, `dilation`) or zeros; `padding` holds at both
    ends of a dimension unless `end_padding` says otherwise.
    """

    x: Value
    weight: Value
    bias: Value | None
    stride: tuple[Dim, ...] = ()
    padding: tuple[Dim, ...] = ()
    dilation: tuple[Dim, ...] = ()
    transposed: bool = False
    output_padding: tuple[Dim, ...] = ()
    groups: int = 1
    end_padding: tuple[Dim, ...] = ()

    def infer(self) -> TensorType:
        """Return `[batch, outputs, *spatial]`."""
        x, geometry = self.x.tensor_type, Geometry.of(self)
        geometry.check(self, x)
        if self.transposed and self.end_padding:
            raise self.error("bad-attribute", "cannot be transposed with padding at the end")
        if self.bias is not None:
            require_same_dtype(self, self.x, self.bias)
            require_shape(self, self.bias, (geometry.output_channels,), "a bias")
        return TensorType(x.dtype, geometry.output_shape(x), x.device)

    def space(self) -> IterationSpace:
        """Sum over input channels and window; a bias keeps these sums from being cut."""
        factors, geometry = Factors(), Geometry.of(self)
        kind = FactorKind.REDUCTION if self.bias is None else FactorKind.OPAQUE
        batch = factors.parallel("n", self.x.shape[0])
        inputs, outputs, channels = geometry.channels(factors, kind, FactorKind.PARALLEL)
        read: list[Axis] = [batch, inputs]
        window: list[Axis] = list(channels)
        written: list[Axis] = [batch, outputs]
        for index in range(geometry.weight.rank - 2):
            axes = self._spatial(factors, geometry, index, kind)
            for index_map, axis in zip((read, window, written), axes, strict=True):
                index_map.append(axis)
        operands: tuple[IndexMap, ...] = (tuple(read), tuple(window))
        if self.bias is None:
            return factors.space(operands, (tuple(written),), ((0,), (1,)))
        return factors.space((*operands, (outputs,)), (tuple(written),), ((0, 2), (1, 2)))

    def _spatial(
        self, factors: Factors, geometry: Geometry, index: int, kind: FactorKind
    ) -> tuple[Axis, Axis, Axis]:
        """Add the factors of a spatial dimension; return its axes in input, weight and result."""
        kernel, size = self.weight.shape[2 + index], self.results[0].shape[2 + index]
        position, offset = f"o{index}", f"k{index}"
        if self.transposed:
            rows = factors.opaque(f"i{index}", self.x.shape[2 + index])
            window = factors.opaque(offset, kernel)
            return rows, window, factors.opaque(position, size)
        stride, padding = geometry.stride[index], geometry.padding[index]
        written = factors.parallel(position, size)
        if kernel == 1 and stride == 1 and padding == 0 and geometry.end_padding[index] == 0:
            return written, (), written
        window = factors.of(kind, offset, kernel)
        length = self.x.shape[2 + index] if geometry.tiles(self.x, index) else 0
        read = Window(position, offset, stride, geometry.dilation[index], padding, length)
        return read, window, written

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Turn rows that lie outside of the input into padding, when cut along a window."""
        if factor == "g":
            x, weight, *rest = operands
            bias = rest[0] if rest else None
            groups = _known(self, size)
            return dataclasses.replace(self, x=x, weight=weight, bias=bias, groups=groups)
        local = super().localized(operands, factor, start, size)
        assert isinstance(local, Convolution)
        prefix, place = factor[0], factor[1:]
        if self.transposed or prefix not in "ok" or not place.isdigit():
            return local
        index, geometry = int(place), Geometry.of(self)
        stride, dilation = geometry.stride[index], geometry.dilation[index]
        if prefix == "o":
            positions, offsets, first = size, self.weight.shape[2 + index], start * stride
        else:
            positions, offsets, first = self.results[0].shape[2 + index], size, start * dilation
        reach = _known(self, (positions - 1) * stride + (offsets - 1) * dilation + 1)
        given = _known(self, operands[0].shape[2 + index])
        before = min(max(_known(self, geometry.padding[index] - first), 0), reach - given)
        starts, ends = list(geometry.padding), list(geometry.end_padding)
        starts[index], ends[index] = before, reach - given - before
        return dataclasses.replace(local, padding=tuple(starts), end_padding=tuple(ends))


class _ConvolutionBackward(Op):
    """Base of the gradients of a convolution that has the same padding at both ends."""

    grad: Value
    x: Value
    weight: Value
    stride: tuple[Dim, ...] = ()
    padding: tuple[Dim, ...] = ()
    dilation: tuple[Dim, ...] = ()
    transposed: bool = False
    output_padding: tuple[Dim, ...] = ()
    groups: int = 1

    def _check(self, geometry: Geometry) -> None:
        x = self.x.tensor_type
        require_same_dtype(self, self.grad, self.x)
        geometry.check(self, x)
        require_shape(self, self.grad, geometry.output_shape(x), "an incoming gradient")

    def _spatial_axes(
        self, factors: Factors, kind: FactorKind
    ) -> tuple[IndexMap, IndexMap, IndexMap]:
        """Add factors for spatial dimensions; return the axes of gradient, input and weight.

        Positions of windows that lie side by side are of a kind; all else is needed whole.
        """
        geometry = Geometry.of(self)
        maps: tuple[list[Axis], list[Axis], list[Axis]] = ([], [], [])
        for index, (outputs, size, kernel) in enumerate(
            zip(self.grad.shape[2:], self.x.shape[2:], self.weight.shape[2:], strict=True)
        ):
            is_tiled = geometry.tiles(self.x, index)
            position = factors.of(kind if is_tiled else FactorKind.OPAQUE, f"o{index}", outputs)
            offset = factors.opaque(f"k{index}", kernel)
            row: Axis = (
                Window(position[0], offset[0], kernel, size=size)
                if is_tiled
                else factors.opaque(f"i{index}", size)
            )
            for index_map, axis in zip(maps, (position, row, offset), strict=True):
                index_map.append(axis)
        grad, x, weight = maps
        return tuple(grad), tuple(x), tuple(weight)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Leave as many groups as the part has."""
        if factor != "g":
            return super().localized(operands, factor, start, size)
        grad, x, weight = operands
        groups = _known(self, size)
        return dataclasses.replace(self, grad=grad, x=x, weight=weight, groups=groups)


class ConvolutionBackwardInput(_ConvolutionBackward, name="convolution_backward_input"):
    """Return the gradient of a convolution's input.

    %g = convolution_backward_input %grad, %x, %weight {stride = [2]} : f32[2, 8, 5]
    """

    def infer(self) -> TensorType:
        """Return the type of the input."""
        self._check(Geometry.of(self))
        return self.x.tensor_type

    def space(self) -> IterationSpace:
        """Sum over output channels; windows that lie side by side are apart."""
        factors = Factors()
        batch = factors.parallel("n", self.x.shape[0])
        inputs, outputs, channels = Geometry.of(self).channels(
            factors, FactorKind.PARALLEL, FactorKind.REDUCTION
        )
        grad, x, window = self._spatial_axes(factors, FactorKind.PARALLEL)
        written: IndexMap = (batch, inputs, *x)
        operands = ((batch, outputs, *grad), written, channels + window)
        return factors.space(operands, (written,), ((0,), (2,)))


class ConvolutionBackwardWeight(_ConvolutionBackward, name="convolution_backward_weight"):
    """Return the gradients of a convolution's weight, of its bias, or of both in this order.

    %g = convolution_backward_weight %grad, %x, %weight {stride = [2]} : f32[4, 8, 3]
    """

    of_weight: bool = True
    of_bias: bool = False

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the weight and of the bias, as asked for."""
        geometry = Geometry.of(self)
        self._check(geometry)
        weight = geometry.weight
        bias = TensorType(weight.dtype, (geometry.output_channels,), weight.device)
        return ((weight,) if self.of_weight else ()) + ((bias,) if self.of_bias else ())

    def space(self) -> IterationSpace:
        """Sum over the batch, and over windows that lie side by side."""
        factors = Factors()
        batch = factors.sum("n", self.x.shape[0])
        inputs, outputs, channels = Geometry.of(self).channels(
            factors, FactorKind.PARALLEL, FactorKind.PARALLEL
        )
        grad, x, window = self._spatial_axes(factors, FactorKind.REDUCTION)
        written = channels + window
        results = ((written,) if self.of_weight else ()) + (((outputs,),) if self.of_bias else ())
        operands = ((batch, outputs, *grad), (batch, inputs, *x), written)
        return factors.space(operands, results, ((0,),) if self.of_bias else ((0,), (1,)))


def _known(op: Op, size: Dim) -> int:
    if not isinstance(size, int):
        raise op.error("no-local-form", f"needs a known size, got {size}")
    return size
