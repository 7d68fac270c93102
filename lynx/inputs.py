"""Random inputs and constants for a graph that was read from text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import Graph
from lynx.ir.core import Foreign, InputSpec
from lynx.ir.dims import Dim, evaluate
from lynx.ir.errors import UsageError
from lynx.ir.ops.aten import Aten, Resource
from lynx.ir.types import ScalarType, TensorType


def random_inputs(
    graph: Graph, seed: int = 0, symbols: Mapping[str, int] | None = None
) -> list[Any]:
    """Return inputs of the graph's types and strides, drawn from a seed.

    Floats are normal, integers are 0 or 1 (legal as indices into anything that is not tiny).
    Symbols that are not given are the least size of their range that is 4 or more, if there is one.
    `UsageError` for an input that is no tensor and no number.
    """
    sizes = {s.name: _size(s.lower, s.upper) for s in graph.symbols} | dict(symbols or {})
    generator = torch.Generator().manual_seed(seed)
    inputs: list[Any] = []
    for value, spec in zip(graph.inputs, graph.input_specs, strict=True):
        if isinstance(value.type, TensorType):
            inputs.append(_tensor(value.type, spec, sizes, generator))
        elif isinstance(value.type, ScalarType):
            inputs.append(0 if value.type.expr is None else evaluate(value.type.expr, sizes))
        else:
            message = f"input %{value.name} is {value.type}; give it with saved inputs"
            raise UsageError("no-random-input", message)
    return inputs


def random_resources(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Return tensors for the constants that a graph names, drawn as inputs are.

    `UsageError` for what is no tensor, such as a function that an op calls.
    """
    generator = torch.Generator().manual_seed(seed)
    resources: dict[str, Any] = {}
    for op in graph.ops:
        if isinstance(op, Resource) and op.key not in resources:
            resources[op.key] = _tensor(op.infer(), InputSpec(), {}, generator)
        if isinstance(op, Aten) and (names := list(_foreign((op.arguments, op.keywords)))):
            what = f"resource '{names[0]}' of '{op.target}'"
            raise UsageError("no-random-input", f"{what} is no tensor; give it with --resources")
    return resources


def _foreign(item: Any) -> Iterator[str]:
    if isinstance(item, Foreign) and item.kind == "resource":
        yield item.text
    for part in item if isinstance(item, tuple) else ():
        yield from _foreign(part)


def _size(lower: int | None, upper: int | None) -> int:
    size = max(4, lower or 0)
    return size if upper is None else min(size, upper)


def _tensor(
    type_: TensorType, spec: InputSpec, sizes: Mapping[str, int], generator: torch.Generator
) -> torch.Tensor:
    def known(dims: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(evaluate(dim, sizes) for dim in dims)

    shape, dtype = known(type_.shape), torch_dtype(type_.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    else:
        drawn = torch.randint(0, 2, shape, generator=generator).to(dtype)
    if spec.strides is None:
        return drawn.to(type_.device)
    strided = torch.empty_strided(shape, known(spec.strides), dtype=dtype, device=type_.device)
    return strided.copy_(drawn)
