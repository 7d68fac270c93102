"""One Dynamo graph over distributed tensors on its way through the compiler, and when it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from lynx.ir.core import Graph
from lynx.ir.errors import CompileError
from lynx.ir.printer import print_graph
from lynx.ir.sharding import Sharding, replicated
from lynx.ir.types import TensorType
from lynx.ir.verifier import verify
from lynx.passes import PassContext, Remark
from lynx.passes.distribution.annotations import (
    INPUT_PRIORITY,
    PARAMETER_PRIORITY,
    Annotation,
    Annotations,
)
from lynx.passes.distribution.assign_buckets import assign_buckets, summary
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.distribute import Distributed, distribute
from lynx.passes.distribution.explain import Words
from lynx.passes.distribution.gathers_ahead import gather_ahead
from lynx.passes.distribution.localize import localize
from lynx.passes.distribution.overlap import target_of
from lynx.settings import Settings

from .agreement import Agreement
from .border import Entrance, Exit
from .constraints import check_constraints, without_constraints
from .discovery import reason_of
from .gathering import gathered
from .graphs import check_calls, plain_graph, plain_inputs
from .groups import Groups
from .layout import GraphLayout
from .meshes import (
    is_placeable,
    placeable,
    placements_of,
    sharding_of_placements,
    whole_placements,
)
from .names import input_names, title
from .running import Boxed, agreed, entered, with_strides
from .torch_internals import (
    guard_on_shape,
    input_descriptors,
    is_token,
    output_descriptors,
)
from .uncompiled import Uncompiled
from .wishes import with_wishes


@dataclass(frozen=True)
class LocalGraph:
    """The program of one process: what is compiled, and what is put around the compiled function.

    `typed` is the program of all processes, with collectives; None where all is gathered. `layout`
    says why it is so, if that is asked for.
    """

    graph: Graph
    wrap: Callable[[Boxed], Boxed]
    typed: Graph | None = None
    layout: GraphLayout | None = None


@dataclass
class Frame:
    """How the inputs and outputs of one graph lie; None for what is no tensor.

    `shapes` are the whole shapes of inputs, `sources` what AOTAutograd calls them, `names` what it
    calls each output, and the name of its node. Outputs that are `promised` must lie so.
    """

    inputs: list[Sharding | None] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    outputs: list[Sharding | None] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)
    promised: list[bool] = field(default_factory=list)


@dataclass
class DistributedStep:
    """How the tensors of one Dynamo graph lie: inputs by annotation, the rest as it is found out.

    AOTAutograd's graphs come in the order forward, backward. `annotations` holds what the user says
    of inputs, by what AOTAutograd calls them, `known` how values lie, `saved` how those that
    backward gets lie, by the name of their node; `levels` has the priorities of their axes.
    """

    module: torch.fx.GraphModule
    inputs: list[Any]
    entrances: tuple[Entrance | None, ...]
    distributed_outputs: tuple[bool, ...]
    groups: Groups
    settings: Settings
    annotations: dict[str, Annotation] = field(default_factory=dict)
    known: dict[str, Sharding] = field(default_factory=dict)
    saved: dict[str, Sharding] = field(default_factory=dict)
    levels: dict[str, Mapping[str, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    stands_in: bool = False
    """Whether tensors without memory stand for distributed ones, so that torch cannot run it."""
    layout: GraphLayout | None = None

    def localize(
        self, graph: Graph, module: torch.fx.GraphModule, name: str, context: PassContext,
        explained: bool = False,
    ) -> LocalGraph:  # fmt: skip
        """Return what this process runs of a graph of AOTAutograd over whole tensors.

        If it is to be explained, the reasons are kept, which takes memory. Where propagation fails,
        all is gathered, with a remark; in strict mode that is an error.
        """
        frame = self._frame(module)
        if self.settings.distribution == "auto":
            try:
                found = self._laid_out(graph, frame, context)
                typed = self._in_buckets(found.graph, context)
                local = without_constraints(localize(typed, self.groups.coordinates))
            except CompileError as error:
                if self.settings.strict:
                    raise
                context.remarks.append(Remark("mesh", f"all is gathered: {error}"))
            else:
                self._remember(frame)
                agreement = Agreement(
                    name, print_graph(typed), self.groups, self._titles(graph, frame)
                )
                enter = functools.partial(entered, graph=local, agreement=agreement)
                layout = self._layout(graph.name, frame, found) if explained else None
                return LocalGraph(local, enter, typed, layout)
        changed = tuple(graph.inputs.index(one.target) for one in graph.mutations)
        agreement = Agreement(name, _text(print_graph(graph), frame), self.groups)

        def wrap(function: Boxed) -> Boxed:
            inner = with_strides(graph, function)
            return agreed(agreement, self._gathered(inner, frame, changed, name))

        self._remember(frame)
        return LocalGraph(without_constraints(graph), wrap)

    def _titles(self, graph: Graph, frame: Frame) -> dict[str, str]:
        """Return the names by which the user knows inputs, by those in the text of a program."""
        titles = (title(text, self.names) for text in frame.sources)
        pairs = zip(graph.inputs, titles, strict=True)
        return {value.name: text for value, text in pairs if value.name and text}

    def _in_buckets(self, typed: Graph, context: PassContext) -> Graph:
        """Return the program of the mesh in which small tensors travel together."""
        machine = target_of(self.settings.machine, self.groups.device_mesh.device_type)
        costs = Costs(machine, typed.mesh)
        try:
            result = gather_ahead(assign_buckets(typed, costs))
            verify(result)
        except Exception as error:  # a program without buckets is as right, and only slower
            context.remarks.append(Remark("mesh", f"each tensor travels alone: {error}"))
            return typed
        if text := summary(result):
            context.remarks.append(Remark("mesh", text))
        return result

    def _layout(self, kind: str, frame: Frame, found: Distributed) -> GraphLayout:
        """Keep how the values of a graph lie, under names that the user knows."""
        prepared = found.prepared
        inputs = [title(text, self.names) for text in frame.sources]
        outputs = [title(text, self.names) for text, _ in frame.names]
        pairs = [(value, name) for value, name in zip(prepared.inputs, inputs, strict=True) if name]
        before = self.layout if kind == "backward" else None
        if before is not None:
            kept = {value.name: before.saved.get(value.name) for value in prepared.inputs}
            named = {name: before.words.name(one) for name, one in kept.items() if one is not None}
            pairs += [(v, f"saved {named[v.name]}") for v in prepared.inputs if v.name in named
                      and v not in dict(pairs)]  # fmt: skip
        saved = {
            name: value
            for (_, name), value in zip(frame.names, prepared.outputs, strict=True)
            if value is not None
        }
        saved |= {value.name: value for value in prepared.inputs}
        words = Words(dict(pairs), reason_of)
        self.layout = GraphLayout(kind, found, inputs, outputs, saved, words, before)
        return self.layout

    def _laid_out(self, graph: Graph, frame: Frame, context: PassContext) -> Distributed:
        """Return the graph with collectives; `frame` then says how its outputs lie.

        Outputs that the user gets lie as propagation finds, if DTensor has placements for that.
        """
        inputs = tuple(
            None if sharding is None else self._annotation(value.name, text, sharding)
            for value, sharding, text in zip(graph.inputs, frame.inputs, frame.sources, strict=True)
        )
        promised = [
            sharding if is_promised else None
            for sharding, is_promised in zip(frame.outputs, frame.promised, strict=True)
        ]
        graph, inputs = with_wishes(graph, inputs, frame.inputs)
        annotations = Annotations(self.groups.mesh, inputs, tuple(promised))
        found = distribute(graph, annotations, context)
        refused = self._refused(found.graph, frame)
        if refused:
            for position, sharding in refused.items():
                promised[position] = sharding
            annotations = Annotations(self.groups.mesh, inputs, tuple(promised))
            found = distribute(graph, annotations, context)
        typed = found.graph
        for (text, name), levels in zip(frame.names, found.output_levels, strict=True):
            self.levels[name] = self.levels[text] = levels
        for position, value in enumerate(typed.outputs):
            if value is not None and isinstance(value.type, TensorType):
                frame.outputs[position] = value.type.sharding or replicated(
                    value.type.rank, self.groups.mesh
                )
        return found

    def _refused(self, typed: Graph, frame: Frame) -> dict[int, Sharding]:
        """Return how outputs shall lie that lie in a way for which there are no placements."""
        found: dict[int, Sharding] = {}
        for position, (value, (text, _)) in enumerate(zip(typed.outputs, frame.names, strict=True)):
            if value is None or not text.startswith("output["):
                continue
            sharding = value.tensor_type.sharding
            shape = [int(dim) for dim in value.shape]
            if sharding and not is_placeable(sharding, shape, self.groups.device_mesh):
                found[position] = placeable(sharding, self.groups.mesh)
        return found

    def _annotation(self, name: str, text: str, sharding: Sharding) -> Annotation:
        """Return how an input lies: as the user says, or as forward left it, with its priorities.

        A gradient that comes in counts as the output that it belongs to.
        """
        given = self.annotations.get(text)
        if given is not None:
            return given
        levels = self.levels.get(name) or self.levels.get(_source(text)) or {}
        return Annotation(sharding, priorities=tuple(sorted(levels.items())))

    def through_torch(self, module: torch.fx.GraphModule, function: Boxed, name: str) -> Boxed:
        """Return a function over parts that gathers them and runs the graph as torch would."""
        frame = self._frame(module)
        self._remember(frame)
        agreement = Agreement(name, _text(str(module.graph), frame), self.groups)
        changed = _written(module)
        return agreed(agreement, self._gathered(function, frame, changed, name))

    def _gathered(self, function: Boxed, frame: Frame, changed: Sequence[int], name: str) -> Boxed:
        inputs = [
            None if sharding is None else (sharding, shape)
            for sharding, shape in zip(frame.inputs, frame.shapes, strict=True)
        ]
        return gathered(function, inputs, frame.outputs, changed, self.groups, name)

    def _frame(self, module: torch.fx.GraphModule) -> Frame:
        """Return how the inputs of a graph lie, and how its outputs must if nobody else decides."""
        frame = Frame()
        nodes = module.graph.find_nodes(op="placeholder")
        for node, text in zip(nodes, input_descriptors(module), strict=True):
            value = node.meta.get("val")
            is_tensor = isinstance(value, torch.Tensor)
            frame.shapes.append(tuple(map(int, value.shape)) if is_tensor else ())
            frame.sources.append(text)
            frame.inputs.append(self._input(node.name, text) if is_tensor else None)
        (node,) = module.graph.find_nodes(op="output")
        for item, text in zip(node.args[0], output_descriptors(module), strict=True):
            value = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
            frame.names.append((text, item.name if isinstance(item, torch.fx.Node) else ""))
            frame.promised.append(_source(text) in self.known)
            frame.outputs.append(
                self.known.get(_source(text)) or replicated(value.dim(), self.groups.mesh)
                if isinstance(value, torch.Tensor)
                else None
            )
        return frame

    def _input(self, name: str, text: str) -> Sharding:
        """Return how an input lies; `CompileError` if nothing says it."""
        found = self.saved.get(name) or self.known.get(_source(text))
        if found is None and is_token(text):
            return replicated(1, self.groups.mesh)
        if found is None:
            raise CompileError("unknown-input", f"nothing says how '{name}' lies ({text})")
        return found

    def _remember(self, frame: Frame) -> None:
        """Note how the outputs lie: for those who get them, and for backward."""
        for (text, name), sharding in zip(frame.names, frame.outputs, strict=True):
            if sharding is not None:
                if text.startswith(("output[", "__input_mutation(", "__intermediate_base(")):
                    self.known[text] = sharding
                self.saved[name] = sharding

    # when it runs

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return what Dynamo calls with the inputs of its graph."""
        exits = self._exits()
        passing = self._passing()

        def run(*arguments: Any) -> Any:
            entered = [
                argument if entrance is None else entrance.enter(argument)
                for argument, entrance in zip(arguments, self.entrances, strict=True)
            ]
            results = list(compiled(*entered))
            for index, exit_ in exits.items():
                results[index] = exit_.leave(results[index])
            for index, position in passing.items():
                given = arguments[position]
                results[index] = getattr(given, "lynx_tensor", given)
            return tuple(results)

        return run

    def check_sizes(self) -> None:
        """Raise `CompileError` if data say how large a value is: it cannot be cut."""
        for node in self.module.graph.nodes:
            values = node.meta.get("example_value")
            for value in values if isinstance(values, tuple | list) else (values,):
                if isinstance(value, torch.Tensor) and not all(
                    isinstance(size, int) for size in value.shape
                ):
                    shape = list(value.shape)
                    raise CompileError(
                        "unknown-size",
                        f"'{node.name}' has the shape {shape}, which depends on data",
                    )

    def uncompiled(self) -> Callable[..., Any]:
        """Return what runs in place of a graph that could not be compiled, on whole tensors."""
        outputs, passing = self.distributed_outputs, self._passing()
        return Uncompiled(self.module, self.entrances, outputs, passing, self.groups).function()

    def _exits(self) -> dict[int, Exit]:
        (node,) = self.module.graph.find_nodes(op="output")
        exits: dict[int, Exit] = {}
        for index, item in enumerate(node.args[0]):
            value = item.meta.get("example_value") if isinstance(item, torch.fx.Node) else None
            if isinstance(value, torch.Tensor) and self.distributed_outputs[index]:
                sharding = self.known[f"output[{index}]"]
                exits[index] = Exit.of(
                    sharding, value.shape, value.stride(), value.dtype, self.groups
                )
        return exits

    def _passing(self) -> dict[int, int]:
        """Return which outputs are inputs: they are handed back as they came."""
        places = {n: i for i, n in enumerate(self.module.graph.find_nodes(op="placeholder"))}
        (node,) = self.module.graph.find_nodes(op="output")
        return {i: places[item] for i, item in enumerate(node.args[0]) if item in places}


