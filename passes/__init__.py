"""Passes: what turns one program into a better one."""

from __future__ import annotations

from .base import (
    PASSES,
    ConstantInfo,
    Pass,
    PassContext,
    Remark,
    Requirement,
    Violation,
    register_pass,
)
from .decompose import COMPOSITE, NO_COMPOSITE_OPS
from .expand_products import ExpandProducts
from .fuse import Fuse
from .layout_convolutions import LayoutConvolutions
from .modules import count_ops, print_module, read_module, verify_module
from .observers import Diff, Dump, Observer, Reproducer, Timer, Timing
from .pipeline import NAMED_PIPELINES, Pipeline, check_requirements, parse_pipeline
from .pipelines import DEBUG, DEFAULT, MAX_AUTOTUNE, REDUCE_OVERHEAD
from .requirements import IS_GRAPH, IS_PROGRAM
from .rewrite import NoMatch, Rewritten, Rule, rewrite, rule
from .target import Target
from .widen_products import WidenProducts

__all__ = [
    "COMPOSITE",
    "DEBUG",
    "DEFAULT",
    "IS_GRAPH",
    "IS_PROGRAM",
    "MAX_AUTOTUNE",
    "NAMED_PIPELINES",
    "NO_COMPOSITE_OPS",
    "PASSES",
    "REDUCE_OVERHEAD",
    "ConstantInfo",
    "Diff",
    "Dump",
    "ExpandProducts",
    "Fuse",
    "LayoutConvolutions",
    "NoMatch",
    "Observer",
    "Pass",
    "PassContext",
    "Pipeline",
    "Remark",
    "Reproducer",
    "Requirement",
    "Rewritten",
    "Rule",
    "Target",
    "Timer",
    "Timing",
    "Violation",
    "WidenProducts",
    "check_requirements",
    "count_ops",
    "parse_pipeline",
    "print_module",
    "read_module",
    "register_pass",
    "rewrite",
    "rule",
    "verify_module",
]
