"""Compile and load our own product of matrices, for processors that the library serves badly."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import threading
from pathlib import Path

from lynx.ir.errors import CompileError
from lynx.ir.store import ArtifactStore

from . import library
from .compiler import Compiler, build, find_compiler, key_of, machine_features

PRODUCTS = ("auto", "library", "own")
"""Who multiplies `f32` matrices."""

_SOURCE = Path(__file__).with_name("gemm.c")
_VERSION = "gemm 1"
_LOG = logging.getLogger(__name__)
_LOCK = threading.Lock()
_ADDRESSES: dict[str, int] = {}


@functools.cache
def is_faster_here() -> bool:
    """Whether our product is faster than the library's, which keeps its best code for Intel.

    This is a rule and no measurement, so that a machine gives the same numbers on every day.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    features = machine_features()
    words = set(features.replace("'", " ").split())
    return "AMD" in words and {"avx2", "fma"} <= words


def _renew_lock() -> None:
    """Free the lock in a forked process, which has none of the threads that may hold it."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def is_wanted(products: str) -> bool:
    """Whether `products`, one of `PRODUCTS`, means ours on this machine."""
    return products == "own" or (products == "auto" and is_faster_here())


def address(compiler: Compiler, store: ArtifactStore | None) -> int:
    """Return the address of `lynx_multiply_f32`; 0 if it cannot be built, which is logged."""
    with _LOCK:
        key = key_of((_SOURCE.read_text(encoding="utf-8"),), compiler, _VERSION)
        if key not in _ADDRESSES:
            try:
                _ADDRESSES[key] = _load(key, compiler, store)
            except (CompileError, OSError, AttributeError) as error:
                _LOG.warning("matrix products stay with the library: %s", error)
                _ADDRESSES[key] = 0
        return _ADDRESSES[key]


def build_early(products: str, store: ArtifactStore | None) -> None:
    """Begin to build what `address` will return, beside all else that the caller does."""
    if not is_wanted(products) or _ADDRESSES or _LOCK.locked():
        return
    try:
        compiler = find_compiler()
    except CompileError:
        return
    threading.Thread(target=address, args=(compiler, store)).start()


def _load(key: str, compiler: Compiler, store: ArtifactStore | None) -> int:
    found = library.find(store, key) if store is not None else None
    if found is None:
        # Sums of products may be contracted here: they are rounded once less than the library's.
        contents = build((_SOURCE.read_text(encoding="utf-8"),), compiler, "-ffp-contract=fast")
        found = library.load(contents) if store is None else library.put(store, key, contents)
    return ctypes.cast(found.lynx_multiply_f32, ctypes.c_void_p).value or 0
