"""The runtime: executables of programs, and the memory that they share."""

from __future__ import annotations

from .aliasing import may_alias
from .arena import BlockPool
from .executor import Executable, build, release_memory
from .native import NativeProgram

__all__ = ["BlockPool", "Executable", "NativeProgram", "build", "may_alias", "release_memory"]
