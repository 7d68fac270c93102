"""The private APIs of torch that distribution needs, each in one small function."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo.guards
import torch._dynamo.source
import torch._guards
import torch.distributed
import torch.distributed.distributed_c10d
import torch.fx
import torch.utils._pytree
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard


def default_store() -> Any:
    """Return the store through which the processes of the world met."""
    return torch.distributed.distributed_c10d._get_default_store()


def local_part(tensor: DTensor) -> torch.Tensor:
    """Return the part that this process holds, when it has arrived."""
    part: torch.Tensor = tensor._local_tensor
    wait = getattr(part, "wait", None)
    return part if wait is None else wait()


def spec_of(tensor: DTensor) -> Any:
    """Return how a distributed tensor lies: a copy that nobody else changes."""
    return copy.copy(tensor._spec)


def spec(
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
) -> Any:
    """Describe how a tensor lies, for `from_part`."""
    meta = TensorMeta(torch.Size(shape), tuple(stride), dtype)
    return DTensorSpec(device_mesh, tuple(placements), tensor_meta=meta)


def from_part(part: torch.Tensor, spec: Any, requires_grad: bool = False) -> DTensor:
    """Return the distributed tensor of which this process holds a part; nothing is recorded."""
    made: DTensor = DTensor(part, copy.copy(spec), requires_grad=requires_grad)  # type: ignore[no-untyped-call]
    return made


def guard_on_shape(node: torch.fx.Node) -> None:
    """Let Dynamo compile anew for another whole shape of an input.

    By itself it looks at the parts alone, and several whole shapes may give a process one part.
    """
    source = getattr(node.meta.get("grapharg"), "source", None)
    context = torch._guards.TracingContext.try_get()
    if source is None or context is None:
        return
    shape = torch._dynamo.source.AttrSource(source, "shape")
    guard = shape.make_guard(torch._dynamo.guards.GuardBuilder.EQUALS_MATCH)
    context.guards_context.dynamo_guards.add(guard)


def input_descriptors(module: torch.fx.GraphModule) -> list[str]:
    """Return what AOTAutograd says of each placeholder: `args[2]`, or empty where nothing."""
    return [
        _expression(node.meta.get("desc")) for node in module.graph.find_nodes(op="placeholder")
    ]


def output_descriptors(module: torch.fx.GraphModule) -> list[str]:
    """Return what AOTAutograd says of each output: `output[0]`, or empty where nothing."""
    (node,) = module.graph.find_nodes(op="output")
    (outputs,) = node.args
    count = len(outputs) if isinstance(outputs, tuple | list) else 1
    given = node.meta.get("desc") or [None] * count
    return [_expression(one) for one in given]


def is_token(descriptor: str) -> bool:
    """Whether an input orders effects: it is no tensor, though its fake value is an empty one."""
    return descriptor.startswith(("__forward_token", "__backward_token"))


def map_tensors(function: Callable[[torch.Tensor], Any], results: Any) -> Any:
    """Return the results of a model with a function applied to each tensor in them."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, function, results)


def without_pending_sizes(fake_mode: Any) -> AbstractContextManager[None]:
    """Let sizes that depend on data be drawn again while a graph runs once more on fake tensors."""
    if fake_mode.shape_env is None:
        return contextlib.nullcontext()
    found: AbstractContextManager[None] = fake_mode.shape_env.ignore_fresh_unbacked_symbols()
    return found


def _expression(descriptor: Any) -> str:
    return "" if descriptor is None else str(descriptor.expr())


def block_shard(dim: int, blocks: int) -> Placement:
    """Return the placement of which each device has a piece of each of several equal blocks."""
    return _StridedShard(dim, split_factor=blocks)


def blocks_of(placement: Placement) -> int | None:
    """Return how many blocks a placement cuts each of; None if it cuts in another way."""
    if type(placement) is _StridedShard:
        return int(placement.split_factor)
    return 1 if type(placement) is Shard else None
