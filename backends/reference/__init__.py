"""The reference back end: the meaning of every op in plain torch."""

from . import (
    aten,
    attention,
    attention_pieces,
    communication,
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
    pieces,
    random,
    reduction,
    schedule,
    windows,
)
from .communication import Communicator, communicators
from .evaluate import bind_symbols, evaluate, run
from .kernels import run_kernel
from .mesh import evaluate_on_mesh, run_on_mesh
from .registry import call_of, covered, means

RULE_MODULES = (
    aten,
    attention,
    attention_pieces,
    communication,
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
    pieces,
    random,
    reduction,
    schedule,
    windows,
)
"""Importing them fills the table of rules."""

__all__ = [
    "RULE_MODULES",
    "Communicator",
    "bind_symbols",
    "call_of",
    "communicators",
    "covered",
    "evaluate",
    "evaluate_on_mesh",
    "means",
    "run",
    "run_kernel",
    "run_on_mesh",
]
