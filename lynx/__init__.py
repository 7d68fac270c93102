"""Lynx: a whole-graph optimizing compiler for PyTorch."""

from lynx.ir.errors import CompileError, InternalError, LynxError, UsageError

from .explanation import Explanation, explain
from .settings import Settings

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Explanation",
    "InternalError",
    "LynxError",
    "Settings",
    "UsageError",
    "__version__",
    "explain",
]
