"""The named pipelines, one pass a line."""

from __future__ import annotations

from .canonicalize import Canonicalize
from .cse import MergeCommonSubexpressions
from .dce import RemoveDeadCode
from .fold_constants import FoldConstants
from .pipeline import NAMED_PIPELINES, Pipeline

DEFAULT = Pipeline(
    (
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        FoldConstants(),
        # Literals make rules apply, and equal ones merge.
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
    )
)

REDUCE_OVERHEAD = DEFAULT
MAX_AUTOTUNE = DEFAULT
DEBUG = DEFAULT

NAMED_PIPELINES |= {
    "default": DEFAULT,
    "reduce-overhead": REDUCE_OVERHEAD,
    "max-autotune": MAX_AUTOTUNE,
    "debug": DEBUG,
}
