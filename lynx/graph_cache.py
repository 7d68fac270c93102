"""Finished programs on disk, so that a second process runs no pass on a graph that one has seen.

The key is a digest of everything that the result depends on: the text of the imported graph, which
holds all that is known of inputs and outputs, the constants by content, the passes with their
options, the target, the settings, the modes of torch, the versions, and the source of Lynx itself.
A graph with something that cannot be hashed, such as a submodule, is compiled every time. The value
is a pickle, which is read only if its digest is right: the folder is the user's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch

import lynx.backends
import lynx.ir
import lynx.passes
import lynx.runtime
from lynx.ir.core import Graph
from lynx.ir.printer import print_graph
from lynx.ir.program import Program
from lynx.passes import Pipeline, Remark, Target
from lynx.passes.distribution.machine import read_target

from .cache import DiskStore, open_store
from .pass_context import constant_info
from .settings import Settings

KIND = "graph"
_FORMAT = 1
MAX_CONSTANT_BYTES = 64 << 20
"""Programs with more bytes of new constants than this are not kept."""

_WITHOUT_EFFECT = frozenset(
    (
        "autotune", "cache", "cache_dir", "cache_size", "cuda_graphs", "debug", "dump_dir",
        "pipeline", "progress", "reproducer_dir", "strict", "verify",
    )
)  # fmt: skip
"""Settings that do not change a program; the pipeline is hashed with what its names stand for."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), slice, torch.dtype, torch.device,
          torch.layout, torch.memory_format)  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """What is kept of a compilation: the program, and what the passes had to say."""

    program: Program
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class CachedGraph:
    """The place of one graph in the cache."""

    store: DiskStore
    key: str
    resources: Mapping[str, Any]

    def find(self) -> Finished | None:
        """Return the finished program, with the constants of the graph at hand; None if unknown."""
        contents = self.store.read(KIND, self.key)
        if contents is None:
            return None
        try:
            found = _Reader(io.BytesIO(contents), self.resources).load()
        except Exception:  # whatever an unreadable pickle raises, compiling anew is the answer
            found = None
        if isinstance(found, Finished):
            return found
        self.store.remove(KIND, self.key)
        return None

    def put(self, program: Program, remarks: Sequence[Remark]) -> bool:
        """Keep a program; whether that was possible."""
        fresh = dataclasses.replace(program)  # without the tables that it has computed for itself
        buffer = io.BytesIO()
        try:
            _Writer(buffer, self.resources).dump(Finished(fresh, tuple(remarks)))
            self.store.put(KIND, self.key, buffer.getvalue())
        except (_CannotKeepError, pickle.PicklingError, TypeError, AttributeError, OSError):
            return False
        return True


def cached_graph(
    graph: Graph, pipeline: Pipeline, target: Target, settings: Settings
) -> CachedGraph | None:
    """Return the place of a graph in the cache, None if it has none.

    That is so when caching is off, when someone wants to see the passes at work, and when the graph
    holds something of which no digest can be made.
    """
    if settings.debug >= 2 or settings.dump_dir:
        return None
    store = open_store(settings)
    if store is None:
        return None
    try:
        key = _key(graph, pipeline, target, settings)
    except _CannotKeepError:
        return None
    return CachedGraph(store, key, graph.resources)


def _key(graph: Graph, pipeline: Pipeline, target: Target, settings: Settings) -> str:
    hasher = hashlib.blake2b(digest_size=32)
    named = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if field.name not in _WITHOUT_EFFECT
    }
    parts = [
        str(_FORMAT),
        _FINGERPRINT,
        repr(sorted(named.items())),
        str(pipeline),
        target.text,
        str(read_target(settings.machine)) if settings.machine else "",
        _modes_of_torch(),
        print_graph(graph),
        *(f"{name} = {_digest(item)}" for name, item in graph.resources.items()),
    ]
    for part in parts:
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.hexdigest()


def fingerprint() -> str:
    """Return a digest of the versions and of all source files of Lynx."""
    hasher = hashlib.blake2b(digest_size=32)
    versions = (sys.version, torch.__version__, torch.version.git_version, sympy.__version__)
    hasher.update(repr((versions, platform.platform(), platform.machine())).encode())
    packages = (lynx, lynx.ir, lynx.passes, lynx.backends, lynx.runtime)
    for package in packages:
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".lark"):
                    contents = path.read_bytes()
                    name = path.relative_to(folder).as_posix()
                    hasher.update(f"{package.__name__} {name} {len(contents)} ".encode())
                    hasher.update(contents)
    return hasher.hexdigest()


_FINGERPRINT = fingerprint()
"""Taken when this module is loaded: later the files may be others than those that run."""


def _modes_of_torch() -> str:
    """Return the global modes that may change how constants are folded, and what a call does."""
    return repr(
        (
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
        )
    )


def _digest(item: Any) -> str:
    if type(item) in (torch.Tensor, torch.nn.Parameter) and item.layout is torch.strided:
        layout = (tuple(item.shape), item.stride(), item.storage_offset(), str(item.device))
        return f"{constant_info(item).digest} {layout} {item.is_conj()} {item.is_neg()}"
    if isinstance(item, tuple | list):
        return f"{type(item).__name__}({', '.join(map(_digest, item))})"
    if type(item) in _PLAIN:
        return f"{type(item).__name__} {item!r}"
    raise _CannotKeepError(type(item).__name__)


class _CannotKeepError(Exception):
    """Something has no digest, or no place in a file."""


class _Writer(pickle.Pickler):
    """Writes constants of the imported graph by name, and new ones by content.

    Objects come in the order of their definition, so that the recursion of pickling stays flat:
    what an op refers to has been written before it.
    """

    def __init__(self, buffer: io.BytesIO, resources: Mapping[str, Any]) -> None:
        super().__init__(buffer, protocol=5)
        self._names = {id(item): name for name, item in resources.items()}
        self._left = MAX_CONSTANT_BYTES

    def persistent_id(self, item: Any) -> str | None:
        """Return the name of a constant of the imported graph."""
        if isinstance(item, torch.Tensor) and id(item) not in self._names:
            self._left -= item.untyped_storage().nbytes()
            is_plain = type(item) is torch.Tensor and item.layout is torch.strided
            if not is_plain or item.device.type != "cpu" or self._left < 0:
                raise _CannotKeepError("constant")
            return None
        if isinstance(item, torch.nn.Module):
            raise _CannotKeepError("module")
        if type(item) in _PLAIN or isinstance(item, tuple | list):
            return None  # such constants may be shared with anything
        return self._names.get(id(item))


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote, with the constants of the graph at hand."""

    def __init__(self, buffer: io.BytesIO, resources: Mapping[str, Any]) -> None:
        super().__init__(buffer)
        self._resources = resources

    def persistent_load(self, name: Any) -> Any:
        """Return a constant of the imported graph."""
        return self._resources[name]
