"""Compile and load our own products of matrices, for processors that the library serves badly."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import threading
from collections.abc import Iterable
from pathlib import Path

from lynx.ir.errors import CompileError
from lynx.ir.store import ArtifactStore
from lynx.ir.types import DType

from . import library
from .compiler import Compiler, build, find_compiler, key_of, machine_features

PRODUCTS = ("auto", "library", "own")
"""Who multiplies matrices."""

MULTIPLIED = (DType.F32, DType.BF16)
"""The types for which we have a product, in the order in which libraries are given them."""

_FILES = ("gemm_operands.c", "gemm_{}.c", "gemm.c")
_VERSION = "gemm 3"
_LOG = logging.getLogger(__name__)
_LOCK = threading.Lock()
_ADDRESSES: dict[str, int] = {}


@functools.cache
def _features() -> frozenset[str]:
    """Return the words that describe the processor; none if it is not of the x86 family."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    return frozenset(machine_features().replace("'", " ").split())


@functools.cache
def is_faster_here(dtype: DType) -> bool:
    """Whether our product is faster than the library's, which keeps its best code for Intel.

    This is a rule and no measurement, so that a machine gives the same numbers on every day.
    """
    if dtype is DType.BF16:
        # The library takes as long as we do for large matrices, and longer for small ones; where
        # there is a unit for blocks of matrices it uses that.
        return _multiplies_pairs() and "amx_bf16" not in _features()
    return _features() >= {"AMD", "avx2", "fma"}


def _multiplies_pairs() -> bool:
    """Whether the processor has the instruction of our product of `bf16` matrices."""
    return _features() >= {"avx512f", "avx512bw", "avx512vl", "avx512_bf16"}


def is_wanted(products: str, dtype: DType = DType.F32) -> bool:
    """Whether `products`, one of `PRODUCTS`, means ours for matrices of that type here."""
    if products == "auto":
        return is_faster_here(dtype)
    return products == "own" and (dtype is DType.F32 or _multiplies_pairs())


def low_precision(products: str, store: ArtifactStore | None) -> frozenset[DType]:
    """Return the types of low precision that we multiply: torch exports no function for them."""
    if not is_wanted(products, DType.BF16):
        return frozenset()
    try:
        compiler = find_compiler()
    except CompileError:
        return frozenset()
    return frozenset({DType.BF16} if address(compiler, store, DType.BF16) else ())


def address(compiler: Compiler, store: ArtifactStore | None, dtype: DType = DType.F32) -> int:
    """Return the address of the function that multiplies such matrices.

    It is 0 if that cannot be built, which is logged.
    """
    with _LOCK:
        sources = _sources(dtype)
        key = key_of(sources, compiler, _VERSION)
        if key not in _ADDRESSES:
            try:
                _ADDRESSES[key] = _load(key, sources, compiler, store, dtype)
            except (CompileError, OSError, AttributeError) as error:
                _LOG.warning("products of %s matrices stay with the library: %s", dtype, error)
                _ADDRESSES[key] = 0
        return _ADDRESSES[key]


def addresses(
    products: str, dtypes: Iterable[DType], compiler: Compiler, store: ArtifactStore | None
) -> tuple[int, ...]:
    """Return the address for each type of `MULTIPLIED`, 0 for those not wanted or not given."""
    wanted = {dtype for dtype in dtypes if is_wanted(products, dtype)}
    return tuple(address(compiler, store, t) if t in wanted else 0 for t in MULTIPLIED)


def build_early(products: str, store: ArtifactStore | None, dtypes: Iterable[DType]) -> None:
    """Begin to build what `address` will return, beside all else that the caller does."""
    wanted = [t for t in MULTIPLIED if t in frozenset(dtypes) and is_wanted(products, t)]
    if len(_ADDRESSES) >= len(wanted) or _LOCK.locked():
        return
    try:
        compiler = find_compiler()
    except CompileError:
        return
    for dtype in wanted:
        threading.Thread(target=address, args=(compiler, store, dtype)).start()


def _renew_lock() -> None:
    """Free the lock in a forked process, which has none of the threads that may hold it."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _sources(dtype: DType) -> tuple[str]:
    folder = Path(__file__).parent
    names = [name.format(dtype) for name in _FILES]
    return ("\n".join((folder / name).read_text(encoding="utf-8") for name in names),)


def _load(
    key: str,
    sources: tuple[str],
    compiler: Compiler,
    store: ArtifactStore | None,
    dtype: DType,
) -> int:
    found = library.find(store, key) if store is not None else None
    if found is None:
        # Sums of products may be contracted here: they are rounded once less than the library's.
        contents = build(sources, compiler, "-ffp-contract=fast")
        found = library.load(contents) if store is None else library.put(store, key, contents)
    function = getattr(found, f"lynx_multiply_{dtype}")
    return ctypes.cast(function, ctypes.c_void_p).value or 0
