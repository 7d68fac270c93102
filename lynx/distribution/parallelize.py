"""`lynx.parallelize`: a model whose parameters lie on a mesh, compiled as if they were whole."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from lynx.ir.errors import UsageError
from lynx.ir.location import Location
from lynx.passes.distribution.annotations import Annotation
from lynx.settings import read_settings

from .callers import user_location
from .groups import Groups
from .materialize import Materializer
from .meshes import check_world
from .plans import INPUTS, Plan, annotation_for, read_plan
from .stand_ins import StandIn, real_tensors, stand_in
from .step import groups_of

_M = TypeVar("_M", bound=torch.nn.Module)
_Inputs = Mapping[str, str] | Sequence[str] | None


def parallelize(
    model: _M,
    mesh: DeviceMesh,
    plan: Plan | Mapping[str, str] | str | os.PathLike[str],
    *,
    inputs: _Inputs = None,
    init: str | Mapping[str, torch.Tensor] = "keep",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> _M:
    """Distribute a model over a mesh and compile it; returns the model.

    `plan` says how parameters and buffers lie, by patterns over their names, and inputs by
    `inputs.0` or `inputs.name`; the last pattern that matches holds, and what none matches is
    whole on each process. It may be the text of a plan or the path of a file. `inputs` are the
    shardings of inputs, by position or by name, which count as the last lines of the plan.

    `init="keep"` takes the parameters as they are on the first process of the mesh. With
    `init="meta"` those on the meta device are made module by module, by `reset_parameters`, and
    each process keeps its part at once; with a state dict they are taken from there.

    The parameters become `DTensor`s, so optimizers, `clip_grad_norm_` and checkpoints work as
    usual. A call takes whole tensors, the same on each process, or `DTensor`s, and returns
    `DTensor`s. The model is compiled as a whole (`mode` and `options` are those of
    `torch.compile`), as one device would run it: DTensor's own rules are not asked.

    `UsageError`, before anything is changed, where the plan does not fit the model or the mesh.
    """
    loc = user_location()
    settings = read_settings(options, mode)
    if not dist.is_initialized():
        raise UsageError("no-processes", "torch.distributed is not initialized", loc)
    check_world(mesh, dist.get_world_size())
    groups = groups_of(mesh, settings)
    rules = _with_inputs(read_plan(plan, loc), inputs, loc)
    tensors = _named_tensors(model)
    rules.check(tensors, "parameters")
    _check_inputs(model, rules)
    annotations = _annotations(tensors, rules, groups.mesh)
    Materializer(model, groups, annotations, loc).run(init)
    model.forward = _Forward(
        model, model.forward, rules, groups, _chosen(mode, options), annotations
    )
    return model


def is_parallelized(function: Any) -> bool:
    """Whether a function is a model that `parallelize` returned."""
    return isinstance(getattr(function, "forward", None), _Forward)


def _chosen(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    if mode is not None:
        return {"mode": mode}
    return {} if options is None else {"options": dict(options)}


def _with_inputs(plan: Plan, inputs: _Inputs, loc: Location) -> Plan:
    if inputs is None:
        return plan
    pairs = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    more = {f"{INPUTS}{str(key).removeprefix(INPUTS)}": text for key, text in pairs}
    return Plan((*plan.rules, *read_plan(more, loc).rules))


def _named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, each under every name that it has."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))


def _annotations(
    tensors: Mapping[str, torch.Tensor], plan: Plan, mesh: Any
) -> dict[str, Annotation]:
    """Return what the plan says of tensors; `UsageError` if it says two things of one."""
    found: dict[str, Annotation] = {}
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        rule = plan.rule_for([name])
        if rule is None:
            continue
        found[name] = annotation_for(rule.sharding, name, tensor.shape, mesh, rule.loc)
        other = first.setdefault(id(tensor), name)
        if found[other].sharding != found[name].sharding:
            raise UsageError(
                "contradiction",
                f"'{other}' and '{name}' are one tensor: the plan says {found[other].sharding} and "
                f"{found[name].sharding}",
                rule.loc,
            )
    return found


def _said_of(
    model: torch.nn.Module, annotations: Mapping[str, Annotation]
) -> dict[tuple[int, str], Annotation]:
    """Return what is said of each parameter and buffer, under whichever of its names.

    Keys are the module that holds it, by its identity, and its name there.
    """
    known = {
        id(tensor): annotations[name]
        for name, tensor in _named_tensors(model).items()
        if name in annotations
    }
    return {
        (id(module), key): known[id(tensor)]
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for key, tensor in table.items()
        if id(tensor) in known
    }


def _check_inputs(model: torch.nn.Module, plan: Plan) -> None:
    """Raise `UsageError` for a rule about an input that the model does not take."""
    names: list[str] = []
    for index, parameter in enumerate(inspect.signature(model.forward).parameters.values()):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            return  # anything may come
        names += [f"{INPUTS}{index}", f"{INPUTS}{parameter.name}"]
    heads = [
        rule
        for rule in plan.rules
        if rule.pattern.startswith(INPUTS) and rule.pattern.count(".") == 1
    ]
    Plan(tuple(heads)).check(names, "inputs")


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function or method for which Dynamo compiles anew.

    Stand-ins of two models of one class look alike, but plans and meshes may differ, of which
    Dynamo's guards know nothing; it keeps what it compiled with the code object.
    """
    if isinstance(function, types.MethodType):
        return types.MethodType(_apart(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    made = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


@dataclass
class _Forward:
    """Calls the compiled forward of a model with stand-ins for its parameters and inputs.

    `annotations` are those of parameters and buffers, by one of the names of each.
    """

    model: torch.nn.Module
    original: Callable[..., Any]
    plan: Plan
    groups: Groups
    compile_options: dict[str, Any]
    annotations: Mapping[str, Annotation]
    _inputs: dict[tuple[Any, ...], StandIn] = field(default_factory=dict)
    _tensors: dict[tuple[int, str], tuple[Any, StandIn]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.original)
        self.compiled: Callable[..., Any] = torch.compile(
            _apart(self.original),
            backend="lynx",
            fullgraph=True,
            dynamic=False,
            **self.compile_options,
        )
        self.__signature__ = self.signature
        self.run: Callable[..., Any] = torch.compiler.disable(self._run)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        """Return the forward of a copy of the model, which is compiled anew, on the same mesh."""
        model = copy.deepcopy(self.model, memo)
        original = self.original
        if inspect.ismethod(original) and original.__self__ is self.model:
            original = types.MethodType(original.__func__, model)
        else:
            original = copy.deepcopy(original, memo)
        rest = (self.plan, self.groups, self.compile_options, self.annotations)
        return _Forward(model, original, *rest)

    @functools.cached_property
    def said(self) -> Mapping[tuple[int, str], Annotation]:
        """What is said of each parameter and buffer, see `_said_of`."""
        return _said_of(self.model, self.annotations)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the model on whole or distributed inputs."""
        return self.run(*arguments, **keywords)

    def _run(self, *arguments: Any, **keywords: Any) -> Any:
        positions = list(self.signature.parameters)
        given = [
            self._input(item, (str(index), *positions[index : index + 1]))
            for index, item in enumerate(arguments)
        ]
        named = {
            key: self._input(
                item, (key, *([str(positions.index(key))] if key in positions else []))
            )
            for key, item in keywords.items()
        }
        replaced = list(self._replace())
        try:
            return real_tensors(self.compiled(*given, **named))
        finally:
            for table, key, tensor in replaced:
                table[key] = tensor

    def _replace(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Put stand-ins into the place of distributed parameters and buffers."""
        for module in self.model.modules():
            for table in (module._parameters, module._buffers):
                for key, tensor in table.items():
                    if isinstance(tensor, DTensor):
                        yield table, key, tensor
                        table[key] = self._stand_in(module, key, tensor)

    def _stand_in(self, module: torch.nn.Module, key: str, tensor: DTensor) -> Any:
        known = self._tensors.get((id(module), key))
        if known is None or known[0] is not tensor or not known[1].fits(tensor):
            shared = next((one for owner, one in self._tensors.values() if owner is tensor), None)
            annotation = self.said.get((id(module), key))
            made = shared or stand_in(tensor, self.groups.device_mesh, annotation, lies=True)
            known = self._tensors[id(module), key] = (tensor, made)
        return known[1].holding(tensor)

    def _input(self, item: Any, names: tuple[str, ...]) -> Any:
        """Return an input with stand-ins for the tensors in it that the plan speaks of."""
        if isinstance(item, torch.Tensor):
            return self._tensor(item, tuple(f"{INPUTS}{name}" for name in names))
        if isinstance(item, dict):
            return {
                key: self._input(part, tuple(f"{name}.{key}" for name in names))
                for key, part in item.items()
            }
        if type(item) in (list, tuple):
            return type(item)(
                self._input(part, tuple(f"{name}.{index}" for name in names))
                for index, part in enumerate(item)
            )
        return item

    def _tensor(self, tensor: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
        rule = self.plan.rule_for(names)
        if rule is None and not isinstance(tensor, DTensor):
            return tensor
        annotation = None
        if rule is not None:
            annotation = annotation_for(
                rule.sharding, names[-1], tensor.shape, self.groups.mesh, rule.loc
            )
        key = (names, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device,
               tensor.requires_grad)  # fmt: skip
        made = self._inputs.get(key)
        if made is None:
            made = self._inputs[key] = stand_in(tensor, self.groups.device_mesh, annotation)
        return made.holding(tensor)
