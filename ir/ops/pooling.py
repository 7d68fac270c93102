"""Pooling over two or three spatial dimensions, with gradients."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, ceil_div, floor_div, is_equal
from lynx.ir.space import IndexMap, IterationSpace, Window
from lynx.ir.types import DType, TensorType

from .factors import Factors, require_same_dtype, require_shape


@dataclass(frozen=True)
class _Windows:
    """Windows of fixed size that slide over the last dimensions of a tensor."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    def pooled_shape(self, op: Op, x: TensorType) -> tuple[Dim, ...]:
        """Return the shape with one element for each window; there are one or two other axes."""
        count = len(self.kernel)
        _require_planes(op, x, count)
        for sizes in (self.stride, self.padding, self.dilation):
            if len(sizes) not in (0, count):
                raise op.error("bad-attribute", f"expects {count} sizes, got {len(sizes)}")
        plane = [self._size(op, size, index) for index, size in enumerate(x.shape[-count:])]
        return (*x.shape[:-count], *plane)

    def _size(self, op: Op, size: Dim, index: int) -> Dim:
        stride = self.stride[index] if self.stride else self.kernel[index]
        padding = self.padding[index] if self.padding else 0
        dilation = self.dilation[index] if self.dilation else 1
        span = size + 2 * padding - dilation * (self.kernel[index] - 1) - 1
        if not self.ceil_mode:
            return floor_div(span, stride) + 1
        count = ceil_div(span, stride) + 1
        if padding + stride <= dilation * (self.kernel[index] - 1) + 1:
            return count
        if not isinstance(size, int) or not isinstance(count, int):
            raise op.error("symbolic-size", f"cannot round up the number of windows in {size}")
        # The last window must start inside the input or the padding before it.
        return count - 1 if (count - 1) * stride >= size + padding else count


