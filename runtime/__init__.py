"""The runtime: executables of programs, and the memory that they share."""

from __future__ import annotations

from .aliasing import may_alias
from .arena import BlockPool
from .executor import Executable, build, release_memory
from .graphs import CudaRecorder, GraphedFunction, Recorder
from .native import NativeProgram

__all__ = [
    "BlockPool",
    "CudaRecorder",
    "Executable",
    "GraphedFunction",
    "NativeProgram",
    "Recorder",
    "build",
    "may_alias",
    "release_memory",
]
