"""Find out what the machine can do, for the passes and back ends that decide by it."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from lynx.ir.types import DType
from lynx.passes import Target

_BF16 = ("avx512_bf16", "amx_bf16", "avx10_2", "bf16", "svebf16")
_F16 = ("avx512_fp16", "amx_fp16", "avx10_2", "asimdhp", "fphp")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_BANDWIDTH = 10e9
"""What one core moves, in bytes a second; a memory controller saturates at some eight of them."""


@functools.cache
def this_machine() -> Target:
    """Return the target of this process: its CPU. Never raises; unknown things stay at defaults."""
    flags = cpu_flags(_read(Path("/proc/cpuinfo")), _capabilities())
    cores = _cores()
    architecture = platform.machine().lower()
    bits = vector_bits(architecture, flags)
    caches = cache_sizes(_CACHES)
    return Target(
        architecture=architecture,
        cores=cores,
        vector_bits=bits,
        caches=caches if caches is not None else Target().caches,
        bandwidth=_BANDWIDTH * min(cores, 8),
        # Two units of multiply and add, at some 2.5 GHz.
        flops=cores * 2.5e9 * 2 * 2 * (bits // 32),
        native_products=native_products(flags),
        has_products=library_products() is not None,
    )


def cpu_flags(cpuinfo: str, capabilities: Mapping[str, object]) -> frozenset[str]:
    """Return the features of the CPU, named as in `/proc/cpuinfo`, from there and from torch."""
    found = {name for name, value in capabilities.items() if value is True}
    for line in cpuinfo.splitlines():
        name, _, values = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            found.update(values.lower().split())
            break
    return frozenset(found)


def native_products(flags: frozenset[str]) -> frozenset[DType]:
    """Return the low-precision types for which the CPU has instructions that multiply and add."""
    types = {DType.BF16: _BF16, DType.F16: _F16}
    return frozenset(t for t, names in types.items() if not flags.isdisjoint(names))


def vector_bits(architecture: str, flags: frozenset[str]) -> int:
    """Return the width of the vector registers that kernels shall use."""
    if architecture in ("x86_64", "amd64", "i686"):
        if "avx512f" in flags or "avx512_f" in flags:
            return 512
        return 256 if "avx2" in flags else 128
    return 128


def cache_sizes(folder: Path) -> tuple[int, int, int] | None:
    """Return the bytes of the three levels of data caches, None if the system does not tell.

    A missing third level is taken to be as large as the second.
    """
    sizes: dict[str, int] = {}
    for entry in sorted(folder.glob("index*")) if folder.is_dir() else ():
        if _read(entry / "type").strip() == "Instruction":
            continue
        size = _read(entry / "size").strip().upper()
        number, unit = (size[:-1], size[-1]) if size[-1:] in ("K", "M", "G") else (size, "")
        if number.isdigit():
            power = {"": 0, "K": 10, "M": 20, "G": 30}[unit]
            sizes[_read(entry / "level").strip()] = int(number) << power
    if "1" not in sizes or "2" not in sizes:
        return None
    return sizes["1"], sizes["2"], sizes.get("3", sizes["2"])


@functools.cache
def library_products() -> Path | None:
    """Return the library whose `sgemm_` and `dgemm_` torch calls, None if none exports them."""
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if hasattr(library, "sgemm_") and hasattr(library, "dgemm_"):
            return path
    return None


def _libraries() -> Iterator[Path]:
    """Yield the files that may hold them: torch itself, or an OpenBLAS that comes with it."""
    package = Path(inspect.getfile(torch)).parent
    for folder in (package / "lib", package.parent / "torch.libs"):
        for pattern in ("libtorch_cpu.*", "libopenblas*", "*blas*"):
            yield from sorted(folder.glob(pattern)) if folder.is_dir() else ()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def _capabilities() -> Mapping[str, object]:
    """Return what newer versions of torch tell of the CPU."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    try:
        found = ask() if ask is not None else {}
    except RuntimeError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
