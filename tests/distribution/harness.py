"""Whole models on a mesh in one process: capture, lay out by a plan, run, compare with one device.

Forward and backward graphs are those that Lynx's own front end hands to its compiler. A plan maps
glob patterns over names of inputs (`inputs.x`, `layers.0.weight`) to specs; the first that matches
counts, and an input that none matches lies whole on each device.
"""

from __future__ import annotations

import collections
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

import lynx.backend
from lynx.backends.reference.evaluate import evaluate
from lynx.backends.reference.mesh import evaluate_on_mesh
from lynx.compat import outside_tracing
from lynx.compiler import run_through_torch
from lynx.distribution.torch_internals import input_descriptors, output_descriptors
from lynx.importer import import_graph
from lynx.ir.core import Graph
from lynx.ir.ops.collective import Collective
from lynx.ir.sharding import Mesh, Sharding, parse_sharding, replicated
from lynx.ir.types import TensorType
from lynx.ir.verifier import verify
from lynx.pass_context import pass_context
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.assign_buckets import assign_buckets
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.distribute import Distributed, distribute
from lynx.passes.distribution.gathers_ahead import gather_ahead
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.ranks import verify_schedules

Plan = Mapping[str, str]
_MEMBER = re.compile(r"_(?:modules|parameters|buffers)\b")
_WORD = re.compile(r"\w+", re.ASCII)
_ARGUMENT = re.compile(r"args\[(\d+)\]")


@dataclass
class Stage:
    """One graph of a model: names and values of its inputs, and names of its outputs.

    Inputs are named by the model's parameters, `inputs.` for what the caller gives, and otherwise
    (in backward) by the node of forward, or the output of forward, that they belong to.
    """

    graph: Graph
    inputs: list[str]
    outputs: list[str]
    nodes: list[str]
    values: list[Any] = field(default_factory=list)
    seed: torch.Tensor = field(default_factory=torch.get_rng_state)


@dataclass
class Captured:
    """The graphs of one model and one batch."""

    forward: Stage
    backward: Stage | None = None


def capture(
    model: nn.Module, inputs: Mapping[str, Any] | Sequence[Any], train: bool = True
) -> Captured:
    """Return a model's graphs, with the values that eager would give them."""
    stages: dict[str, Stage] = {}
    names: list[str] = []
    torch._dynamo.reset()

    def backend(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        names.extend(map(_name, module.graph.find_nodes(op="placeholder")))
        return lynx.backend.lynx(module, examples, options={"strict": True})

    def compiler(module: torch.fx.GraphModule, kind: str, *_: Any) -> Callable[..., Any]:
        with outside_tracing():
            stage = stages[kind] = _stage(module, kind, names)
        call = run_through_torch(module)

        def run(arguments: list[Any]) -> Any:
            stage.values = [_copy(argument) for argument in arguments]
            stage.seed = torch.get_rng_state()
            return call(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd asks for
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lynx.backend, "compile_graph", compiler)
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        torch.manual_seed(0)
        with torch.set_grad_enabled(train):
            called = compiled(**inputs) if isinstance(inputs, Mapping) else compiled(*inputs)
        if train:
            _loss(called).backward()
            model.zero_grad()
    forward = stages.get("forward") or stages["inference"]
    return Captured(forward, stages.get("backward"))


def _loss(called: Any) -> torch.Tensor:
    found = called if isinstance(called, torch.Tensor) else called[0]
    if found.dim() == 0:
        return found
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).reshape(found.shape)
    return (found * weights.to(found.dtype)).sum()


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _name(node: torch.fx.Node) -> str:
    """Return the name of a Dynamo input: of a member of the model, or of what the caller gives."""
    given = node.meta["grapharg"].source.name
    text = given() if callable(given) else given
    words = _WORD.findall(text)
    if not _MEMBER.search(text):
        return ".".join(["inputs", *words[1:]])
    start = next(index for index, word in enumerate(words) if _MEMBER.fullmatch(word))
    kept = [word for word in words[start:] if not _MEMBER.fullmatch(word)]
    return ".".join(kept)


def _stage(module: torch.fx.GraphModule, kind: str, names: Sequence[str]) -> Stage:
    def resolved(text: str, node: str) -> str:
        found = _ARGUMENT.search(text)
        return _ARGUMENT.sub(names[int(found[1])], text) if found else text or node

    placeholders = module.graph.find_nodes(op="placeholder")
    (output,) = module.graph.find_nodes(op="output")
    items = [item.name if isinstance(item, torch.fx.Node) else "" for item in output.args[0]]
    return Stage(
        import_graph(module, kind),
        list(map(resolved, input_descriptors(module), [node.name for node in placeholders])),
        list(map(resolved, output_descriptors(module), items)),
        items,
    )


# plans


def spec_for(plan: Plan, name: str, rank: int) -> str | None:
    """Return what a plan says of an input; `...` stands for dimensions that are not cut."""
    for pattern, spec in plan.items():
        if fnmatch.fnmatchcase(name, pattern):
            entries = re.findall(r"\([^()]*\)(?:\s*by\s+\d+)?|[^,\s][^,]*", spec)
            if "..." in entries:
                place = entries.index("...")
                entries[place : place + 1] = ["_"] * (rank - len(entries) + 1)
            return ", ".join(entries)
    return None


