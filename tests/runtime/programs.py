"""Random programs with random promises at the border, and what must hold when they run."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch

from lynx.backends.reference import call_of, evaluate
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import Graph, InputSpec, OutputSpec, TensorType, Value
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.passes import PassContext, Pipeline
from lynx.passes.lower import Lower
from lynx.passes.plan_memory import PlanMemory
from lynx.passes.reinplace import Reinplace
from lynx.runtime import Executable, build


def context() -> PassContext:
    return PassContext(can_write_into=lambda op: call_of(op).out is not None)


def compiled(graph: Graph, *, reinplace: bool = True, plan: bool = True) -> Program:
    """Return the program of a graph."""
    passes = [Lower(), *([Reinplace()] if reinplace else []), *([PlanMemory()] if plan else [])]
    program = Pipeline(tuple(passes)).run(graph, context())
    assert isinstance(program, Program)
    text = print_program(program)
    assert print_program(parse_program(text, resources=graph.resources)) == text
    return program


def executable(graph: Graph, **options: Any) -> Executable:
    return build(compiled(graph, **options), call_of)


def dense_strides(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Return dense strides in which the dimension `order[0]` is the outermost."""
    strides = [0] * len(shape)
    running = 1
    for dim in reversed(order):
        strides[dim] = running
        running *= max(shape[dim], 1)
    return tuple(strides)


def random_strides(value: Value, seed: random.Random) -> tuple[int, ...] | None:
    if not isinstance(value.type, TensorType) or seed.random() < 0.3:
        return None
    shape = tuple(int(size) for size in value.shape)
    order = list(range(len(shape)))
    if seed.random() < 0.5:
        seed.shuffle(order)
    return dense_strides(shape, order)


def with_border(graph: Graph, seed: random.Random) -> Graph:
    """Return the graph with random input strides and random wishes for its outputs."""
    input_specs = tuple(InputSpec(random_strides(value, seed)) for value in graph.inputs)
    output_specs = tuple(
        OutputSpec(
            None if value is None else random_strides(value, seed),
            seed.random() < 0.8,
            seed.random() < 0.3,
            seed.choice((-1, -1, 0, 1)),
        )
        for value in graph.outputs
    )
    return dataclasses.replace(graph, input_specs=input_specs, output_specs=output_specs)


def laid_out(graph: Graph, inputs: list[Any]) -> list[Any]:
    """Return copies of inputs with the strides that the graph promises."""
    result = []
    for given, spec in zip(inputs, graph.input_specs, strict=True):
        if not isinstance(given, torch.Tensor):
            result.append(given)
        elif spec.strides is None:
            result.append(given.clone())
        else:
            copy = torch.empty_strided(given.shape, spec.strides, dtype=given.dtype)
            result.append(copy.copy_(given))
    return result


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}


def roughest(graph: Graph) -> float:
    """Return the tolerance of the roughest type in a graph: what is made of it is as rough."""
    values = (*graph.inputs, *(result for op in graph.ops for result in op.results))
    types = {v.type.dtype for v in values if isinstance(v.type, TensorType)}
    return max((TOLERANCES.get(torch_dtype(dtype), 0.0) for dtype in types), default=0.0)


def same(a: Any, b: Any, least: float = 0.0) -> bool:
    """Whether two results are equal, NaN payloads aside.

    Floats need only be close: kernels take other paths for other layouts (the vectorized `pow` and
    that of the C library differ in the last digit). `least` is the least tolerance of floats.
    """
    if not isinstance(a, torch.Tensor):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    tolerance = max(TOLERANCES[a.dtype], least) if a.dtype in TOLERANCES else 0
    is_close = torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    zeros = (a == 0) & (b == 0)
    return is_close and torch.equal(torch.signbit(a) & zeros, torch.signbit(b) & zeros)


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def check_run(graph: Graph, run: Executable, inputs: list[Any]) -> list[Any]:
    """Run and check values, strides, mutations and who shares memory; return the outputs."""
    expected, mutated = evaluate(graph, laid_out(graph, inputs))
    given = laid_out(graph, inputs)
    args = list(given)
    outputs = list(run(args))
    assert args == []
    for index, (output, wanted, spec) in enumerate(
        zip(outputs, expected, graph.output_specs, strict=True)
    ):
        if not isinstance(output, torch.Tensor):
            assert output == wanted
            continue
        assert same(output, wanted, roughest(graph)), f"output {index}: {output} is not {wanted}"
        if spec.strides is not None:
            assert output.stride() == spec.strides, f"output {index}"
    for mutation, wanted in zip(graph.mutations, mutated, strict=True):
        assert same(given[graph.inputs.index(mutation.target)], wanted, roughest(graph))
    for index, value in enumerate(graph.inputs):
        if value not in {mutation.target for mutation in graph.mutations}:
            assert same(given[index], inputs[index]), f"input {index} was changed"
    _check_sharing(graph, given, outputs)
    return outputs


def _check_sharing(graph: Graph, given: list[Any], outputs: list[Any]) -> None:
    tensors = [(i, o) for i, o in enumerate(outputs) if isinstance(o, torch.Tensor) and o.numel()]
    for index, output in tensors:
        spec = graph.output_specs[index]
        if spec.saved:
            continue
        for tensor in given:
            if spec.fresh and isinstance(tensor, torch.Tensor) and tensor.numel():
                assert memory(output) != memory(tensor), f"output {index} lies in an input"
        for other_index, other in tensors:
            other_spec = graph.output_specs[other_index]
            if other_index == index or other_spec.saved or not spec.fresh:
                continue
            if spec.group == -1 or spec.group != other_spec.group:
                assert memory(output) != memory(other), f"outputs {index} and {other_index} share"
