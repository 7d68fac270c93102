"""The reference back end: the meaning of every op in plain torch."""

from . import (
    aten,
    attention,
    convolution,
    elementwise,
    factory,
    fusion,
    indexing,
    layout,
    linear,
    loss,
    loss_linear,
    normalization,
    random,
    reduction,
    windows,
)
from .evaluate import bind_symbols, evaluate, run
from .kernels import run_kernel
from .registry import call_of, covered, means

RULE_MODULES = (
    aten,
    attention,
    convolution,
    elementwise,
    factory,
    fusion,
    indexing,
    layout,
    linear,
    loss,
    loss_linear,
    normalization,
    random,
    reduction,
    windows,
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
    "run_kernel",
]
