"""The reference back end: the meaning of every op in plain torch."""

from . import (
    aten,
    elementwise,
    factory,
    layout,
    normalization,
    random,
    reduction,
)
from .evaluate import bind_symbols, evaluate, run
from .registry import call_of, covered, means

RULE_MODULES = (
    aten,
    elementwise,
    factory,
    layout,
    normalization,
    random,
    reduction,
)
"""Importing them fills the table of rules."""

__all__ = [
    "RULE_MODULES",
    "bind_symbols",
    "call_of",
    "covered",
    "evaluate",
    "means",
    "run",
]
