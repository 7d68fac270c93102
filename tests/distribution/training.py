"""What runs on each process in the tests of whole models: training by plans, beside one process.

A list of cases runs in one group of processes, and each case says what was wrong, or nothing.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import fnmatch
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

import lynx
from lynx.distribution.meshes import mesh_of, placements_of
from lynx.ir.ops.communication import Communication
from lynx.ir.ops.schedule import Start
from lynx.ir.sharding import parse_sharding
from lynx.records import RECORDS
from tests.distribution import models
from tests.distribution.harness import spec_for

STEPS = 5
RATE = 1e-3
TOLERANCE = 2e-5
STRICT = {"strict": True, "collective_timeout": 60}

COLUMNS, ROWS = "tp, _", "_, tp"
TENSOR = {
    # our own
    "*.[qkv].weight": COLUMNS, "*.[qkv].bias": "tp", "*.o.weight": ROWS,
    "*.qkv.weight": COLUMNS,
    "*up.weight": COLUMNS, "*up.bias": "tp", "*down.weight": ROWS,
    "tokens.weight": COLUMNS, "head.weight": COLUMNS,
    "blocks.*.a.weight": "tp, ...", "blocks.*.b.weight": "_, tp, ...",
    "blocks.*.norm_a.weight": "tp", "blocks.*.norm_a.bias": "tp", "blocks.*.norm_a.running_*": "tp",
    # llama, mixtral
    "*.[qkv]_proj.weight": COLUMNS, "*.o_proj.weight": ROWS,
    "*.gate_proj.weight": COLUMNS, "*.up_proj.weight": COLUMNS, "*.down_proj.weight": ROWS,
    "*.experts.gate_up_proj": "tp, _, _", "*.experts.down_proj": "tp, _, _",
    "*.embed_tokens.weight": COLUMNS, "lm_head.weight": COLUMNS,
    # bert, vit
    "*.query.weight": COLUMNS, "*.key.weight": COLUMNS, "*.value.weight": COLUMNS,
    "*.query.bias": "tp", "*.key.bias": "tp", "*.value.bias": "tp",
    "*.intermediate.dense.weight": COLUMNS, "*.intermediate.dense.bias": "tp",
    "*.output.dense.weight": ROWS,
    # t5
    "*Attention.q.weight": COLUMNS, "*Attention.k.weight": COLUMNS,
    "*Attention.v.weight": COLUMNS, "*Attention.o.weight": ROWS,
    "*.wi.weight": COLUMNS, "*.wo.weight": ROWS, "shared.weight": COLUMNS,
}  # fmt: skip
"""Tensor parallelism by names, of all models here; what a model does not have is left out."""

NORMS = ("*norm*", "*LayerNorm")
"""Modules that take what lies in pieces of the sequence in tensor and sequence parallelism."""

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, a plan, and the axes of the mesh.

    `door` is `plan`, or `dtensor` where the user has distributed parameters and inputs. `mode` is
    `train`, or `eval`.
    """

    model: str
    plan: str
    axes: tuple[tuple[str, int], ...]
    door: str = "plan"
    mode: str = "train"

    def __str__(self) -> str:
        mesh = "x".join(f"{name}{size}" for name, size in self.axes)
        rest = [one for one in (self.door, self.mode) if one not in ("plan", "train")]
        return " ".join([self.model, self.plan, mesh, *rest])


@dataclass
class Outcome:
    """What came of a case: `wrong` is empty if all was equal; what was communicated; seconds."""

    case: str
    wrong: str
    calls: dict[str, int]
    seconds: float


# models


def _ours(name: str, inputs: tuple[str, ...]) -> tuple[nn.Module, Batch]:
    model, given = models.MADE[name]()
    assert not isinstance(given, Mapping)
    return model, dict(zip(inputs, given, strict=False))


def _sized(**fields: Any) -> tuple[nn.Module, Batch]:
    model, given = models.transformer(**fields)
    assert not isinstance(given, Mapping)
    return model, {"ids": given[0], "targets": given[1]}


def _family(name: str, dropout: float = 0.0, **changes: Any) -> tuple[nn.Module, Batch]:
    """Make a model of Hugging Face transformers, which is imported by who asks for one."""
    import tests.models.families as families  # noqa: PLC0415 - takes seconds

    family = families.FAMILIES[name]
    before = family.config
    families.FAMILIES[name] = dataclasses.replace(family, config={**before, **changes})
    try:
        model: nn.Module = families.build(name, dropout=dropout)
    finally:
        families.FAMILIES[name] = family
    torch.manual_seed(1)
    return model, family.inputs(4, 8)


class Perceptron(nn.Module):
    """Two products, a norm and a loss: what DTensor's own propagation knows as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.up, self.down = nn.Linear(12, 40), nn.Linear(40, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return how far the result is from the input."""
        y = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return (y - x).square().mean()