def distributed_step(module: torch.fx.GraphModule, settings: Settings) -> DistributedStep | None:
    """Return how a Dynamo graph is distributed; None if none of its inputs is.

    `CompileError` if distributed tensors lie on several meshes, or if the graph asks how they lie.
    """
    nodes = module.graph.find_nodes(op="placeholder")
    given = [_given(node) for node in nodes]
    meshes = [one.device_mesh for one in given if isinstance(one, DTensor)]
    meshes += [known for node in nodes if (known := getattr(_example(node), "lynx_mesh", None))]
    if not meshes:
        return None
    check_calls(module)
    device_mesh = _only_mesh(meshes)
    groups = groups_of(device_mesh, settings)
    check_constraints(module, groups.mesh)
    plain = plain_inputs(module)
    graph, distributed = plain_graph(module, plain)
    for node in nodes:
        if isinstance(_example(node), DTensor):
            guard_on_shape(node)
    stands_in = any(hasattr(_example(node), "lynx_tensor") for node in nodes)
    annotated = [getattr(_example(node), "lynx_annotation", None) for node in nodes]
    lying = [getattr(_example(node), "lynx_lies", False) for node in nodes]
    entrances = tuple(
        _entrance(tensor, fake, None if lies else annotation, groups)
        for tensor, fake, annotation, lies in zip(given, plain, annotated, lying, strict=True)
    )
    annotations = {
        f"args[{index}]": _said(node, annotation, entrance.sharding)
        for index, (node, annotation, entrance) in enumerate(
            zip(nodes, annotated, entrances, strict=True)
        )
        if entrance is not None
    }
    known = {
        f"args[{index}]": entrance.sharding
        for index, entrance in enumerate(entrances)
        if entrance is not None
    }
    outputs = tuple(stands_in or one for one in distributed)
    return DistributedStep(
        graph, plain, entrances, outputs, groups, settings, annotations, known,
        names=input_names(module), stands_in=stands_in,
    )  # fmt: skip


