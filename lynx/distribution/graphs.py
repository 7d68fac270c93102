"""Bring a Dynamo graph over distributed tensors to one over whole plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import DTensor

from lynx.compat import FakeTensor, storage_identity
from lynx.ir.errors import CompileError

from .torch_internals import local_part, without_pending_sizes

_METHODS = ("to_local", "redistribute", "full_tensor")


def check_calls(module: torch.fx.GraphModule) -> None:
    """Raise `CompileError` if a graph asks how its tensors lie, which whole tensors cannot say."""
    for node in module.graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in _METHODS or "from_local" in str(name):
            raise CompileError(
                "dtensor-call",
                f"'{node.name}' calls {name}, which has no meaning for the whole tensor; "
                "call it outside of what is compiled, or use lynx.constrain",
            )


def plain_inputs(module: torch.fx.GraphModule) -> list[Any]:
    """Return fake tensors of the whole shapes, with known sizes, for the inputs of a Dynamo graph.

    Symbolic sizes are fixed to what they are now, with a guard.
    """
    traced = (node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder"))
    return [_plain(item) if isinstance(item, torch.Tensor) else item for item in traced]


def _plain(given: torch.Tensor) -> torch.Tensor:
    sizes = [*given.shape, *given.stride()]
    if not isinstance(given, DTensor) and all(isinstance(size, int) for size in sizes):
        return given
    inner = local_part(given) if isinstance(given, DTensor) else given
    if not isinstance(inner, FakeTensor):
        raise CompileError("no-fake", "an input that is no fake tensor")
    with inner.fake_mode:
        result = torch.empty_strided(
            [int(size) for size in given.shape],
            [int(stride) for stride in given.stride()],
            dtype=given.dtype,
            device=given.device,
        )
    result.requires_grad_(given.requires_grad)
    return result


def plain_graph(
    module: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[bool]]:
    """Return the graph with plain values on all nodes, and which outputs were distributed.

    `inputs` are plain. An output that shares memory with an input or another output is copied:
    parts of distributed tensors cannot be rebuilt as views of each other.
    """
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    _copy_output_meta(module.graph, graph)
    result = torch.fx.GraphModule(module, graph)
    (before,) = module.graph.find_nodes(op="output")
    distributed = [_is_distributed(item) for item in _sequence(before.args[0])]
    fake = next((one for one in inputs if isinstance(one, FakeTensor)), None)
    if fake is None:
        raise CompileError("no-fake", "a graph without tensors as inputs")
    with fake.fake_mode, torch.enable_grad(), without_pending_sizes(fake.fake_mode):
        _Values(result, fake.fake_mode).run(*inputs)
        _separate_outputs(result)
    result.recompile()
    return result, distributed


def _copy_output_meta(old: torch.fx.Graph, new: torch.fx.Graph) -> None:
    (a,), (b,) = old.find_nodes(op="output"), new.find_nodes(op="output")
    b.meta = dict(a.meta)


def _sequence(items: Any) -> Sequence[Any]:
    return items if isinstance(items, tuple | list) else (items,)


def _is_distributed(item: Any) -> bool:
    return isinstance(item, torch.fx.Node) and isinstance(item.meta.get("example_value"), DTensor)


class _Values(torch.fx.Interpreter):
    """Gives each node the value that it has for plain inputs."""

    def __init__(self, module: torch.fx.GraphModule, mode: Any) -> None:
        super().__init__(module)
        self.mode = mode

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if node.op != "output":
            node.meta["example_value"] = result
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        if isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor):
            return self.mode.from_tensor(found)
        return found


def _separate_outputs(module: torch.fx.GraphModule) -> None:
    """Copy outputs that share memory with inputs or with outputs before them."""
    (node,) = module.graph.find_nodes(op="output")
    taken = {
        storage_identity(value)
        for one in module.graph.find_nodes(op="placeholder")
        if isinstance(value := one.meta.get("example_value"), torch.Tensor)
    }
    outputs: list[Any] = []
    for item in _sequence(node.args[0]):
        value = item.meta.get("example_value") if isinstance(item, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and item.op != "placeholder":
            if storage_identity(value) in taken:
                with module.graph.inserting_before(node):
                    item = module.graph.call_method("clone", (item,))
                item.meta["example_value"] = value.clone()
            taken.add(storage_identity(value))
        outputs.append(item)
    node.args = (tuple(outputs),)