class MaxPool(Op, name="max_pool"):
    """Return the maximum of each window, and its place in the plane, counted row by row.

        %v, %i = max_pool %x {kernel = [2, 2]} : f32[2, 3, 4, 4], i64[2, 3, 4, 4]

    The last dimensions, as many as `kernel` has, make a plane. An empty `stride` stands for the
    kernel's size, an empty `padding` for zeros, an empty `dilation` for ones.
    """

    x: Value
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    ceil_mode: bool = False

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the maxima and of their places."""
        x = self.x.tensor_type
        windows = _Windows(self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)
        values = x.with_shape(windows.pooled_shape(self, x))
        return values, values.with_dtype(DType.I64)

    def space(self) -> IterationSpace:
        """Keep planes whole, since places count within them."""
        factors = Factors()
        x, y = _planes(factors, (self.x, self.results[0]), len(self.kernel))
        return factors.space((x,), (y, y))


class MaxPoolBackward(Op, name="max_pool_backward"):
    """Add each gradient to the place in the plane that it came from.

    %g = max_pool_backward %grad, %x, %places {kernel = [2, 2]} : f32[2, 3, 8, 8]
    """

    grad: Value
    x: Value
    places: Value
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    ceil_mode: bool = False

    def infer(self) -> TensorType:
        """Return the type of the input."""
        x = self.x.tensor_type
        windows = _Windows(self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)
        require_same_dtype(self, self.x, self.grad)
        shape = windows.pooled_shape(self, x)
        require_shape(self, self.grad, shape, "an incoming gradient")
        require_shape(self, self.places, shape, "places")
        return x

    def space(self) -> IterationSpace:
        """Keep planes whole, since places count within them."""
        factors = Factors()
        x, y = _planes(factors, (self.x, self.grad), len(self.kernel))
        return factors.space((y, x, y), (x,), ((0,),))


class AveragePool(Op, name="average_pool"):
    """Return the mean of each window.

        %y = average_pool %x {kernel = [2, 2]} : f32[2, 3, 4, 4]

    Windows are given as for `max_pool`. `counts_padding` says whether zeros of the padding count;
    `divisor` replaces the count.
    """

    x: Value
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    ceil_mode: bool = False
    counts_padding: bool = True
    divisor: int | None = None

    def infer(self) -> TensorType:
        """Return the type with smaller planes."""
        x = self.x.tensor_type
        windows = _Windows(self.kernel, self.stride, self.padding, (), self.ceil_mode)
        return x.with_shape(windows.pooled_shape(self, x))

    def space(self) -> IterationSpace:
        """Slide windows in parallel where there is no padding; keep planes whole otherwise."""
        factors = Factors()
        count = len(self.kernel)
        if self.ceil_mode or any(self.padding):
            x, y = _planes(factors, (self.x, self.results[0]), count)
            return factors.space((x,), (y,), ((0,),))
        axes = _positions(factors, self.results[0])
        read = _windows(factors, axes, self, self.x)
        return factors.space((read,), (axes,), ((0,),))


class AveragePoolBackward(Op, name="average_pool_backward"):
    """Spread each gradient evenly over its window.

    %g = average_pool_backward %grad, %x {kernel = [2, 2]} : f32[2, 3, 8, 8]
    """

    grad: Value
    x: Value
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    ceil_mode: bool = False
    counts_padding: bool = True
    divisor: int | None = None

    def infer(self) -> TensorType:
        """Return the type of the input."""
        x = self.x.tensor_type
        windows = _Windows(self.kernel, self.stride, self.padding, (), self.ceil_mode)
        require_same_dtype(self, self.x, self.grad)
        require_shape(self, self.grad, windows.pooled_shape(self, x), "an incoming gradient")
        return x

    def space(self) -> IterationSpace:
        """Spread in parallel over windows that tile the planes; keep other planes whole."""
        factors = Factors()
        count = len(self.kernel)
        if self.tiles_planes():
            axes = _positions(factors, self.grad)
            written = _windows(factors, axes, self, self.x)
            return factors.space((axes, written), (written,), ((0,),))
        x, y = _planes(factors, (self.x, self.grad), count)
        return factors.space((y, x), (x,), ((0,),))

    def tiles_planes(self) -> bool:
        """Whether each element of a plane is in just one window."""
        count = len(self.kernel)
        sizes = zip(self.x.shape[-count:], self.grad.shape[-count:], self.kernel, strict=True)
        covered = all(is_equal(size, windows * kernel) for size, windows, kernel in sizes)
        return covered and not any(self.padding) and self.stride in ((), self.kernel)


class AdaptiveAveragePool(Op, name="adaptive_average_pool"):
    """Average over windows that divide each plane into a grid of the given size.

    %y = adaptive_average_pool %x {size = [2, 2]} : f32[2, 3, 2, 2]
    """

    x: Value
    size: tuple[Dim, ...]

    def infer(self) -> TensorType:
        """Return the type with planes of the given size."""
        x, count = self.x.tensor_type, len(self.size)
        _require_planes(self, x, count)
        return x.with_shape((*x.shape[:-count], *self.size))

    def space(self) -> IterationSpace:
        """Keep planes whole."""
        factors = Factors()
        x, y = _planes(factors, (self.x, self.results[0]), len(self.size))
        return factors.space((x,), (y,), ((0,),))


class AdaptiveAveragePoolBackward(Op, name="adaptive_average_pool_backward"):
    """Spread each gradient evenly over its window; the last `count` dimensions make a plane.

    %g = adaptive_average_pool_backward %grad, %x {count = 2} : f32[2, 3, 8, 8]
    """

    grad: Value
    x: Value
    count: int

    def infer(self) -> TensorType:
        """Return the type of the input."""
        x, count = self.x.tensor_type, self.count
        _require_planes(self, x, count)
        require_same_dtype(self, self.x, self.grad)
        shape = (*x.shape[:-count], *self.grad.shape[-count:])
        require_shape(self, self.grad, shape, "an incoming gradient")
        return x

    def space(self) -> IterationSpace:
        """Keep planes whole."""
        factors = Factors()
        x, y = _planes(factors, (self.x, self.grad), self.count)
        return factors.space((y, x), (x,), ((0,),))


def _require_planes(op: Op, x: TensorType, count: int) -> None:
    """Check that there are one or two dimensions before the last `count`."""
    if count < 1 or x.rank not in (count + 1, count + 2):
        raise op.error("bad-rank", f"cannot pool {x} over {count} dimensions")


def _positions(factors: Factors, pooled: Value) -> IndexMap:
    """Return the axes of what was pooled, all parallel."""
    return tuple(factors.parallel(f"d{index}", size) for index, size in enumerate(pooled.shape))


def _windows(
    factors: Factors, axes: IndexMap, op: AveragePool | AveragePoolBackward, x: Value
) -> IndexMap:
    """Return the axes of the input of pooling without padding, given those of the result."""
    count = len(op.kernel)
    read: IndexMap = axes[:-count]
    sizes = zip(axes[-count:], op.kernel, op.stride or op.kernel, x.shape[-count:], strict=True)
    for axis, kernel, stride, size in sizes:
        assert isinstance(axis, tuple)
        (offset,) = factors.opaque(f"k{axis[0][1:]}", kernel)
        read += (Window(axis[0], offset, stride, size=size),)
    return read


def _planes(factors: Factors, values: tuple[Value, ...], count: int) -> list[IndexMap]:
    """Return index maps that share parallel leading factors and have opaque planes."""
    leading: IndexMap = tuple(
        factors.parallel(f"d{index}", size) for index, size in enumerate(values[0].shape[:-count])
    )
    maps = []
    for prefix, value in zip("xy", values, strict=True):
        plane = tuple(
            factors.opaque(f"{prefix}{index}", size)
            for index, size in enumerate(value.shape[-count:])
        )
        maps.append(leading + plane)
    return maps
