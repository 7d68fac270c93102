"""Models of our own on random meshes by random plans: the numbers of one device, always."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import pytest

from lynx.ir.sharding import Mesh
from tests.distribution.harness import Captured, capture, check, collectives
from tests.distribution.models import MADE, transformer
from tests.distribution.random_plans import random_mesh, random_plan

SWEEP = 40
"""How many plans of each model a thorough run tries."""


@functools.cache
def captured(name: str) -> Captured:
    model, inputs = MADE[name]()
    return capture(model, inputs)


def try_plan(one: Captured, seed: int) -> None:
    source = random.Random(seed)
    mesh = random_mesh(source)
    check(one, mesh, random_plan(source, one.forward.graph, one.forward.inputs, mesh))


@pytest.mark.parametrize("name", MADE)
def test_a_plan(name: str) -> None:
    try_plan(captured(name), seed=1)


@pytest.mark.parametrize(("name", "seed"), [("gpt", 109007), ("uneven gpt", 105007)])
def test_a_plan_that_was_wrong(name: str, seed: int) -> None:
    """Axes that cut the same blocks; a look-up where tokens of each of several blocks are cut."""
    try_plan(captured(name), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_many_plans(name: str) -> None:
    for seed in range(SWEEP):
        try_plan(captured(name), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven gpt", "conv net", "odd"])
def test_inference(name: str) -> None:
    model, inputs = MADE[name]()
    one = capture(model.eval(), inputs, train=False)
    for seed in range(SWEEP):
        try_plan(one, seed)


@functools.cache
def in_half_precision(name: str) -> Captured:
    model, inputs = MADE[name]()
    assert not isinstance(inputs, Mapping)
    halved = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
    return capture(model.bfloat16(), halved)


def try_half_precision(name: str, seed: int) -> None:
    """Sums of parts are rounded once more than those of one device."""
    one = in_half_precision(name)
    source = random.Random(seed)
    mesh = random_mesh(source)
    plan = random_plan(source, one.forward.graph, one.forward.inputs, mesh)
    check(one, mesh, plan, tolerance=8 * 2**-8)


def test_half_precision() -> None:
    try_half_precision("grouped gpt", seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven gpt", "fused grouped gpt", "dropout gpt"])
def test_many_plans_in_half_precision(name: str) -> None:
    for seed in range(SWEEP // 4):
        try_half_precision(name, seed)


@functools.cache
def large_vocabulary() -> Captured:
    model, inputs = transformer(vocabulary=1021, layers=1, batch=5, length=3)
    return capture(model, inputs)


@pytest.mark.parametrize("devices", [2, 3, 4, 6, 7])
def test_vocabularies_that_devices_do_not_divide(devices: int) -> None:
    plan = {"tokens.weight": "tp, _", "head.weight": "tp, _"}
    laid = check(large_vocabulary(), Mesh("mesh", (("tp", devices),)), plan)
    assert laid.backward is not None
    found = collectives(laid.forward.graph) | collectives(laid.backward.graph)
    assert set(found) == {"all_reduce tp"}
