"""From FX graphs to Lynx graphs: one import rule for each torch operator."""

from . import (
    activation,
    attention,
    constraint,
    convolution,
    elementwise,
    factory,
    indexing,
    layout,
    layout_slicing,
    linear,
    loss,
    loss_linear,
    normalization,
    random,
    reduction,
)
from .graph import import_graph
from .registry import RULES, Context, Decline, imports

RULE_MODULES = (
    activation,
    attention,
    constraint,
    convolution,
    elementwise,
    factory,
    indexing,
    layout,
    layout_slicing,
    linear,
    loss,
    loss_linear,
    normalization,
    random,
    reduction,
)
"""Importing them fills the table of rules."""

__all__ = ["RULES", "RULE_MODULES", "Context", "Decline", "import_graph", "imports"]
