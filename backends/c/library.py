"""Load compiled libraries, and bind what they take from torch: its thread pool and its BLAS."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

from lynx.ir.errors import InternalError
from lynx.ir.store import ArtifactStore

KIND = "c"

_POOL = ("GOMP_parallel", "GOMP_barrier", "omp_get_max_threads", "omp_in_parallel")
_BLAS = ("sgemm_", "dgemm_")
_DIGEST = hashlib.sha256().digest_size


@functools.cache
def _torch_libraries() -> tuple[ctypes.CDLL, ...]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ()
    # These are the files that torch has loaded, so that its own pool and library are found.
    folder = Path(spec.origin).parent / "lib"
    found: list[ctypes.CDLL] = []
    for pattern in ("libtorch_cpu.so", "libgomp*.so*", "libmkl*.so*", "libopenblas*.so*"):
        for path in sorted(folder.glob(pattern)):
            try:
                found.append(ctypes.CDLL(str(path)))
            except OSError:
                continue
    return tuple(found)


def _address(name: str) -> int:
    for library in _torch_libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


@functools.cache
def _functions() -> tuple[int, ...]:
    pool = [_address(name) for name in _POOL]
    if not all(pool):
        # Without torch's own pool everything runs on the calling thread: never start a second one.
        pool = [0] * len(_POOL)
    return (*pool, *(_address(name) for name in _BLAS))


@functools.cache
def has_products() -> bool:
    """Whether torch's libraries export the matrix products that `ProductCall` needs."""
    return all(_address(name) for name in _BLAS)


NO_PRODUCTS = (0, 0)
"""No own products: of `f32` and of `bf16` matrices, as addresses of functions."""


def load(contents: bytes, products: tuple[int, ...] = NO_PRODUCTS) -> ctypes.CDLL:
    """Load a library that is in no store; it multiplies by the functions at these addresses."""
    with tempfile.TemporaryDirectory(prefix="lynx-") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(contents)
        return _bound(ctypes.CDLL(str(path)), products)


def _bound(library: ctypes.CDLL, products: tuple[int, ...]) -> ctypes.CDLL:
    functions = (*_functions(), *products)
    library.lynx_bind((ctypes.c_void_p * len(functions))(*functions))
    return library


def seal(contents: bytes) -> bytes:
    """Append a digest: a library of which a part is missing may load, and crash only later."""
    return contents + hashlib.sha256(contents).digest()


def find(
    store: ArtifactStore, key: str, products: tuple[int, ...] = NO_PRODUCTS
) -> ctypes.CDLL | None:
    """Load a library from the store; None if there is none, or none that is whole."""
    path = store.find(KIND, key)
    return _load_sealed(path, products) if path is not None else None


def _load_sealed(path: Path, products: tuple[int, ...]) -> ctypes.CDLL | None:
    try:
        contents = path.read_bytes()
        if hashlib.sha256(contents[:-_DIGEST]).digest() != contents[-_DIGEST:]:
            return None
        return _bound(ctypes.CDLL(str(path)), products)
    except (OSError, AttributeError):
        return None


def put(
    store: ArtifactStore, key: str, contents: bytes, products: tuple[int, ...] = NO_PRODUCTS
) -> ctypes.CDLL:
    """Write a library to the store and load it from there."""
    path = store.put(KIND, key, seal(contents))
    library = _load_sealed(path, products)
    return library if library is not None else load(contents, products)


def function_of(library: ctypes.CDLL, name: str) -> Callable[[bytes], int]:
    """Return a segment's function: it takes packed bytes and returns an integer."""
    try:
        function = library[name]
    except AttributeError as error:
        raise InternalError("missing-function", f"the library has no {name}") from error
    function.argtypes = (ctypes.c_char_p,)
    function.restype = ctypes.c_longlong
    return function
