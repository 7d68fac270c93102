"""The C back end: native segments as plain C, compiled with what the machine has."""

from .compiler import Compiler, find_compiler
from .gemm import PRODUCTS
from .gemm import build_early as build_products_early
from .gemm import low_precision as low_precision_products
from .library import has_products
from .segment import KernelBuildError, compile_segments, has_compiler

__all__ = [
    "PRODUCTS",
    "Compiler",
    "KernelBuildError",
    "build_products_early",
    "compile_segments",
    "find_compiler",
    "has_compiler",
    "has_products",
    "low_precision_products",
]
