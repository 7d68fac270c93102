"""Run generated modules in Triton's interpreter, on CPU tensors, in a process of its own.

Whether Triton interprets is decided when it is imported, so a process either interprets or
compiles. The child also gets what the interpreter lacks: the functions of libdevice (from torch),
rounding to bfloat16, and fast reductions with functions of ours.
"""

from __future__ import annotations

import atexit
import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO

import torch

from lynx.ir.dims import evaluate
from lynx.ir.errors import InternalError
from lynx.ir.kernel import Kernel

from .interpreter_patches import patch_interpreter
from .launch import load_module
from .module import PrintedModule, print_module
from .schedule import Schedule
from .sizes import LIMITS, Limits

_CHILD = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from lynx.backends.triton.interpreter import serve
serve()
"""


class TritonInterpreter:
    """A child process that interprets kernels; use it as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> TritonInterpreter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._child.communicate()

    def run_kernel(
        self,
        kernel: Kernel,
        tensors: Sequence[torch.Tensor],
        sizes: Mapping[str, int] | None = None,
        *,
        is_deterministic: bool = False,
        schedules: tuple[Schedule, ...] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """Print a kernel and run it on tensors, which change in place."""
        printed = print_module(
            kernel, is_deterministic=is_deterministic, schedules=schedules, limits=limits
        )
        values = [(sizes or {})[symbol] for symbol in kernel.symbols]
        self.run_module(printed, tensors, values)

    def run_module(
        self, printed: PrintedModule, tensors: Sequence[torch.Tensor], values: Sequence[int]
    ) -> None:
        """Run a printed module. An `IndexError` tells the first check that failed."""
        failures = torch.zeros(max(len(printed.messages), 1), dtype=torch.int32)
        results = self.call(printed.text, printed.name, [*tensors, failures, *values])
        for tensor, result in zip(tensors, results, strict=False):
            tensor.copy_(result)
        flags = results[len(tensors)].tolist()
        for message, flag in zip(printed.messages, flags, strict=False):
            if flag:
                raise IndexError(message)

    def call(self, text: str, name: str, arguments: list[Any]) -> list[Any]:
        """Call `run` of a module in the child; return the arguments as they are afterwards."""
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            _send(stdin, (text, name, _packed(arguments)))
            answer = _receive(stdout)
        if isinstance(answer, str):
            raise InternalError("triton-interpreter", f"{answer}\n{text}")
        assert isinstance(answer, list)
        return _unpacked(answer)


@functools.cache
def shared_interpreter() -> TritonInterpreter:
    """Return the interpreter of this process, which ends with it."""
    interpreter = TritonInterpreter()
    atexit.register(interpreter.close)
    return interpreter


@dataclass(frozen=True, eq=False)
class InterpretedKernel:
    """A kernel that the interpreter of this process runs on CPU tensors, as a device would."""

    kernel: Kernel
    printed: PrintedModule

    def launch(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> None:
        """Run on tensors that stand for memory from their first element on."""
        sizes = dict(zip(self.kernel.symbols, values, strict=True))
        # A launch is no operation of torch: it leaves version counters alone, and so does `data`.
        flat = [
            tensor.data.as_strided((evaluate(buffer.extent, sizes),), (1,))
            for tensor, buffer in zip(tensors, self.kernel.buffers, strict=True)
        ]
        shared_interpreter().run_module(self.printed, flat, values)


class InterpretedAttention(InterpretedKernel):
    """An attention that the interpreter runs; its kernel only says what memory there is."""


def _send(stream: BinaryIO | Any, message: object) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> object:
    size = stream.read(8)
    if len(size) < 8:
        raise EOFError("the interpreter process is gone")
    return pickle.loads(stream.read(int.from_bytes(size, "little")))


def _packed(arguments: Sequence[Any]) -> list[Any]:
    """Return arguments in which tensors are dtype, shape and bytes: torch pickles not all types."""
    return [
        (a.dtype, a.shape, a.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        if isinstance(a, torch.Tensor)
        else a
        for a in arguments
    ]


def _unpacked(arguments: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for one in arguments:
        if isinstance(one, tuple):
            dtype, shape, data = one
            flat = torch.empty(len(data), dtype=torch.uint8)
            flat.numpy()[:] = memoryview(data)
            found.append(flat.view(dtype).reshape(shape))
        else:
            found.append(one)
    return found


def serve() -> None:
    """Run what arrives on the standard input until it ends; answer on the standard output."""
    stdout, sys.stdout = sys.stdout.buffer, sys.stderr
    patch_interpreter()
    torch.set_num_threads(1)
    while True:
        try:
            request: Any = _receive(sys.stdin.buffer)
        except EOFError:
            return
        text, name, arguments = request
        try:
            values = _unpacked(arguments)
            load_module(text, name)["run"](*values)
            answer: object = _packed(values)
        except Exception as error:  # whatever it is, the parent must hear of it
            answer = f"{type(error).__name__}: {error}"
        _send(stdout, answer)
