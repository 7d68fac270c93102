"""Training steps of small models on meshes, from which the tests of schedules draw."""

from __future__ import annotations

import functools

import torch

from lynx.ir.core import Builder, Graph, Value
from lynx.ir.ops import Tanh
from lynx.ir.ops.elementwise_arithmetic import Add, Multiply, Subtract
from lynx.ir.ops.layout import Permute
from lynx.ir.ops.linear import Matmul
from lynx.ir.sharding import Mesh, parse_sharding
from lynx.ir.types import DType, TensorType
from lynx.pass_context import pass_context
from lynx.passes import Pipeline
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import distribute
from lynx.passes.distribution.localize import localize
from lynx.passes.fuse import Fuse

RECIPES = {
    # batch, up, down
    "fsdp": (("dp, _", "dp, _", "dp, _"), Mesh("mesh", (("dp", 2),))),
    "fsdp4": (("dp, _", "dp, _", "dp, _"), Mesh("mesh", (("dp", 4),))),
    "tp": (("_, _", "_, tp", "tp, _"), Mesh("mesh", (("tp", 2),))),
    "dp+tp": (("dp, _", "_, tp", "tp, _"), Mesh("mesh", (("dp", 2), ("tp", 2)))),
    "fsdp+tp": (("dp, _", "dp, tp", "tp, dp"), Mesh("mesh", (("dp", 2), ("tp", 2)))),
}


def training_step(layers: int = 2, batch: int = 8, width: int = 12, hidden: int = 14) -> Graph:
    """Return the loss gradients of residual layers `x + tanh(x @ up) @ down`, by hand."""
    builder = Builder("step")

    def tensor(name: str, *shape: int) -> Value:
        return builder.input(name, TensorType(DType.F32, shape))

    x = tensor("x", batch, width)
    weights = [
        (tensor(f"up{n}", width, hidden), tensor(f"down{n}", hidden, width)) for n in range(layers)
    ]
    kept = []
    for up, down in weights:
        inner = builder.emit(Tanh(builder.emit(Matmul(x, up))))
        kept.append((x, inner))
        x = builder.emit(Add(x, builder.emit(Matmul(inner, down))))
    gradient = x
    gradients: list[Value] = []
    for (up, down), (x, inner) in zip(reversed(weights), reversed(kept), strict=True):
        gradients.append(builder.emit(Matmul(_transposed(builder, inner), gradient)))
        back = builder.emit(Matmul(gradient, _transposed(builder, down)))
        slope = builder.emit(Subtract(1.0, builder.emit(Multiply(inner, inner))))
        back = builder.emit(Multiply(back, slope))
        gradients.append(builder.emit(Matmul(_transposed(builder, x), back)))
        more = builder.emit(Matmul(back, _transposed(builder, up)))
        gradient = builder.emit(Add(gradient, more))
    return builder.build(tuple(reversed(gradients)))


def _transposed(builder: Builder, x: Value) -> Value:
    return builder.emit(Permute(x, (1, 0)))


@functools.cache
def typed_step(recipe: str, layers: int = 2, **sizes: int) -> Graph:
    """Return a training step laid out on the mesh of a recipe."""
    (batch, up, down), mesh = RECIPES[recipe]
    graph = training_step(layers, **sizes)
    specs = [batch, *(spec for _ in range(layers) for spec in (up, down))]
    inputs = tuple(
        Annotation(parse_sharding(spec, mesh), int(n > 0)) for n, spec in enumerate(specs)
    )
    promised = tuple(parse_sharding(spec, mesh) for spec in specs[1:])
    return distribute(graph, Annotations(mesh, inputs, promised), pass_context(graph)).graph


@functools.cache
def local_step(recipe: str, device: int, layers: int = 2, **sizes: int) -> Graph:
    """Return the fused program of one device, whose communication is not split yet."""
    typed = typed_step(recipe, layers, **sizes)
    assert typed.mesh is not None
    local = localize(typed, typed.mesh.coordinates(device))
    fused: Graph = Pipeline((Fuse(),)).run(local, pass_context(local))
    return fused


def local_inputs(graph: Graph, seed: int = 0) -> list[torch.Tensor]:
    """Return random inputs of a local program."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*map(int, v.shape), generator=generator) * 0.3 for v in graph.inputs]
