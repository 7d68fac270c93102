"""Arithmetic of two and more operands, selection, and conversions."""

from __future__ import annotations

from typing import ClassVar

from lynx.ir.core import Operand, Value
from lynx.ir.types import DType, TensorType

from .elementwise import Binary, Elementwise, Unary

Linear = tuple[tuple[str, ...], ...]


class Add(Binary, name="add"):
    """Add `alpha` times `y` to `x`; for bool, whether either holds.

        %z = add %x, %y : f32[4, 8]

    `alpha` is a whole number where the operands are integers.
    """

    linear: ClassVar[Linear] = (("x", "y"),)
    alpha: float = 1.0


class Subtract(Binary, name="sub"):
    """Subtract `alpha` times `y` from `x`.

    %z = sub %x, 1.5 {alpha = 2.0} : f32[4, 8]
    """

    accepts: ClassVar[str] = "ifc"
    linear: ClassVar[Linear] = (("x", "y"),)
    alpha: float = 1.0


class Multiply(Binary, name="mul"):
    """Multiply; for bool, whether both hold.

    %z = mul %x, 0.125 : f32[4, 8]
    """

    linear: ClassVar[Linear] = (("x",), ("y",))


class Divide(Binary, name="div"):
    """Divide floating or complex numbers.

    %z = div %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    linear: ClassVar[Linear] = (("x",),)


class DivideRounded(Binary, name="div_rounded"):
    """Divide and round to an integer: `floor` or `trunc` (towards zero).

    %z = div_rounded %x, 3 {rounding = "floor"} : i64[4]
    """

    accepts: ClassVar[str] = "if"
    rounding: str = "floor"

    def infer(self) -> TensorType:
        """Check the way of rounding."""
        if self.rounding not in ("floor", "trunc"):
            raise self.error("bad-rounding", f"rounds by floor or trunc, not {self.rounding}")
        return super().infer()


class Remainder(Binary, name="remainder"):
    """Return the remainder that has the sign of `y`, as Python's `%`.

    %z = remainder %x, 3 : i64[4]
    """

    accepts: ClassVar[str] = "if"


class Fmod(Binary, name="fmod"):
    """Return the remainder that has the sign of `x`, as C's `fmod`.

    %z = fmod %x, %y : f32[4]
    """

    accepts: ClassVar[str] = "if"


class Power(Binary, name="pow"):
    """Raise `x` to the power `y`.

    %z = pow %x, 2 : f32[4, 8]
    """


class Maximum(Binary, name="maximum"):
    """Return the greater element; NaN if either is.

    %z = maximum %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Minimum(Binary, name="minimum"):
    """Return the smaller element; NaN if either is.

    %z = minimum %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Fmax(Binary, name="fmax"):
    """Return the greater element; the other if one is NaN.

    %z = fmax %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Fmin(Binary, name="fmin"):
    """Return the smaller element; the other if one is NaN.

    %z = fmin %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Atan2(Binary, name="atan2"):
    """Return the angle of the point `(y, x)`, where `x` is the first operand.

    %z = atan2 %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Hypot(Binary, name="hypot"):
    """Return the length of the vector `(x, y)`.

    %z = hypot %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"


class Copysign(Binary, name="copysign"):
    """Give `x` the sign of `y`.

    %z = copysign %x, -0.0 : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Nextafter(Binary, name="nextafter"):
    """Return the next number after `x` in the direction of `y`.

    %z = nextafter %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class LogAddExp(Binary, name="logaddexp"):
    """Return `log(exp(x) + exp(y))` without overflow.

    %z = logaddexp %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Xlogy(Binary, name="xlogy"):
    """Return `x * log(y)`, and 0 where `x` is 0 and `y` is not NaN.

    %z = xlogy %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"
    linear: ClassVar[Linear] = (("x",),)


class Heaviside(Binary, name="heaviside"):
    """Return 0 for negative `x`, 1 for positive, and `y` for zero.

    %z = heaviside %x, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Where(Elementwise, name="where"):
    """Choose `x` where the condition holds and `y` elsewhere.

    %z = where %condition, %x, 0.0 : f32[4, 8]
    """

    linear: ClassVar[Linear] = (("x", "y"),)
    condition: Value
    x: Operand
    y: Operand

    def common_dtype(self) -> DType:
        """Return the type of the two that are chosen from; the condition is of type bool."""
        if self.condition.tensor_type.dtype is not DType.BOOL:
            raise self.error("bad-dtype", f"expects a bool condition, got {self.condition.type}")
        return self._agree((self.x, self.y))

    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """Return both sides jointly, or one of them where the other is the number zero."""
        positions = self.positions()
        sides = tuple(positions[name] for name in ("x", "y") if name in positions)
        numbers = [n for n in (self.x, self.y) if not isinstance(n, Value)]
        return (sides,) if all(number == 0 for number in numbers) else ()


class Clamp(Elementwise, name="clamp"):
    """Limit `x` to at least `min` and then at most `max`; NaN stays.

        %y = clamp %x, 0.0, none : f32[4, 8]

    Each limit is a number, a tensor or none; the two are not a number and a tensor.
    """

    accepts: ClassVar[str] = "bif"
    x: Value
    min: Operand | None
    max: Operand | None

    def infer(self) -> TensorType:
        """Check that there is a limit, and that limits are of one kind."""
        limits = [limit for limit in (self.min, self.max) if limit is not None]
        tensors = [isinstance(v, Value) and isinstance(v.type, TensorType) for v in limits]
        if not limits or any(tensors) != all(tensors):
            raise self.error("bad-limits", "expects one or two limits, all numbers or all tensors")
        return super().infer()


class Addcmul(Elementwise, name="addcmul"):
    """Return `x + value * a * b`.

    %y = addcmul %x, %a, %b {value = 0.5} : f32[4, 8]
    """

    accepts: ClassVar[str] = "ifc"
    linear: ClassVar[Linear] = (("x", "a"), ("x", "b"))
    x: Value
    a: Value
    b: Value
    value: float = 1.0


class Addcdiv(Elementwise, name="addcdiv"):
    """Return `x + value * a / b`.

    %y = addcdiv %x, %a, %b {value = -0.01} : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    linear: ClassVar[Linear] = (("x", "a"),)
    x: Value
    a: Value
    b: Value
    value: float = 1.0


class Lerp(Elementwise, name="lerp"):
    """Go from `x` towards `end` by the share `weight`: `x + weight * (end - x)`.

    %y = lerp %x, %end, 0.1 : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    linear: ClassVar[Linear] = (("x", "end"),)
    x: Value
    end: Value
    weight: Operand


class Cast(Unary, name="cast"):
    """Convert to another element type, as `Tensor.to` does.

    %y = cast %x {dtype = bf16} : bf16[4, 8]
    """

    dtype: DType

    def infer(self) -> TensorType:
        """Return the type with the new element type."""
        return super().infer().with_dtype(self.dtype)

    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """Only a wider floating type takes sums over exactly."""
        before = self.x.tensor_type.dtype
        widens = before.is_floating and self.dtype.is_floating
        return ((0,),) if widens and before.itemsize < self.dtype.itemsize else ()


class Copy(Unary, name="copy"):
    """Return the same values in other memory, laid out as torch would for a memory format.

    %y = copy %x {memory_format = "channels_last"} : f32[2, 3, 4, 4]
    """

    linear: ClassVar[Linear] = (("x",),)
    memory_format: str = "preserve_format"
