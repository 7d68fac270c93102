"""The Triton back end: from kernels to readable Triton, launched or compiled ahead of time."""

from .aot import Resources, check_kernels, compile_ahead, table
from .autotune import autotune, autotune_product
from .failures import raise_arrived, raise_failures
from .interpreter import TritonInterpreter
from .launch import TritonKernel, launchable
from .launches import LaunchCompiler
from .matmul import contraction_of
from .module import PrintedModule, print_module, print_product_module

__all__ = [
    "LaunchCompiler",
    "PrintedModule",
    "Resources",
    "TritonInterpreter",
    "TritonKernel",
    "autotune",
    "autotune_product",
    "check_kernels",
    "compile_ahead",
    "contraction_of",
    "launchable",
    "print_module",
    "print_product_module",
    "raise_arrived",
    "raise_failures",
    "table",
]
