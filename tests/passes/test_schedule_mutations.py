"""Random changes of schedules: all that could do harm are refused before anything runs.

What the verifier lets pass runs on a transport that does its worst, and gives the same bits.
"""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Callable, Sequence

import pytest
import torch

from lynx.ir.errors import CompileError, LynxError
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.ir.program_verifier import verify_program
from lynx.pass_context import pass_context
from lynx.passes import parse_pipeline
from lynx.passes.distribution.ranks import verify_ranks
from tests.hostile import HangError, HostileMesh
from tests.schedules import RECIPES, local_inputs, local_step

PASSES = "prefetch-gathers,schedule-overlap,lower,reinplace,plan-memory"
BUCKETED = ("dp+tp", "fsdp+tp")
SIZES = {"batch": 7, "width": 6, "hidden": 9}
COUNT = 250
"""Mutations of each recipe: 1,000 in all."""


@functools.cache
def programs(recipe: str) -> tuple[Program, ...]:
    found = []
    first = "split-collectives,bucket-collectives" if recipe in BUCKETED else "split-collectives"
    for device in range(RECIPES[recipe][1].device_count):
        graph = local_step(recipe, device, **SIZES)
        module = parse_pipeline(f"{first},{PASSES}").run(graph, pass_context(graph))
        assert isinstance(module, Program)
        found.append(module)
    return tuple(found)


def outputs(recipe: str, modules: Sequence[Program], late: bool) -> list[list[torch.Tensor]]:
    inputs = [local_inputs(module.graph, n) for n, module in enumerate(modules)]
    return HostileMesh(modules, inputs, RECIPES[recipe][1], late).run()


@functools.cache
def expected(recipe: str) -> list[list[torch.Tensor]]:
    return outputs(recipe, programs(recipe), late=False)


def is_harmless(recipe: str, modules: Sequence[Program]) -> bool:
    """Whether programs end with the right bits, whenever communication arrives."""
    for late in (False, True):
        try:
            found = outputs(recipe, modules, late)
        except HangError:
            return False
        pairs = zip(expected(recipe), found, strict=True)
        if not all(all(map(torch.equal, ours, theirs)) for ours, theirs in pairs):
            return False
    return True


# mutations of the text of one device's program


def _steps(lines: list[str]) -> list[int]:
    """Return where steps begin and end that take one line."""
    return [n for n, line in enumerate(lines) if re.search(r"\)? +-> |-> ", line) and " = " in line]


def _with(lines: list[str], word: str) -> list[int]:
    return [n for n in _steps(lines) if word in lines[n]]


def move_wait(lines: list[str], seed: random.Random) -> None:
    line = lines.pop(seed.choice(_with(lines, " = wait ")))
    lines.insert(seed.choice(_steps(lines)), line)


def move_start(lines: list[str], seed: random.Random) -> None:
    line = lines.pop(seed.choice(_with(lines, " = start_")))
    lines.insert(seed.choice(_steps(lines)), line)


def swap_starts(lines: list[str], seed: random.Random) -> None:
    first, second = seed.sample(_with(lines, " = start_"), 2)
    lines[first], lines[second] = lines[second], lines[first]


def shrink_buffer(lines: list[str], seed: random.Random) -> None:
    place = seed.choice(_with(lines, "arena["))
    found = list(re.finditer(r"arena\[(\d+) : (\d+)\]", lines[place]))
    chosen = seed.choice(found)
    begin, end = int(chosen[1]), int(chosen[2])
    less = f"arena[{begin} : {max(begin, end - seed.choice([4, 16, 64]))}]"
    lines[place] = lines[place][: chosen.start()] + less + lines[place][chosen.end() :]


def move_buffer(lines: list[str], seed: random.Random) -> None:
    place = seed.choice(_with(lines, "arena["))
    chosen = seed.choice(list(re.finditer(r"arena\[(\d+) : (\d+)\]", lines[place])))
    begin, end = int(chosen[1]), int(chosen[2])
    by = seed.choice([-256, -128, -64, 64, 128, 256])
    moved = f"arena[{begin + by} : {end + by}]"
    lines[place] = lines[place][: chosen.start()] + moved + lines[place][chosen.end() :]


def drop_dependency(lines: list[str], seed: random.Random) -> None:
    """Let a wait forget an operand, or a reader read what is in flight."""
    place = seed.choice(_with(lines, " = wait "))
    results, pending = re.match(r" *(.*?) = wait \[(.*?)\]", lines[place]).groups()  # type: ignore[union-attr]  # waits look so
    if seed.random() < 0.4:
        lines[place] = re.sub(r"\], \[%\w+(, )?", "], [", lines[place], count=1)
        return
    result, flying = seed.choice(list(zip(results.split(", "), pending.split(", "), strict=True)))
    for n in range(place + 1, len(lines)):
        lines[n] = re.sub(rf"{result}\b", flying, lines[n])


