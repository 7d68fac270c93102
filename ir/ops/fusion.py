"""Regions, which are ops inside an op, and the op for a group that becomes one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.types import Type


@dataclass(frozen=True, eq=False)
class Region:
    """Ops over parameters of their own; immutable, compared by identity.

    What `parameters` and `results` stand for is told by the op that holds the region. The ops refer
    to nothing else, hold no region and draw no random numbers.
    """

    parameters: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]


class Fused(Op, name="fused"):
    """Run a group of ops as one kernel.

        %d, %e = fused(%x = %a, %y = %b) {
            %0 = add %x, %y : f32[4, 8]
            %1 = exp %0 : f32[4, 8]
            %2 = sum %1 {dims = [1]} : f32[4]
            yield %1, %2
        } : f32[4, 8], f32[4]

    It means what its ops mean one after the other; what is not yielded never leaves the kernel.
    """

    inputs: tuple[Value, ...]
    body: Region

    def infer(self) -> tuple[Type, ...]:
        """Return the types of what the region yields."""
        parameters = self.body.parameters
        if len(parameters) != len(self.inputs):
            found = f"{len(self.inputs)} inputs for {len(parameters)} parameters"
            raise self.error("region-inputs", f"has {found}")
        for given, parameter in zip(self.inputs, parameters, strict=True):
            if given.type != parameter.type:
                raise self.error(
                    "region-inputs", f"passes {given.type} to a parameter of {parameter.type}"
                )
        return tuple(result.type for result in self.body.results)

    @property
    def bound(self) -> Mapping[Value, Value]:
        """The input that each parameter of the region stands for."""
        return dict(zip(self.body.parameters, self.inputs, strict=True))