def _said(node: torch.fx.Node, given: Annotation | None, sharding: Sharding) -> Annotation:
    """Return what is said of an input: by a plan, or by where a parameter or data lies."""
    if given is not None:
        return given
    is_parameter = isinstance(_example(node), torch.nn.Parameter)
    return Annotation(sharding, PARAMETER_PRIORITY if is_parameter else INPUT_PRIORITY)


_GROUPS: dict[DeviceMesh, Groups] = {}


def groups_of(device_mesh: DeviceMesh, settings: Settings) -> Groups:
    """Return the groups of a mesh, which all programs on it share."""
    groups = _GROUPS.get(device_mesh)
    if groups is None:
        groups = _GROUPS[device_mesh] = Groups(device_mesh)
    groups.timeout = float(settings.collective_timeout)
    return groups


def _example(node: torch.fx.Node) -> Any:
    return getattr(node.meta.get("grapharg"), "example", None)


def _given(node: torch.fx.Node) -> Any:
    """Return the distributed tensor that a placeholder was traced for, or what else it was."""
    example = _example(node)
    example = getattr(example, "lynx_tensor", example)
    return example if isinstance(example, torch.Tensor) else node.meta.get("example_value")


def _only_mesh(given: Sequence[DeviceMesh]) -> DeviceMesh:
    meshes = dict.fromkeys(given)
    if len(meshes) > 1:
        listed = ", ".join(map(str, meshes))
        raise CompileError(
            "several-meshes", f"distributed tensors lie on several meshes: {listed}; expected one"
        )
    return next(iter(meshes))


