"""Judge a compiled program by eager and by `f64`: exact where it must be, accurate elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.numerics.programs import Program, default_dtype
from tests.tools.compare import describe

STEPS = 4
"""So many units in the last place may be missed, beyond twice the error of eager."""

Compiler = Callable[[Any], Any]


@dataclass
class Outcome:
    """All tensors that a program leaves behind, and the gradients, by name."""

    tensors: dict[str, Tensor]
    gradients: dict[str, Tensor]


def run(program: Program, function: Any, seed: int, exact: bool = False) -> Outcome:
    """Run forward and, where there is one, backward."""
    with default_dtype(exact):
        arguments = program.arguments(seed, exact)
        torch.manual_seed(seed)
        outputs = function(*arguments)
        named = dict(zip(program.returned, outputs, strict=True))
        named |= {f"{n} at last": x for n, x in zip(program.names, arguments, strict=True)}
        return Outcome(named, _gradients(program, arguments, list(named.values())))


def _gradients(
    program: Program, arguments: list[Tensor], results: list[Tensor]
) -> dict[str, Tensor]:
    pairs = zip(program.names, arguments, strict=True)
    leaves = {f"gradient of {n}": x for n, x in pairs if x.requires_grad and x.is_leaf}
    ends = [y for y in results if y.requires_grad and not y.is_leaf]
    if not leaves or not ends:
        return {}
    generator = torch.Generator().manual_seed(3)
    # Eighths, which every type can hold.
    seeds = [(torch.randint(-16, 17, y.shape, generator=generator) / 8).to(y.dtype) for y in ends]
    found = torch.autograd.grad(ends, list(leaves.values()), seeds, allow_unused=True)
    return {name: x for name, x in zip(leaves, found, strict=True) if x is not None}


def check(program: Program, compiler: Compiler, factors: tuple[int, ...] = (1, 1)) -> str:
    """Return how a compiled program differs from eager, empty if it does not.

    It is called once for each factor, with arguments so many times as large, if eager takes them.
    """
    torch._dynamo.reset()
    function, exact = program.function(), program.function(exact=True)
    fast = compiler(function)
    kept = []
    for seed, factor in enumerate(factors):
        larger = program.enlarged(factor)
        try:
            expected = run(larger, function, seed)
            true = run(larger, exact, seed, exact=True)
        except Exception:
            if factor == 1:
                raise
            continue
        kept.append((run(larger, fast, seed), expected, true))
    for actual, expected, true in kept:  # later calls must have left these results alone
        for difference in differences(program, actual, expected, true):
            return difference
    return ""


@dataclass(frozen=True)
class Demands:
    """What is asked of a result: eager's bits, with the signs of zeros, or `least` an accuracy."""

    exact: bool
    signs: bool
    least: float


def demands(program: Program, name: str) -> Demands:
    """Return what is asked of a result of a program."""
    text = program.source + " ".join(spec.dtype for spec in program.inputs)
    # What ends as `f64` may have been rounded to `f32` on its way.
    is_rounded = re.search(r"f32|f16|i\d+|u8|b8|arange|eye", text)
    # Eager chooses between 0 and -0 by where they lie.
    chooses = re.search(r"max|min|relu|clamp|sort|topk|median|hardtanh|threshold", text)
    return Demands(
        exact=name in program.exact,
        signs=not chooses,
        least=torch.finfo(torch.float32).eps if is_rounded else 0.0,
    )


def differences(
    program: Program, actual: Outcome, expected: Outcome, true: Outcome
) -> Iterator[str]:
    """Yield what differs, by name."""
    for name, theirs in expected.tensors.items():
        asked = demands(program, name.removesuffix(" at last"))
        if describe(actual.tensors[name]) != describe(theirs):
            yield f"{name}: {describe(actual.tensors[name])} is not {describe(theirs)}"
        elif found := difference(actual.tensors[name], theirs, true.tensors[name], asked):
            yield f"{name}: {found}"
    if list(actual.gradients) != list(expected.gradients):
        yield f"gradients of {list(actual.gradients)}, not of {list(expected.gradients)}"
    for name, theirs in expected.gradients.items():
        asked = demands(program, name)
        found = difference(actual.gradients[name], theirs, true.gradients.get(name), asked)
        if found:
            yield f"{name}: {found}"


def difference(actual: Tensor, expected: Tensor, true: Tensor | None, asked: Demands) -> str:
    """Return how the contents of a tensor differ from eager's, by more than they may."""
    ours, theirs = actual.detach(), expected.detach()
    if not theirs.dtype.is_floating_point:
        return _unequal(ours, theirs, ours == theirs)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if asked.exact:
        flipped = (theirs == 0) & (ours.signbit() != theirs.signbit())
        return _unequal(ours, theirs, same & ~flipped if asked.signs else same)
    eps = max(asked.least, torch.finfo(theirs.dtype).eps)
    return _inaccurate(ours, theirs, same, None if true is None else true.detach(), eps)


def _unequal(actual: Tensor, expected: Tensor, same: Tensor) -> str:
    if bool(same.all()):
        return ""
    place = tuple((~same).nonzero()[0].tolist())
    count = int((~same).sum())
    return f"{count} of {same.numel()} differ, at {place} {actual[place]} is not {expected[place]}"


def _inaccurate(
    actual: Tensor, expected: Tensor, same: Tensor, true: Tensor | None, eps: float
) -> str:
    ours, theirs = actual.double(), expected.double()
    finite = theirs.isfinite() & ours.isfinite()
    near = same | (finite & ((ours - theirs).abs() <= STEPS * eps * theirs.abs()))
    if bool(near.all()):
        return ""
    if true is not None and true.shape == theirs.shape:
        error, allowed = _errors(ours, theirs, true.double(), eps)
        good = (
            same
            | (finite & (error <= allowed))
            | _spared(ours, theirs, true.double(), eps, torch.finfo(expected.dtype).max)
        )
        if bool(good.all()):
            return ""
    far = ~near
    place = tuple(far.nonzero()[0].tolist())
    truth = "?" if true is None or true.shape != theirs.shape else true[place]
    return (
        f"{int(far.sum())} of {far.numel()} are off, at {place} {actual[place]} "
        f"is not {expected[place]}, in f64 {truth}"
    )


def _spared(ours: Tensor, theirs: Tensor, true: Tensor, eps: float, largest: float) -> Tensor:
    """Return where eager's infinity or NaN is an artefact, and ours is the right number.

    That is where eager overflows on its way to a result that does not, as `f64` shows: there, and
    only there, may a result be finite that eager's is not. It has to be right by itself, since
    eager has no error there that could be doubled.
    """
    fits = true.abs() <= largest
    scale = float(torch.where(fits, true, 0).abs().max()) if true.numel() else 0.0
    right = (ours - true).abs() <= STEPS * eps * true.abs() + eps * scale
    return ~theirs.isfinite() & ours.isfinite() & fits & right


def _errors(ours: Tensor, theirs: Tensor, true: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return our errors, and which would be fine; infinities and NaN were compared before."""
    finite = true.isfinite() & ours.isfinite()
    true = torch.where(finite, true, 0)
    mine = torch.where(finite, (ours - true).abs(), 0)
    eager = torch.where(finite & theirs.isfinite(), (theirs - true).abs(), 0)
    largest = float(eager.max()) if eager.numel() else 0.0
    scale = float(true.abs().max()) if true.numel() else 0.0
    return mine, 2 * largest + STEPS * eps * true.abs() + eps * scale