def _perceptron() -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    return Perceptron(), {"x": torch.randn(8, 4, 12)}


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "gpt": lambda: _ours("gpt", ("ids", "targets")),
    "six heads": lambda: _sized(vocabulary=101, width=36, heads=6, batch=5, length=7, layers=1),
    "vocabulary": lambda: _sized(
        vocabulary=1021, width=16, heads=2, batch=2, length=8, layers=1, tied=True
    ),
    "dropout gpt": lambda: _ours("dropout gpt", ("ids", "targets")),
    "conv net": lambda: _ours("conv net", ("images", "labels")),
    "perceptron": _perceptron,
    "llama": lambda: _family("llama"),
    "llama 9/3": lambda: _family(
        "llama",
        hidden_size=72,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=1,
    ),
    "bert": lambda: _family("bert"),
    "dropout bert": lambda: _family("bert", dropout=0.3, num_hidden_layers=1),
    "t5": lambda: _family("t5"),
    "vit": lambda: _family("vit"),
    "mixtral": lambda: _family("mixtral"),
}


def batch_of(given: Batch, step: int) -> dict[str, Any]:
    """Return the batch of a step: the one given, turned by so many places."""
    return {
        key: one.roll(step, -1).clone() if isinstance(one, torch.Tensor) else one
        for key, one in given.items()
    }


# plans


def plan_of(case: Case, model: nn.Module, inputs: Batch) -> dict[str, str]:
    """Return the plan of a case, without patterns that match nothing in the model."""
    names = {name: one.dim() for name, one in model.named_parameters(remove_duplicate=False)}
    plan: dict[str, str] = {}
    if "tp" in case.plan:
        for pattern, entries in TENSOR.items():
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                plan[pattern] = entries
    if "fsdp" in case.plan:
        plan = {name: _sharded(spec_for(plan, name, rank), rank) for name, rank in names.items()}
    if "dp" in case.plan:
        plan |= {f"inputs.{name}": "dp, ..." for name in inputs}
    if "rows" in case.plan:
        plan["inputs.images"] = "_, _, tp, _"
    return plan


def _sharded(entry: str | None, rank: int) -> str:
    """Return an entry of a plan with `dp` in its first place that nothing else cuts."""
    entries = (entry or ", ".join(["_"] * rank)).split(", ")
    place = entries.index("_") if "_" in entries else 0
    entries[place] = "dp" if entries[place] == "_" else f"({entries[place]}, dp)"
    return ", ".join(entries)


def cut_sequences(model: nn.Module) -> None:
    """Let what norms take lie in pieces of the sequence, where it has one."""

    def constrain(_: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return lynx.constrain(given[0], "_, tp, _")

    for name, module in model.named_modules():
        if not list(module.children()) and any(fnmatch.fnmatchcase(name, one) for one in NORMS):
            module.register_forward_pre_hook(constrain)


def distributed(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, str]) -> nn.Module:
    """Distribute the parameters of a model as a user of DTensor would, and compile it."""
    made: dict[int, nn.Parameter] = {}
    for path, module in list(model.named_modules()):
        for key, one in list(module.named_parameters(recurse=False)):
            name = f"{path}.{key}".lstrip(".")
            entry = spec_for(plan, name, one.dim()) or ", ".join(["_"] * one.dim())
            sharding = parse_sharding(entry, mesh_of(mesh))
            if id(one) not in made:
                spread = distribute_tensor(one.data, mesh, placements_of(sharding, one.shape, mesh))
                made[id(one)] = nn.Parameter(spread)
            setattr(module, key, made[id(one)])
        for key, one in list(module.named_buffers(recurse=False)):
            setattr(module, key, distribute_tensor(one, mesh))
    model.forward = torch.compile(  # type: ignore[method-assign]
        model.forward, backend="lynx", fullgraph=True, dynamic=False, options=STRICT
    )
    return model


# runs


def run(cases: list[Case]) -> list[Outcome]:
    """Run cases one after the other; nothing that one does wrong stops those behind it."""
    return [_run(case) for case in cases]