def _entrance(
    given: Any, fake: Any, annotation: Annotation | None, groups: Groups
) -> Entrance | None:
    """Return how an input gets in: as it is annotated, or as it lies."""
    if not isinstance(fake, torch.Tensor):
        return None
    device_mesh = groups.device_mesh
    if annotation is not None:
        sharding = placeable(annotation.sharding, groups.mesh)
        return Entrance(sharding, placements_of(sharding, fake.shape, device_mesh), groups)
    if not isinstance(given, DTensor):
        sharding = replicated(fake.dim(), groups.mesh)
        return Entrance(sharding, placements_of(sharding, fake.shape, device_mesh), groups)
    placements = whole_placements(given.placements)
    return Entrance(sharding_of_placements(placements, fake.dim(), device_mesh), placements, groups)


def _source(text: str) -> str:
    """Return what a tangent, a gradient or a new value belongs to."""
    for prefix in ("__output_tangent(", "__grad(", "__input_mutation("):
        if text.startswith(prefix):
            return text.removeprefix(prefix).removesuffix(")")
    return text


def _written(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Return the positions of the inputs that a graph writes to."""
    nodes = module.graph.find_nodes(op="placeholder")
    written = {
        node.args[0]
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    }
    return tuple(index for index, node in enumerate(nodes) if node in written)


def _text(program: str, frame: Frame) -> str:
    lines = [f"input {i}: {sharding}" for i, sharding in enumerate(frame.inputs)]
    lines += [f"output {i}: {sharding}" for i, sharding in enumerate(frame.outputs)]
    return "\n".join([program, *lines])