def drop_wait(lines: list[str], seed: random.Random) -> None:
    del lines[seed.choice(_with(lines, " = wait "))]


def _defines_before_use(lines: list[str]) -> bool:
    """Whether each step comes after those that it names, so that the text can be read."""
    defined = set(re.findall(r"%\w+(?=:)", "\n".join(lines)))
    for line in lines:
        found = re.match(r"  (%[\w%, ]+) = (.*?)(  -> |$)", line)
        if found is None:
            continue
        if not {n for n in re.findall(r"%\w+", found[2]) if not re.match(r"%x\d", n)} <= defined:
            return False
        defined.update(re.findall(r"%\w+", found[1]))
    return True


def mutated(
    text: str, mutation: Callable[[list[str], random.Random], None], seed: random.Random
) -> list[str]:
    """Return the lines after a mutation, if possible one that leaves a text that can be read."""
    for _ in range(20):
        lines = text.split("\n")
        mutation(lines, seed)
        if "\n".join(lines) != text and _defines_before_use(lines):
            break
    return lines


MUTATIONS: tuple[Callable[[list[str], random.Random], None], ...] = (
    move_wait,
    move_start,
    swap_starts,
    shrink_buffer,
    move_buffer,
    drop_dependency,
    drop_wait,
)


def without_frees(text: str) -> str:
    """Return the text without the notes of where names are last used, which moves would break."""
    return re.sub(r"  free \([^)]*\)", "", text)


@pytest.mark.parametrize("recipe", ["fsdp", "tp", "dp+tp", "fsdp+tp"])
def test_every_harmful_mutation_is_refused(recipe: str) -> None:
    mesh = RECIPES[recipe][1]
    originals = programs(recipe)
    verify_ranks(originals, mesh)
    assert is_harmless(recipe, originals)
    texts = [without_frees(print_program(module)) for module in originals]
    seed = random.Random(recipe)
    counts: collections.Counter[str] = collections.Counter()
    for number in range(COUNT):
        device = seed.randrange(len(originals))
        mutation = MUTATIONS[number % len(MUTATIONS)]
        lines = mutated(texts[device], mutation, seed)
        modules = list(originals)
        try:
            modules[device] = parse_program("\n".join(lines))
            verify_ranks(modules, mesh)
        except LynxError:
            counts["refused"] += 1
            continue
        counts["same" if "\n".join(lines) == texts[device] else mutation.__name__] += 1
        assert is_harmless(recipe, modules), (mutation.__name__, device, "\n".join(lines))
    assert counts["refused"] > COUNT // 3
    assert counts["move_wait"] + counts["move_start"] > 0  # the verifier is not just strict


def test_the_transport_has_teeth() -> None:
    """The judge of the test above finds fault with most of what is refused."""
    recipe = "dp+tp"
    originals = programs(recipe)
    texts = [without_frees(print_program(module)) for module in originals]
    seed = random.Random(1)
    faults: collections.Counter[str] = collections.Counter()
    for number in range(60):
        device = seed.randrange(len(originals))
        mutation = (swap_starts, move_buffer, drop_dependency)[number % 3]
        lines = mutated(texts[device], mutation, seed)
        modules = list(originals)
        try:
            modules[device] = parse_program("\n".join(lines))
        except LynxError:
            continue
        try:
            verify_ranks(modules, RECIPES[recipe][1])
        except LynxError:
            try:
                faults["harmless" if is_harmless(recipe, modules) else "harmful"] += 1
            except (LynxError, KeyError, RuntimeError):
                faults["harmful"] += 1  # it does not even run
    assert faults["harmful"] > 10


def test_memory_that_was_written_in_place_is_seen_to_be_overwritten() -> None:
    text = """
program @p(%a: f32[4]) {
  %0 = exp %a : f32[4]  -> arena[0 : 16]
  %1 = sin %0 : f32[4]  -> in_place(%0)
  %2 = cos %a : f32[4]  -> arena[OFFSET : END]
  %3 = add %1, %2 : f32[4]  -> fresh
  return %3
  arena cpu: 128
}
"""
    verify_program(parse_program(text.replace("OFFSET", "64").replace("END", "80")))
    with pytest.raises(CompileError) as raised:
        verify_program(parse_program(text.replace("OFFSET", "0").replace("END", "16")))
    assert raised.value.code == "overwritten"