def annotation_for(plan: Plan, name: str, type_: Any, mesh: Mesh) -> Annotation | None:
    """Return what a plan says of an input, with the priority of data for what the caller gives."""
    if not isinstance(type_, TensorType):
        return None
    spec = spec_for(plan, name, type_.rank)
    priority = 0 if name.startswith("inputs.") else 1
    if spec is None:
        return Annotation(replicated(type_.rank, mesh), priority)
    sharding = parse_sharding(spec, mesh)
    assert len(sharding.dims) == type_.rank, f"'{spec}' for {name} of type {type_}"
    return Annotation(sharding, priority)


@dataclass
class OnMesh:
    """A model laid out on a mesh: programs of forward and of backward."""

    captured: Captured
    forward: Distributed
    backward: Distributed | None = None


def lay_out(captured: Captured, mesh: Mesh, plan: Plan) -> OnMesh:
    """Lay a model's graphs out by a plan.

    What backward gets from forward lies as forward leaves it, a gradient as its parameter, and the
    gradient of an output as the output.
    """
    stage = captured.forward
    inputs = [
        annotation_for(plan, name, value.type, mesh)
        for name, value in zip(stage.inputs, stage.graph.inputs, strict=True)
    ]
    annotations = Annotations(mesh, tuple(inputs))
    forward = distribute(stage.graph, annotations, pass_context(stage.graph))
    if captured.backward is None:
        return OnMesh(captured, forward)
    lies: dict[str, Annotation] = {
        f"__grad({name})": one
        for name, one in zip(stage.inputs, inputs, strict=True)
        if one is not None
    }
    lies |= {name: one for name, one in zip(stage.inputs, inputs, strict=True) if one is not None}
    for name, node, value, levels in zip(
        stage.outputs, stage.nodes, forward.graph.outputs, forward.output_levels, strict=True
    ):
        if value is not None and isinstance(value.type, TensorType):
            sharding = value.type.sharding or replicated(value.type.rank, mesh)
            one = Annotation(sharding, 1, tuple(sorted(levels.items())))
            lies.setdefault(node, one)
            lies[f"__output_tangent({name})"] = one
    stage = captured.backward
    outputs = [lies.get(name) for name in stage.outputs]
    annotations = Annotations(
        mesh,
        tuple(map(lies.get, stage.inputs)),
        tuple(None if one is None else one.sharding for one in outputs),
    )
    backward = distribute(stage.graph, annotations, pass_context(stage.graph))
    return OnMesh(captured, forward, backward)


def collectives(graph: Graph) -> dict[str, int]:
    """Return how often each collective is there: `all_reduce tp` -> 2."""
    found = collections.Counter(
        f"{op.name} {'+'.join(op.axes)}"
        for op in graph.ops
        if isinstance(op, Collective) and op.needs_communication
    )
    return dict(sorted(found.items()))


# runs


def check(captured: Captured, mesh: Mesh, plan: Plan, tolerance: float = 1e-5) -> OnMesh:
    """Lay a model out, run it on the mesh, and compare all results with those of one device."""
    laid = lay_out(captured, mesh, plan)
    compare(captured.forward, laid.forward.graph, tolerance)
    if captured.backward is not None and laid.backward is not None:
        compare(captured.backward, laid.backward.graph, tolerance)
    return laid


STARTED = parse_pipeline("start-buckets,fuse,split-collectives")
_COSTS = read_target("cpu-gloo")


def verify_order(graph: Graph) -> None:
    """Raise unless all devices start the communication of a laid out graph in one order."""
    together = gather_ahead(assign_buckets(graph, Costs(_COSTS, graph.mesh)))
    verify(together)
    verify_schedules(together, lambda local: STARTED.run(local, PassContext()))


def compare(stage: Stage, graph: Graph, tolerance: float) -> None:
    """Run one graph on a mesh and on one device, and compare outputs and changed inputs.

    All devices must communicate in one order too, with buckets.
    """
    seed = torch.get_rng_state()
    torch.set_rng_state(stage.seed)
    wanted = [*_flat(evaluate(stage.graph, list(map(_copy, stage.values))))]
    torch.set_rng_state(stage.seed)
    found = [*_flat(evaluate_on_mesh(graph, list(map(_copy, stage.values))))]
    torch.set_rng_state(seed)
    names = [*stage.outputs, *(f"new {m.target.name}" for m in stage.graph.mutations)]
    # Gradients that cancel out are noise: their size is that of the group of their kind.
    scales: dict[str, float] = collections.defaultdict(float)
    for name, value in zip(names, wanted, strict=True):
        if _is_real(value):
            scales[_group(name)] = max(scales[_group(name)], _size(value))
    for name, value, other in zip(names, wanted, found, strict=True):
        scale = max(scales[_group(name)], _size(value)) if _is_real(value) else 0.0
        _compare(name, value, other, tolerance * scale)
    verify_order(graph)


def _group(name: str) -> str:
    for group in ("__grad(", "__saved_for_backwards"):
        if name.startswith(group):
            return group
    return name


def _flat(results: tuple[list[Any], list[Any]]) -> list[Any]:
    return [*results[0], *results[1]]


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _size(value: torch.Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _compare(name: str, wanted: Any, found: Any, tolerance: float) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted, name
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
    if not _is_real(wanted):
        assert torch.equal(found, wanted), f"{name} differs"
        return
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=0, atol=tolerance, equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )  # fmt: skip


def sharding_of_output(laid: OnMesh, name: str) -> Sharding | None:
    """Return how an output of forward lies."""
    place = laid.captured.forward.outputs.index(name)
    value = laid.forward.graph.outputs[place]
    return None if value is None else value.tensor_type.sharding
