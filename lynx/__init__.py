"""Lynx: a whole-graph optimizing compiler for PyTorch."""

from lynx.ir.errors import CompileError, InternalError, LynxError, UsageError

from .distribution.parallelize import parallelize
from .distribution.plans import Plan
from .distribution.rules import sharding_rule
from .explanation import Explanation, explain
from .operators import constrain
from .settings import Settings

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Explanation",
    "InternalError",
    "LynxError",
    "Plan",
    "Settings",
    "UsageError",
    "__version__",
    "constrain",
    "explain",
    "parallelize",
    "sharding_rule",
]