def _run(case: Case) -> Outcome:
    torch.compiler.reset()
    RECORDS.reset()
    start = time.perf_counter()
    try:
        wrong = _checked(case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
    return Outcome(str(case), wrong, _calls(), time.perf_counter() - start)


def _calls() -> dict[str, int]:
    """Return how often each kind of communication is in the compiled programs."""
    found: collections.Counter[str] = collections.Counter()
    for record in RECORDS.graphs:
        if record.program is not None:
            for op in record.program.ops:
                if isinstance(op, Start | Communication):
                    kind = op.name.removeprefix("start_").removeprefix("local_")
                    found[f"{record.kind} {kind} {'+'.join(op.axes)}"] += 1
    return dict(sorted(found.items()))


def _checked(case: Case) -> str:
    names, sizes = zip(*case.axes, strict=True)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    alone, given = MODELS[case.model]()
    alone.train(case.mode == "train")
    with torch.no_grad():
        alone(**given)  # what models set up when they first run is not for tracing
    model = copy.deepcopy(alone)
    if "sp" in case.plan.split("+"):
        cut_sequences(model)
    plan = plan_of(case, model, given)
    if case.door == "plan":
        model = lynx.parallelize(model, mesh, plan, options=STRICT)
    else:
        model = distributed(model, mesh, plan)
    place = _inputs_as(case, mesh, plan)
    if case.mode == "eval":
        return _compare_eval(model, alone, given, place)
    return _compare_training(model, alone, given, place)


def _inputs_as(
    case: Case, mesh: DeviceMesh, plan: Mapping[str, str]
) -> Callable[[Batch], dict[str, Any]]:
    """Return what makes of a batch what the door takes."""
    if case.door == "plan":
        return dict

    def place(batch: Batch) -> dict[str, Any]:
        spread = {}
        for key, one in batch.items():
            entry = spec_for(plan, f"inputs.{key}", one.dim()) or ", ".join(["_"] * one.dim())
            sharding = parse_sharding(entry, mesh_of(mesh))
            spread[key] = distribute_tensor(one, mesh, placements_of(sharding, one.shape, mesh))
        return spread

    return place


def _compare_eval(
    model: nn.Module, alone: nn.Module, given: Batch, place: Callable[[Batch], dict[str, Any]]
) -> str:
    for step in range(2):
        batch = batch_of(given, step)
        with torch.no_grad() if step else torch.inference_mode():
            pairs = zip(_tensors(model(**place(batch))), _tensors(alone(**batch)), strict=True)
            for number, (a, b) in enumerate(pairs):
                _check(f"output {number} of step {step}", a, b)
    return ""


def _compare_training(
    model: nn.Module, alone: nn.Module, given: Batch, place: Callable[[Batch], dict[str, Any]]
) -> str:
    # Gradients that are zero but for rounding would be made large by a small `eps`.
    optimizers = [
        torch.optim.AdamW(one.parameters(), RATE, eps=1e-4, foreach=False) for one in (model, alone)
    ]
    for step in range(STEPS):
        batch = batch_of(given, step)
        torch.manual_seed(step)
        ours = _tensors(model(**place(batch)))
        torch.manual_seed(step)
        theirs = _tensors(alone(**batch))
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            _check(f"output {number} of step {step}", a, b)
        for outputs in (ours, theirs):
            _loss(outputs).backward()
        _compare_gradients(model, alone, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for kind in ("named_parameters", "named_buffers"):
        for (name, a), (_, b) in zip(getattr(model, kind)(), getattr(alone, kind)(), strict=True):
            _check(f"{name} after {STEPS} steps", a, b, TOLERANCE)
    return ""


def _compare_gradients(model: nn.Module, alone: nn.Module, step: int) -> None:
    wanted = {name: one.grad for name, one in alone.named_parameters()}
    # Those that cancel out are noise: what counts is the size of the largest.
    scale = max(float(one.abs().max()) for one in wanted.values() if one is not None)
    for name, one in model.named_parameters():
        expected = wanted[name]
        if expected is None:
            assert one.grad is None, f"a gradient of {name}"
            continue
        assert isinstance(one.grad, DTensor), f"no distributed gradient of {name}"
        assert one.grad.placements == one.placements, name  # type: ignore[attr-defined]
        _check(f"gradient {step} of {name}", one.grad, expected, TOLERANCE * scale)


def _check(what: str, a: torch.Tensor, b: torch.Tensor, tolerance: float | None = None) -> None:
    a, b = _whole(a.detach()), b.detach()
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what}: {a.shape} {a.dtype}, not {b.shape}"
    if tolerance is None:
        finite = b[b.isfinite()].double()
        tolerance = TOLERANCE * float(finite.abs().max()) if finite.numel() else 0.0
    torch.testing.assert_close(
        a.double(), b.double(), rtol=TOLERANCE, atol=tolerance, equal_nan=True,
        msg=lambda text: f"{what}: {' '.join(text.split())[:300]}",
    )  # fmt: skip


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    return outputs[0]


def _tensors(called: Any) -> list[torch.Tensor]:
    """Return the tensors that a model returned, in order."""
    if isinstance(called, torch.Tensor):
        return [called]
    values = called.values() if isinstance(called, Mapping) else called
    if not isinstance(called, Mapping | tuple | list):
        return []
    return [tensor for value in values for tensor in _tensors(value)]
