"""The Triton back end: from kernels to readable Triton, launched or compiled ahead of time."""

from .failures import raise_failures
from .launch import TritonKernel, launchable
from .module import PrintedModule, print_module

__all__ = ["PrintedModule", "TritonKernel", "launchable", "print_module", "raise_failures"]
