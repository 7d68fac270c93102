"""What is known of how a graph lies on a mesh before anything is propagated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lynx.ir.core import Value
from lynx.ir.errors import UsageError
from lynx.ir.shard_rules import ShardingError, normal_sharding
from lynx.ir.sharding import Mesh, Sharding

INPUT_PRIORITY = 0
"""Of what the user says of data: batches are split before anything else is decided."""
PARAMETER_PRIORITY = 1
"""Of parameters; constraints inside a model have their own, see `Constrain.priority_of`."""


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

    def normal(self, inputs: Sequence[Value], outputs: Sequence[Value | None]) -> Annotations:
        """Return the annotations with units that the types of values have after collectives.

        `UsageError` for a unit that does not divide its dimension.
        """
        given = tuple(
            one and replace(one, sharding=_normal(one.sharding, value, f"input '{value.name}'"))
            for one, value in zip(self.inputs, inputs, strict=True)
        )
        promised = tuple(
            one if one is None or value is None else _normal(one, value, f"output {index}")
            for index, (one, value) in enumerate(zip(self.outputs, outputs, strict=False))
        )
        return replace(self, inputs=given, outputs=promised)


def _normal(sharding: Sharding, value: Value, what: str) -> Sharding:
    try:
        return normal_sharding(sharding, value.shape, sharding.mesh)
    except ShardingError as error:
        raise UsageError(error.code, f"{what} of type {value.type}: {error.reason}") from None
