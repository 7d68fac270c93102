"""The intermediate representation: types, ops, graphs and their text."""

from __future__ import annotations

from .core import (
    Argument,
    Builder,
    Foreign,
    Graph,
    InputSpec,
    Mutation,
    Number,
    Op,
    Operand,
    OutputSpec,
    Value,
)
from .diff import differences, equal, unified
from .dims import Dim, SymbolRange, format_dim, symbol
from .errors import CompileError, InternalError, LynxError, TextError, UsageError
from .kernel import Kernel, KernelBuilder
from .kernel_cost import KernelCost, kernel_cost
from .kernel_parser import parse_kernel, parse_kernels
from .kernel_printer import kernel_key, print_kernel, print_kernels
from .kernel_verifier import verify_kernel
from .location import UNKNOWN, Location
from .parser import parse_dim, parse_graph, parse_module, parse_type
from .printer import Printer, format_op, print_graph, print_module
from .sharding import Mesh, Partial, Sharding
from .space import Factor, FactorKind, IterationSpace, Window
from .traversal import reachable, topological_order, use_counts, users
from .types import DType, OpaqueType, ScalarType, TensorType, Type
from .verifier import verify

__all__ = [
    "UNKNOWN",
    "Argument",
    "Builder",
    "CompileError",
    "DType",
    "Dim",
    "Factor",
    "FactorKind",
    "Foreign",
    "Graph",
    "InputSpec",
    "InternalError",
    "IterationSpace",
    "Kernel",
    "KernelBuilder",
    "KernelCost",
    "Location",
    "LynxError",
    "Mesh",
    "Mutation",
    "Number",
    "Op",
    "OpaqueType",
    "Operand",
    "OutputSpec",
    "Partial",
    "Printer",
    "ScalarType",
    "Sharding",
    "SymbolRange",
    "TensorType",
    "TextError",
    "Type",
    "UsageError",
    "Value",
    "Window",
    "differences",
    "equal",
    "format_dim",
    "format_op",
    "kernel_cost",
    "kernel_key",
    "parse_dim",
    "parse_graph",
    "parse_kernel",
    "parse_kernels",
    "parse_module",
    "parse_type",
    "print_graph",
    "print_kernel",
    "print_kernels",
    "print_module",
    "reachable",
    "symbol",
    "topological_order",
    "unified",
    "use_counts",
    "users",
    "verify",
    "verify_kernel",
]
