"""The sizes of Llama 3 that are laid out on large meshes, and files that hold their graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lynx.ir import Graph, Mesh, parse_module
from lynx.ir.printer import print_module

_NAMES = "// inputs: "


@dataclass(frozen=True)
class Size:
    """A Llama 3, and the mesh that it is trained on."""

    layers: int
    width: int
    inner: int
    heads: int
    mesh: Mesh


SIZES = {
    "70B": Size(80, 8192, 28672, 64, Mesh("mesh", (("dp", 32), ("tp", 8)))),
    "405B": Size(126, 16384, 53248, 128, Mesh("mesh", (("rep", 128), ("dp", 16), ("tp", 8)))),
}


@dataclass
class Traced:
    """Forward and backward, with the names of the inputs of forward."""

    names: list[str]
    graphs: dict[str, Graph]

    @property
    def count(self) -> int:
        """The number of ops of all graphs."""
        return sum(len(graph.ops) for graph in self.graphs.values())


def write(traced: Traced, file: Path) -> None:
    """Keep the graphs as text."""
    file.write_text(f"{_NAMES}{' '.join(traced.names)}\n{print_module(traced.graphs.values())}")


def read(file: Path) -> Traced:
    """Return the graphs of a file."""
    text = file.read_text()
    names = text.splitlines()[0].removeprefix(_NAMES).split()
    return Traced(names, {graph.name: graph for graph in parse_module(text, file=str(file))})
