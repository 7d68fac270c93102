"""Give each process its parts of the parameters of a model, which may not exist as a whole yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from lynx.ir.errors import UsageError
from lynx.ir.location import Location
from lynx.ir.sharding import Sharding, replicated
from lynx.passes.distribution.annotations import Annotation

from .gathering import piece
from .groups import Groups
from .meshes import placeable, placements_of
from .torch_internals import from_part, local_part, spec, spec_of


@dataclass
class Materializer:
    """Replaces the parameters of a model by distributed ones, and annotated buffers too."""

    model: torch.nn.Module
    groups: Groups
    annotations: Mapping[str, Annotation]
    loc: Location
    _made: dict[int, Any] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # so that no id is used twice

    def run(self, init: str | Mapping[str, torch.Tensor]) -> None:
        """Distribute all parameters; `init` is `keep`, `meta`, or a state dict."""
        if isinstance(init, str) and init not in ("keep", "meta"):
            message = f"init takes 'keep', 'meta' or a state dict, got {init!r}"
            raise UsageError("bad-init", message, self.loc)
        modules = dict(self.model.named_modules())
        if isinstance(init, str):
            self._check(modules, init)
        else:
            self._check_state(init)
        if init == "meta":
            state = self.groups.control().all_gather_bytes(
                torch.random.get_rng_state().numpy().tobytes(), "the state of the generator"
            )[0]
            torch.random.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        for path, module in modules.items():
            if init == "meta":
                self._reset(module)
            self._distribute(path, module, init)

    def _check(self, modules: Mapping[str, torch.nn.Module], init: str) -> None:
        """Raise `UsageError` if something cannot be materialised, before anything is."""
        for path, module in modules.items():
            missing = [key for key, tensor in _own(module) if tensor.is_meta]
            if missing and init == "keep":
                name = f"{path}.{missing[0]}".lstrip(".")
                message = f"'{name}' is on the meta device: give init='meta' or a state dict"
                raise UsageError("meta-parameter", message, self.loc)
            if missing and _initializer(self.model, module) is None:
                raise UsageError(
                    "no-initializer",
                    f"'{path}' ({type(module).__name__}) has no reset_parameters for "
                    f"{', '.join(missing)}: add it, or give a state dict as init",
                    self.loc,
                )

    def _check_state(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self.model.named_parameters():
            given = state.get(name)
            if given is None:
                raise UsageError("missing-tensor", f"the state dict has no '{name}'", self.loc)
            if given.shape != tensor.shape:
                message = f"'{name}' is {list(given.shape)}, expected {list(tensor.shape)}"
                raise UsageError("missing-tensor", message, self.loc)

    def _reset(self, module: torch.nn.Module) -> None:
        """Make the module's own tensors, and give them their first values."""
        missing = [(key, tensor) for key, tensor in _own(module) if tensor.is_meta]
        fresh = [pair for pair in missing if id(pair[1]) not in self._made]
        if not fresh:
            return
        for key, tensor in fresh:
            table: dict[str, Any] = _table(module, key)
            real: Any = torch.empty_like(tensor, device=self.groups.device_mesh.device_type)
            self._kept.append(tensor)
            self._made[id(tensor)] = None
            if isinstance(tensor, torch.nn.Parameter):
                real = torch.nn.Parameter(real, requires_grad=tensor.requires_grad)
            real.lynx_stands_for = id(tensor)
            table[key] = real
        initialize = _initializer(self.model, module)
        assert initialize is not None, module
        with torch.no_grad():
            initialize()

    def _distribute(
        self, path: str, module: torch.nn.Module, init: str | Mapping[str, torch.Tensor]
    ) -> None:
        for key, tensor in _own(module):
            name = f"{path}.{key}" if path else key
            is_parameter = key in module._parameters
            table = _table(module, key)
            identity = getattr(tensor, "lynx_stands_for", id(tensor))
            known = self._made.get(identity)
            if known is not None:
                table[key] = known
                continue
            value: torch.Tensor = tensor
            if not isinstance(init, str) and name in init:
                value = init[name].to(tensor.dtype)
            annotation = self.annotations.get(name)
            if not is_parameter and annotation is None:
                if value is not tensor:
                    table[key] = value.to(self.groups.device_mesh.device_type, copy=True)
                continue
            made: Any = self._part(name, value, annotation, from_first=init == "keep")
            if is_parameter:
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            self._kept.append(tensor)
            self._made[identity] = table[key] = made

    def _part(
        self, name: str, tensor: torch.Tensor, annotation: Annotation | None, from_first: bool
    ) -> DTensor:
        """Return the distributed tensor of which this process holds its part."""
        mesh = self.groups.mesh
        sharding: Sharding = (
            replicated(tensor.dim(), mesh) if annotation is None else annotation.sharding
        )
        stored = placeable(sharding, mesh)
        placements = placements_of(stored, tensor.shape, self.groups.device_mesh)
        if isinstance(tensor, DTensor):
            moved: DTensor = tensor.redistribute(self.groups.device_mesh, placements)
            return from_part(local_part(moved).detach(), spec_of(moved))
        value = tensor.detach().to(self.groups.device_mesh.device_type)
        if from_first:
            value = value.clone(memory_format=torch.contiguous_format)
            self._from_first(value)
        part = piece(value, stored, mesh, self.groups.coordinates)
        if part is value:
            part = value.clone(memory_format=torch.contiguous_format)
        stride = torch.empty(tensor.shape, device="meta").stride()
        lies = spec(self.groups.device_mesh, placements, tensor.shape, stride, tensor.dtype)
        return from_part(part, lies)

    def _from_first(self, value: torch.Tensor) -> None:
        """Take the values of the first process of the mesh."""
        group = self.groups.group(self.groups.mesh.names)
        if group.size > 1 and value.numel():
            group.broadcast(value)


def _own(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters and buffers of a module itself."""
    tables = (module._parameters, module._buffers)
    return [(key, one) for table in tables for key, one in table.items() if one is not None]


def _table(module: torch.nn.Module, key: str) -> dict[str, Any]:
    """Return the parameters or the buffers of a module, whichever has the key."""
    table: Any = module._parameters if key in module._parameters else module._buffers
    return table  # type: ignore[no-any-return]


def _initializer(model: torch.nn.Module, module: torch.nn.Module) -> Any:
    """Return what gives a module's own parameters their first values, None if nothing does.

    Models of Hugging Face know it for all their modules.
    """
    whole = getattr(model, "_init_weights", None)
    if whole is not None:
        return lambda: whole(module)
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
