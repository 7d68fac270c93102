"""A Dynamo graph over distributed tensors that runs as torch runs it: gathered, by each process.

It is what is left where compiling a graph fails. Stand-ins have no memory, so that torch cannot run
a graph over them; it can over the whole of what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import DTensor

from lynx.ir.sharding import replicated

from .agreement import Agreement
from .border import Entrance, Exit
from .gathering import piece
from .groups import Groups
from .running import agreed


@dataclass(frozen=True)
class Uncompiled:
    """Gathers distributed inputs, and lets torch run a graph on the whole tensors.

    `outputs` says which results become distributed tensors, of which each process has the whole;
    `passing` which are inputs that are handed back as they came. Gradients go back to the parts.
    """

    module: torch.fx.GraphModule
    entrances: Sequence[Entrance | None]
    outputs: Sequence[bool]
    passing: Mapping[int, int]
    groups: Groups

    def function(self) -> Callable[..., Any]:
        """Return what Dynamo calls; before the first call processes agree that all gather."""
        text = f"left to torch\n{self.module.graph}"
        run = agreed(Agreement("a graph", text, self.groups), self._run)
        return lambda *arguments: run(list(arguments))

    def _run(self, arguments: list[Any]) -> tuple[Any, ...]:
        given: list[Any] = []
        joined: list[tuple[int, torch.Tensor, torch.Tensor, Entrance]] = []
        for argument, entrance in zip(arguments, self.entrances, strict=True):
            tensor = getattr(argument, "lynx_tensor", argument)
            if entrance is not None and isinstance(tensor, DTensor):
                part = entrance.enter(argument)
                whole = entrance.join(part, tensor.shape)
                if whole is not part:
                    joined.append((whole._version, whole, part, entrance))
                tensor = whole
            given.append(tensor)
        results = list(self.module.forward(*given))
        with torch.no_grad():
            for version, whole, part, entrance in joined:
                if whole._version != version:
                    groups = entrance.groups
                    part.copy_(piece(whole, entrance.sharding, groups.mesh, groups.coordinates))
        for index, result in enumerate(results):
            if self.outputs[index] and isinstance(result, torch.Tensor):
                results[index] = self._leave(result)
        for index, position in self.passing.items():
            results[index] = getattr(arguments[position], "lynx_tensor", arguments[position])
        return tuple(results)

    def _leave(self, result: torch.Tensor) -> torch.Tensor:
        lies = replicated(result.dim(), self.groups.mesh)
        shape, strides = result.shape, result.stride()
        return Exit.of(lies, shape, strides, result.dtype, self.groups).leave(result)
