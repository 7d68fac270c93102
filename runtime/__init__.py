"""The runtime: executables of programs, and the memory that they share."""

from __future__ import annotations

from .arena import BlockPool
from .executor import Executable, build, release_memory

__all__ = ["BlockPool", "Executable", "build", "release_memory"]
