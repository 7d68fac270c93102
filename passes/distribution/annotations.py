"""What is known of how a graph lies on a mesh before anything is propagated."""

from __future__ import annotations

from dataclasses import dataclass, field

from lynx.ir.sharding import Mesh, Sharding

INPUT_PRIORITY = 0
"""Of what the user says of data: batches are split before anything else is decided."""
PARAMETER_PRIORITY = 1
"""Of parameters and of constraints inside a model."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """How a tensor lies, and how much that counts where annotations contend for a mesh axis.

    Lower priorities win. `priorities` gives axes another one than `priority`. `open` are the
    dimensions that propagation may split further.
    """

    sharding: Sharding
    priority: int = PARAMETER_PRIORITY
    priorities: tuple[tuple[str, int], ...] = ()
    open: tuple[int, ...] = ()

    def priority_of(self, axis: str) -> int:
        """Return the priority of one mesh axis."""
        return dict(self.priorities).get(axis, self.priority)


@dataclass(frozen=True, slots=True)
class Annotations:
    """How the inputs of a graph lie on a mesh, and how its outputs must.

    None stands for an input of which each device holds the whole, and for an output that may lie
    as it comes, but for partial sums.
    """

    mesh: Mesh
    inputs: tuple[Annotation | None, ...]
    outputs: tuple[Sharding | None, ...] = ()
    output_priorities: tuple[int, ...] = field(default=())
