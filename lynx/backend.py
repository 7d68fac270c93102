"""The entry point of `torch.compile(model, backend="lynx")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from lynx.backends.c import build_products_early
from lynx.compat import (
    CONTROL_FLOW_ERRORS,
    aot_autograd,
    has_no_memory,
    tangents_by_memory_format,
)
from lynx.ir.errors import CompileError, UsageError
from lynx.ir.types import DType
from lynx.passes import parse_pipeline

from .cache import open_store
from .compiler import compile_graph
from .decompositions import decompositions
from .distribution.step import DistributedStep, distributed_step
from .generators import attention_devices
from .memory import give_back
from .normalize import normalize
from .recognise import recognise
from .records import RECORDS
from .settings import Settings, read_settings


def lynx(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph, forward and backward; what `torch.compile` calls.

    `UsageError` on an unknown mode or option, before anything is compiled. A graph that cannot be
    captured runs as torch would run it, with one warning, unless the option `strict` is set.
    """
    settings = read_settings(options, mode)
    parse_pipeline(settings.pipeline)  # so that a mistake in it is found before any work
    distribution: DistributedStep | None = None
    try:
        for node in graph_module.graph.find_nodes(op="placeholder"):
            if has_no_memory(node):
                raise CompileError("no-memory", f"'{node}' is a tensor of zeros without memory")
        types = {DType.F32} if torch.bfloat16 not in _dtypes(inputs) else {DType.F32, DType.BF16}
        build_products_early(settings.products, open_store(settings), types)
        distribution = distributed_step(graph_module, settings)
        if distribution is not None:
            return _compile_distributed(distribution, settings)
        return _compile(_recognised(graph_module, settings), inputs, settings)
    except CONTROL_FLOW_ERRORS:
        raise
    except Exception as error:  # the user's program goes on in eager
        if settings.strict or isinstance(error, UsageError):
            raise
        RECORDS.warn(f"lynx leaves a graph to torch: {type(error).__name__}: {error}")
        if distribution is not None and distribution.stands_in:
            return distribution.uncompiled()
        return graph_module.forward


def _recognised(graph_module: torch.fx.GraphModule, settings: Settings) -> torch.fx.GraphModule:
    module = normalize(graph_module)
    devices = attention_devices(settings)
    remarks = recognise(module, settings.fused_loss_bytes, devices)
    if remarks:
        give_back()  # what trying replacements took would count for as long as the model runs
    RECORDS.announce(remarks)
    return module


def _compile_distributed(step: DistributedStep, settings: Settings) -> Callable[..., Any]:
    """Compile the graph of the whole tensors; parts go in and come out."""
    step.check_sizes()
    with tangents_by_memory_format():
        compiled = _compile(_recognised(step.module, settings), step.inputs, settings, step)
    return step.around(compiled)


def _dtypes(inputs: Sequence[Any]) -> set[torch.dtype]:
    return {x.dtype for x in inputs if isinstance(x, torch.Tensor)}


def _compile(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: Settings,
    distribution: DistributedStep | None = None,
) -> Callable[..., Any]:
    def compiler(kind: str) -> Callable[..., Any]:
        return lambda module, _: compile_graph(module, kind, settings, distribution)

    return aot_autograd(
        graph_module,
        inputs,
        forward=compiler("forward"),
        backward=compiler("backward"),
        inference=compiler("inference"),
        decompositions=decompositions(),
    )


lynx.reset = RECORDS.reset  # type: ignore[attr-defined]  # called when Dynamo is reset
