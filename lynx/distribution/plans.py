"""Plans: how parameters, buffers and inputs of a model lie on a mesh, by patterns over names."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lynx.ir.errors import UsageError
from lynx.ir.location import UNKNOWN, Location
from lynx.ir.shard_rules import ShardingError, normal_sharding
from lynx.ir.sharding import Mesh, Sharding, parse_sharding
from lynx.passes.distribution.annotations import (
    INPUT_PRIORITY,
    PARAMETER_PRIORITY,
    Annotation,
)

_PRIORITY = re.compile(r"\s*priority\s+(\d+)\s*")
INPUTS = "inputs."


@dataclass(frozen=True)
class Rule:
    """One line of a plan: tensors whose name matches the pattern lie as the text says."""

    pattern: str
    sharding: str
    loc: Location = UNKNOWN

    def matches(self, names: Iterable[str]) -> bool:
        """Whether one of a tensor's names matches; `*` stands for any text, dots included."""
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names)


@dataclass(frozen=True)
class Plan:
    """Rules in order, of which the last that matches a tensor holds: exceptions come last.

    As text, a rule is a line `pattern = sharding`; what follows a `#` is a comment.
    """

    rules: tuple[Rule, ...] = ()

    def __str__(self) -> str:
        return "".join(f"{rule.pattern} = {rule.sharding}\n" for rule in self.rules)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, from which `read_plan` reads it."""
        Path(path).write_text(str(self), encoding="utf-8")

    def rule_for(self, names: Sequence[str]) -> Rule | None:
        """Return the rule that holds for a tensor of these names."""
        found = [rule for rule in self.rules if rule.matches(names)]
        return found[-1] if found else None

    def check(self, names: Iterable[str], kind: str) -> None:
        """Raise `UsageError` for a rule about tensors of a kind that matches none of their names.

        `kind` is "inputs" or "parameters", which stands for buffers too.
        """
        known = list(names)
        for rule in self.rules:
            if rule.pattern.startswith(INPUTS) != (kind == "inputs"):
                continue
            if not any(rule.matches([name]) for name in known):
                listed = ", ".join(known[:20]) + (" ..." if len(known) > 20 else "")
                raise UsageError(
                    "unmatched-pattern",
                    f"the pattern '{rule.pattern}' matches nothing; {kind} are {listed or 'none'}",
                    rule.loc,
                )


def read_plan(plan: Plan | Mapping[str, str] | str | os.PathLike[str], loc: Location) -> Plan:
    """Return the plan of a mapping, of a text, or of the file at a path.

    A text with a `=` in it is a plan, other text the path of a file. `UsageError` on a line that is
    no rule, and where one pattern is given two shardings.
    """
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        rules = [Rule(pattern, sharding, loc) for pattern, sharding in plan.items()]
    elif isinstance(plan, str) and ("=" in plan or not plan.strip()):
        rules = _parse(plan, "<plan>")
    else:
        rules = _parse(Path(plan).read_text(encoding="utf-8"), os.fspath(plan))
    seen: dict[str, Rule] = {}
    for rule in rules:
        before = seen.setdefault(rule.pattern, rule)
        if before.sharding != rule.sharding:
            raise UsageError(
                "contradiction",
                f"'{rule.pattern}' is given '{rule.sharding}' here and '{before.sharding}' at "
                f"{before.loc}",
                rule.loc,
            )
    return Plan(tuple(rules))


def _parse(text: str, file: str) -> list[Rule]:
    rules: list[Rule] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        pattern, equals, sharding = content.partition("=")
        if not equals or not pattern.strip():
            raise UsageError(
                "bad-plan",
                f"'{content}' is no rule of a plan, expected 'pattern = sharding'",
                Location(file, number),
            )
        rules.append(Rule(pattern.strip(), sharding.strip(), Location(file, number)))
    return rules


def annotation_for(
    text: str, name: str, shape: Sequence[int], mesh: Mesh, loc: Location
) -> Annotation:
    """Return what a text says of a tensor of a shape; `UsageError` if it does not fit that."""
    annotation = read_annotation(text, name, len(shape), mesh, loc)
    try:
        normal_sharding(annotation.sharding, shape, mesh)
    except ShardingError as error:
        message = f"'{name}' of shape {list(shape)}: {error.reason}"
        raise UsageError(error.code, message, loc) from None
    return annotation


def read_annotation(
    text: str, name: str, rank: int, mesh: Mesh, loc: Location, priority: int | None = None
) -> Annotation:
    """Return what a text in the language of plans says of a tensor.

        dp, _, tp        an entry for each dimension: mesh axes, or `_` for one that is not cut
        dp, ...          `...` stands for as many `_` as are left
        tp ?, ?          propagation may cut a dimension with `?` further
        replicated       no dimension is cut
        dp, _; priority 0   lower priorities win where annotations contend for an axis

    `UsageError`, with the name of the tensor, where the text does not fit the tensor or the mesh.
    """
    plain, opened, level = spelled_out(text, name, rank, loc, priority)
    return Annotation(_sharding(plain, name, mesh, loc), level, (), opened)


def spelled_out(
    text: str, name: str, rank: int, loc: Location, priority: int | None = None
) -> tuple[str, tuple[int, ...], int]:
    """Return an entry for each dimension, the dimensions that are open, and the priority."""
    body, semicolon, tail = text.partition(";")
    if semicolon:
        found = _PRIORITY.fullmatch(tail)
        if found is None:
            message = f"'{name}': expected 'priority' and a number after ';', got '{tail.strip()}'"
            raise UsageError("bad-sharding", message, loc)
        priority = int(found[1])
    if priority is None:
        priority = INPUT_PRIORITY if name.startswith(INPUTS) else PARAMETER_PRIORITY
    entries = _entries(body, name, rank, loc)
    opened = tuple(index for index, entry in enumerate(entries) if entry.endswith("?"))
    plain = [entry.rstrip("? ").strip() or "_" for entry in entries]
    return ", ".join(plain), opened, priority


def _entries(body: str, name: str, rank: int, loc: Location) -> list[str]:
    """Return one entry for each dimension."""
    if body.strip() in ("replicated", "..."):
        return ["_"] * rank
    entries = [entry.strip() for entry in re.split(r",(?![^()]*\))", body)] if body.strip() else []
    if entries.count("...") == 1:
        place = entries.index("...")
        entries[place : place + 1] = ["_"] * (rank - len(entries) + 1)
    if len(entries) != rank:
        raise UsageError(
            "sharding-rank",
            f"'{name}' has {rank} dimensions, '{body.strip()}' has {len(entries)} entries",
            loc,
        )
    return entries


def _sharding(text: str, name: str, mesh: Mesh, loc: Location) -> Sharding:
    try:
        return parse_sharding(text, mesh)
    except UsageError as error:
        raise UsageError(error.code, f"'{name}': {error.message}", loc) from None
