"""What values between the two products of attention are, as functions of the scores.

A walk over the Lynx graph of what lies between the products finds out, for each value that depends
on them, which of these it is:

- `Raw`: a function of single scores and of operands, as masks and biases give;
- `Row`: something of a whole row, such as its maximum, that may be subtracted;
- `Weight`: exponentials of scores, perhaps with masks multiplied in, perhaps normalized;
- `Total`: the sum of such over the keys, `LogTotal` its logarithm, `LogWeight` the difference of
  scores and that;
- `Empty`: whether scores are negative infinity, of an element or of a whole row.

What a softmax is thus does not depend on how it is written. Row values that are subtracted from
scores are left out, since softmax does not change by them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from lynx.ir.core import Value


@dataclass(frozen=True)
class Raw:
    """A function of single scores, `value`; a last column may hold a sink.

    `is_shifted` says that a row value was subtracted, which `value` leaves out.
    """

    value: Value
    sink: Any = None
    sink_dim: int = -1
    sink_first: bool = False
    is_shifted: bool = False


@dataclass(frozen=True)
class Row:
    """Something of each row of scores; `logit` is what it is the negative shift of, if anything."""

    logit: Any = None
    is_exponential: bool = False


@dataclass(frozen=True)
class Weight:
    """Exponentials of scores, along the axis `axis` where that is known.

    `raw` are the scores with all masks that the exponentials were multiplied by before they were
    normalized, `masked` those with later ones too. `origin` is where they were normalized; from
    there on they were multiplied by `factors`, and set to zero where one of `masks` is not as it
    says. `hides_nan` says that rows of NaN, whatever they come of, were set to zero, `is_moved`
    that their dimensions are no longer those of `raw`, `is_uneven` that factors differ among the
    keys in ways that `masked` does not have.
    """

    raw: Raw
    masked: Raw
    value: Value
    axis: int = -1
    origin: Value | None = None
    factors: tuple[Any, ...] = ()
    masks: tuple[tuple[Value, bool], ...] = ()
    zero_empty: bool = False
    hides_nan: bool = False
    sink: Any = None
    is_moved: bool = False
    is_uneven: bool = False

    @property
    def is_normalized(self) -> bool:
        """Whether rows sum to one."""
        return self.origin is not None

    def moved(self, value: Value) -> Weight:
        """Return the same for what holds the same elements in other dimensions."""
        return replace(self, value=value, is_moved=True)


@dataclass(frozen=True)
class Total:
    """The sum of weights over the keys, and perhaps of a sink."""

    of: Weight
    axis: int
    sink: Any = None
    zero_empty: bool = False
    is_inverse: bool = False


@dataclass(frozen=True)
class LogTotal:
    """The logarithm of a sum of exponentials of scores."""

    raw: Raw
    axis: int
    sink: Any = None


@dataclass(frozen=True)
class LogWeight:
    """Scores from which the logarithm of their total is subtracted."""

    raw: Raw
    axis: int
    sink: Any = None


@dataclass(frozen=True)
class Empty:
    """Whether scores are negative infinity (or are not, if inverted), of all keys if `is_row`.

    With `is_nan`, whether weights are NaN, as they are of such rows and of others.
    """

    raw: Raw
    is_row: bool = False
    is_inverted: bool = False
    is_nan: bool = False


Fact: TypeAlias = Raw | Row | Weight | Total | LogTotal | LogWeight | Empty
