"""Mathematical functions of one operand."""

from __future__ import annotations

from typing import ClassVar

from .elementwise import Unary


class Absolute(Unary, name="abs"):
    """Take the absolute value.

    %y = abs %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Negate(Unary, name="neg"):
    """Change the sign.

    %y = neg %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "ifc"
    linear: ClassVar[tuple[tuple[str, ...], ...]] = (("x",),)


class Sign(Unary, name="sign"):
    """Return -1, 0 or 1 by the sign; NaN gives 0.

    %y = sign %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"


class Sgn(Unary, name="sgn"):
    """Return the direction of a number: `x / |x|`, and 0 for 0.

    %y = sgn %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "bifc"


class Floor(Unary, name="floor"):
    """Round down to an integer.

    %y = floor %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"


class Ceil(Unary, name="ceil"):
    """Round up to an integer.

    %y = ceil %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"


class Truncate(Unary, name="trunc"):
    """Round towards zero to an integer.

    %y = trunc %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"


class Fraction(Unary, name="frac"):
    """Return what `trunc` takes away.

    %y = frac %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Reciprocal(Unary, name="reciprocal"):
    """Divide one by the operand.

    %y = reciprocal %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Square(Unary, name="square"):
    """Multiply by itself.

    %y = square %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "ifc"


class Exp(Unary, name="exp"):
    """Raise e to the operand.

    %y = exp %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Exp2(Unary, name="exp2"):
    """Raise 2 to the operand.

    %y = exp2 %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Expm1(Unary, name="expm1"):
    """Return `exp(x) - 1` without cancellation.

    %y = expm1 %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Log(Unary, name="log"):
    """Take the natural logarithm.

    %y = log %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Log2(Unary, name="log2"):
    """Take the logarithm to base 2.

    %y = log2 %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Log10(Unary, name="log10"):
    """Take the logarithm to base 10.

    %y = log10 %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Log1p(Unary, name="log1p"):
    """Return `log(1 + x)` without cancellation.

    %y = log1p %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Sqrt(Unary, name="sqrt"):
    """Take the square root.

    %y = sqrt %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Rsqrt(Unary, name="rsqrt"):
    """Return one over the square root.

    %y = rsqrt %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Sin(Unary, name="sin"):
    """Take the sine of an angle in radians.

    %y = sin %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Cos(Unary, name="cos"):
    """Take the cosine of an angle in radians.

    %y = cos %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Tan(Unary, name="tan"):
    """Take the tangent of an angle in radians.

    %y = tan %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Asin(Unary, name="asin"):
    """Take the inverse sine.

    %y = asin %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Acos(Unary, name="acos"):
    """Take the inverse cosine.

    %y = acos %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Atan(Unary, name="atan"):
    """Take the inverse tangent.

    %y = atan %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Sinh(Unary, name="sinh"):
    """Take the hyperbolic sine.

    %y = sinh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Cosh(Unary, name="cosh"):
    """Take the hyperbolic cosine.

    %y = cosh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Tanh(Unary, name="tanh"):
    """Take the hyperbolic tangent.

    %y = tanh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Asinh(Unary, name="asinh"):
    """Take the inverse hyperbolic sine.

    %y = asinh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Acosh(Unary, name="acosh"):
    """Take the inverse hyperbolic cosine.

    %y = acosh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Atanh(Unary, name="atanh"):
    """Take the inverse hyperbolic tangent.

    %y = atanh %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Sigmoid(Unary, name="sigmoid"):
    """Return `1 / (1 + exp(-x))`.

    %y = sigmoid %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Erf(Unary, name="erf"):
    """Return the error function.

    %y = erf %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Erfc(Unary, name="erfc"):
    """Return one minus the error function.

    %y = erfc %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Erfinv(Unary, name="erfinv"):
    """Return the inverse of the error function.

    %y = erfinv %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class LogGamma(Unary, name="lgamma"):
    """Return the logarithm of the absolute value of the gamma function.

    %y = lgamma %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class Digamma(Unary, name="digamma"):
    """Return the derivative of `lgamma`.

    %y = digamma %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"


class NanToNum(Unary, name="nan_to_num"):
    """Replace NaN and infinities by numbers; none for an infinity is the greatest finite number.

    %y = nan_to_num %x {nan = 0.0} : f32[4, 8]
    """

    accepts: ClassVar[str] = "bif"
    nan: float = 0.0
    posinf: float | None = None
    neginf: float | None = None


class Round(Unary, name="round"):
    """Round half to even, to a number of decimals (a negative one counts from the point left).

    %y = round %x {decimals = 2} : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"
    decimals: int = 0
