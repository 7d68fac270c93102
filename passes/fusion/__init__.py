"""Fusion: which ops become one kernel, and what that kernel computes."""

from __future__ import annotations

from .emit import KERNEL_DTYPES, why_not
from .factory import KernelFactory
from .kernels import kernel_of

__all__ = ["KERNEL_DTYPES", "KernelFactory", "kernel_of", "why_not"]
