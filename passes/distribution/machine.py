"""Machines that programs over meshes run on, as far as costs go: read from TOML."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lynx.ir.errors import UsageError
from lynx.ir.sharding import Mesh

_FOLDER = Path(__file__).parent / "targets"


@dataclass(frozen=True, slots=True)
class Link:
    """What joins devices: each step of an algorithm takes `latency` seconds and its bytes.

    `bandwidth` is in bytes a second that one device sends. It joins `devices` in a row, counted
    from a multiple of that number, any number of them if it is 0.
    """

    name: str
    latency: float
    bandwidth: float
    devices: int = 0


@dataclass(frozen=True)
class MeshTarget:
    """One kind of machine; the links go from the closest to the farthest.

    `flops` are operations a second by element type, of which products reach the part `efficiency`;
    `memory_bandwidth` is in bytes a second, `launch` the least time of a kernel in seconds.
    """

    name: str
    flops: Mapping[str, float]
    memory_bandwidth: float
    launch: float
    efficiency: float
    links: tuple[Link, ...]

    def link(self, mesh: Mesh | None, axes: tuple[str, ...]) -> Link:
        """Return the closest link that joins all devices of a group along mesh axes."""
        span = math.inf if mesh is None else group_span(mesh, axes)
        close = (link for link in self.links if link.devices == 0 or span <= link.devices)
        return next(close, self.links[-1])

    def operations(self, dtype: str) -> float:
        """Return the operations a second on elements of a type, those of `f32` if unknown."""
        return self.efficiency * (self.flops.get(dtype) or self.flops["f32"])


def group_span(mesh: Mesh, axes: tuple[str, ...]) -> int:
    """Return how many devices in a row, in row-major order, a group along mesh axes lies in."""
    first = min(mesh.names.index(axis) for axis in axes)
    return math.prod(size for _, size in mesh.axes[first:])


def target_names() -> tuple[str, ...]:
    """Return the machines that are described already."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def read_target(name: str) -> MeshTarget:
    """Return a machine by its name or by the path of a TOML file; `UsageError` if there is none."""
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(target_names())
        message = f"there is no target '{name}'; expected a file in TOML or one of {known}"
        raise UsageError("unknown-target", message) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError("bad-target", f"{path}: {error}") from error
    return _target(content, str(path))


def _target(content: Mapping[str, Any], path: str) -> MeshTarget:
    try:
        links = tuple(Link(**link) for link in content["links"])
        target = MeshTarget(**{**content, "links": links})
    except (KeyError, TypeError) as error:
        raise UsageError("bad-target", f"{path}: {error}") from error
    numbers = [target.memory_bandwidth, target.launch, target.efficiency, *target.flops.values()]
    numbers += [number for link in links for number in (link.latency, link.bandwidth)]
    if not links or "f32" not in target.flops or not all(number > 0 for number in numbers):
        message = f"{path}: expected links, 'flops.f32', and numbers above 0"
        raise UsageError("bad-target", message)
    return target
