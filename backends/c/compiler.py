"""Find a C compiler and run it: sources to the bytes of a shared library."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lynx.ir.errors import CompileError

CANDIDATES = ("gcc", "cc", "clang")
_ENDED = "the compiler was ended after"
PATIENCE = 600
"""Seconds that a compiler may take before it is taken to hang."""


@dataclass(frozen=True)
class Compiler:
    """A compiler on this machine. `identity` changes when another one is installed there."""

    path: str
    identity: str

    @property
    def flags(self) -> tuple[str, ...]:
        """What every file is compiled with.

        Nothing of fast-math: NaN, infinities and signed zeros mean what they mean in eager mode.
        Multiplications and additions are contracted only where the source says so. With what of
        -O3 matters for loops, -O2 makes the same code in two thirds of the time. Jump threading
        takes cases out of loops that then cannot be vectorized.
        """
        is_arm = platform.machine() in ("aarch64", "arm64")
        # One vectorized loop and one for the rest: a second vectorized one gains nothing.
        gcc_only = (
            "--param",
            "vect-epilogues-nomask=0",
            "-fvect-cost-model=dynamic",
            "-fpeel-loops",
            "-fno-thread-jumps",
        )
        return (
            *(gcc_only if "gcc" in self.identity else ()),
            "-std=gnu11",
            "-O2",
            "-ftree-vectorize",
            "-mcpu=native" if is_arm else "-march=native",
            "-fPIC",
            "-fopenmp-simd",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-ffp-contract=off",
            "-fvisibility=hidden",
            "-w",
        )


def find_compiler(name: str | None = None) -> Compiler:
    """Return the compiler of that name or path, or the first that is installed.

    Raises `CompileError` with code "no-compiler" if there is none.
    """
    for candidate in (name,) if name is not None else CANDIDATES:
        found = shutil.which(candidate)
        if found is not None:
            return _identified(found)
    wanted = name or ", ".join(CANDIDATES)
    raise CompileError("no-compiler", f"found no C compiler, looked for {wanted}")


@functools.cache
def _identified(path: str) -> Compiler:
    real = Path(path).resolve()
    status = real.stat()
    return Compiler(path, f"{real} {status.st_size} {status.st_mtime_ns}")


@functools.cache
def machine_features() -> str:
    """Return what `native` code depends on: the model and the features of the processor."""
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    found: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    return f"{platform.machine()} {platform.system()} {sorted(found.items())}"


def key_of(sources: tuple[str, ...], compiler: Compiler, version: str) -> str:
    """Return the digest of all that the library depends on."""
    parts = (*sources, compiler.identity, *compiler.flags, machine_features(), version)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class BuildError(CompileError):
    """The compiler refused a source, or did not end; `log` is what it said."""

    def __init__(self, log: str) -> None:
        super().__init__("kernel-build", f"the C compiler failed: {log.strip()[-2000:]}")
        self.log = log

    @property
    def hung(self) -> bool:
        """Whether the compiler had to be ended."""
        return _ENDED in self.log


def build(
    sources: tuple[str, ...],
    compiler: Compiler,
    *flags: str,
    more: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> bytes:
    """Compile sources, side by side if there are several, and return the linked library.

    `more` are flags for some of them alone.
    """
    with tempfile.TemporaryDirectory(prefix="lynx-") as folder:
        files = [Path(folder, f"unit{number}.c") for number in range(len(sources))]
        for file, source in zip(files, sources, strict=True):
            file.write_text(source)
        library = Path(folder, "library.so")
        if len(files) == 1:
            flags = (*flags, *more.get(sources[0], ()))
            _wait([_start(compiler, [*flags, "-shared", "-o", str(library), str(files[0]), "-lm"])])
            return library.read_bytes()
        objects = [file.with_suffix(".o") for file in files]
        _wait(
            [
                _start(compiler, [*flags, *more.get(text, ()), "-c", "-o", str(target), str(file)])
                for target, file, text in zip(objects, files, sources, strict=True)
            ]
        )
        _wait([_start(compiler, ["-shared", "-o", str(library), *map(str, objects), "-lm"])])
        return library.read_bytes()


def check(source: str, compiler: Compiler) -> str | None:
    """Compile one source and return what the compiler said against it; None if nothing."""
    with tempfile.TemporaryDirectory(prefix="lynx-") as folder:
        file = Path(folder, "unit.c")
        file.write_text(source)
        try:
            _wait([_start(compiler, ["-c", "-o", str(file.with_suffix(".o")), str(file)])])
        except BuildError as error:
            return error.log
    return None


def _start(compiler: Compiler, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [compiler.path, *compiler.flags, *arguments]
    try:
        # A group of its own, so that what the compiler starts can be ended with it.
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            process_group=0,
        )  # fmt: skip
    except OSError as error:
        raise CompileError("no-compiler", f"cannot run {compiler.path}: {error}") from error


def _output(process: subprocess.Popen[bytes]) -> str:
    """Return what a compiler said when it ended; one that does not end is ended."""
    try:
        return process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0].decode(errors="replace")
        return f"{said}\n{_ENDED} {PATIENCE} s"


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    outputs = [_output(process) for process in processes]
    failed = [o for p, o in zip(processes, outputs, strict=True) if p.returncode != 0]
    if failed:
        raise BuildError("\n".join(failed))
