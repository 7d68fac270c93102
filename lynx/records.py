"""What was compiled in this process, for `lynx.explain` and the debug log."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lynx.ir.core import Graph
from lynx.passes import Remark

from .distribution.layout import GraphLayout

log = logging.getLogger("lynx")


@dataclass
class CompiledGraph:
    """One graph on its way through the compiler.

    `name` is unique in the process, `kind` is forward, backward or inference, `imported` the graph
    before any pass, `program` the finished one. For a graph over a mesh, `distributed` is what all
    processes run together, and `layout` why it lies so, if somebody asked beforehand. `fallback`
    says why torch runs it instead.
    """

    name: str
    kind: str
    imported: Graph | None = None
    distributed: Graph | None = None
    layout: GraphLayout | None = None
    program: Any = None
    executable: Any = None
    remarks: list[Remark] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""


class Records:
    """The graphs compiled since the last reset, at most `limit` of them, newest last."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self.graphs: list[CompiledGraph] = []
        self._listeners: list[list[CompiledGraph]] = []
        self._counter = itertools.count()
        self._warned: set[str] = set()
        self._announced: list[Remark] = []

    def announce(self, remarks: Sequence[Remark]) -> None:
        """Give the next record what was said of its graph before there was a record."""
        self._announced = list(remarks)

    def open(self, kind: str) -> CompiledGraph:
        """Start a record with the next name."""
        record = CompiledGraph(f"graph{next(self._counter):03d}_{kind}", kind)
        record.remarks, self._announced = self._announced, []
        self.graphs.append(record)
        del self.graphs[: -self.limit]
        for listener in self._listeners:
            listener.append(record)
        return record

    @property
    def is_listened_to(self) -> bool:
        """Whether somebody waits for records, and wants to know more than is kept otherwise."""
        return bool(self._listeners)

    def listen(self) -> list[CompiledGraph]:
        """Return a list that grows with each new record until `unlisten`."""
        listener: list[CompiledGraph] = []
        self._listeners.append(listener)
        return listener

    def unlisten(self, listener: list[CompiledGraph]) -> None:
        """Stop a listener."""
        self._listeners = [known for known in self._listeners if known is not listener]

    def warn(self, message: str) -> None:
        """Warn, once for each message."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def reset(self) -> None:
        """Forget everything but the running number."""
        self.graphs.clear()
        self._announced = []
        self._warned.clear()


RECORDS = Records()
