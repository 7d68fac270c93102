"""What a fused op means: its ops one after the other, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from lynx.ir.call import Call
from lynx.ir.core import Op, Value
from lynx.ir.dims import symbol
from lynx.ir.ops.fusion import Fused, Region

from .evaluate import run
from .registry import call_of, means


@means(Fused)
def fused(op: Fused) -> Call:
    """Run the region op by op; the call passes the operands, and the symbols that it needs."""
    names = region_symbols(op.body)
    program = _RegionProgram(op.body, names)
    outs = tuple(f"out{index}" for index in range(len(op.results)))
    sizes = tuple(symbol(name) for name in names)
    return Call(program.fused, (op.inputs, sizes), {}, program.fused_out, outs)


def region_symbols(region: Region) -> tuple[str, ...]:
    """Return the symbols that the calls of the region's ops depend on, sorted."""
    found: set[str] = set()
    for op in region.ops:
        call = call_of(op)
        for item in _leaves((call.arguments, tuple(call.keywords.values()))):
            if isinstance(item, sympy.Expr):
                found.update(part.name for part in item.free_symbols)
    return tuple(sorted(found))


def _leaves(root: Any) -> Iterator[Any]:
    stack = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        else:
            yield item


class _RegionProgram:
    """Runs a region on tensors; `names` are the symbols whose values come with them."""

    def __init__(self, region: Region, names: tuple[str, ...]) -> None:
        self.region = region
        self.names = names
        self.last_uses = _last_uses(region)

    def fused(self, inputs: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Return the results, each in dense memory of its own, as the op promises."""
        results: list[Any] = []
        taken = {_memory(item) for item in inputs if isinstance(item, torch.Tensor)}
        for item in self._compute(inputs, sizes):
            if isinstance(item, torch.Tensor):
                if not _is_dense(item) or (item.numel() and _memory(item) in taken):
                    item = item.clone()
                taken.add(_memory(item))
            results.append(item)
        return results[0] if len(results) == 1 else tuple(results)

    def fused_out(self, inputs: Sequence[Any], sizes: Sequence[int], **outs: torch.Tensor) -> Any:
        """Write the results to the given tensors, which may be inputs, and return these."""
        results = self.fused(inputs, sizes)
        results = results if isinstance(results, tuple) else (results,)
        for out, item in zip(outs.values(), results, strict=True):
            out.copy_(item)
        return tuple(outs.values())

    def _compute(self, inputs: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        region = self.region
        values: dict[Value, Any] = dict(zip(region.parameters, inputs, strict=True))
        symbols: Mapping[str, int] = dict(zip(self.names, sizes, strict=True))
        for op in region.ops:
            values.update(zip(op.results, run(op, values, symbols, {}), strict=True))
            for value in self.last_uses[op]:
                del values[value]
        return [values[value] for value in region.results]


def _last_uses(region: Region) -> dict[Op, tuple[Value, ...]]:
    """Return the values that nothing needs after each op of the region."""
    needed = set(region.results)
    found: dict[Op, tuple[Value, ...]] = {}
    for op in reversed(region.ops):
        ended = [v for v in dict.fromkeys((*op.operands, *op.results)) if v not in needed]
        needed.update(ended)
        found[op] = tuple(ended)
    return found


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a range of memory without gaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
