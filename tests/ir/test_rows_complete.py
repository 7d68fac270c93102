"""Every op has its row in every table: documentation, meaning, samples, iteration space."""

from __future__ import annotations

import inspect
import re

import pytest

import lynx.ir.ops
from lynx.backends.reference import covered
from lynx.ir.core import Op
from tests.samples.inputs import SAMPLES

WITHOUT_SAMPLE = {
    "aten": "its operands and results are whatever torch's operator says",
    "resource": "reads a table of the graph, which a single op does not have",
    "wait": "takes what a start fills, and nothing else",
}

WITHOUT_SPACE = {
    "aten": "nothing is known of how a torch operator iterates",
    "fused": "its ops have their own",
    "local_all_gather": "belongs to the program of one device, which is not cut further",
    "local_all_reduce": "belongs to the program of one device, which is not cut further",
    "local_all_to_all": "belongs to the program of one device, which is not cut further",
    "local_reduce_scatter": "belongs to the program of one device, which is not cut further",
    "resource": "reads memory; it computes nothing",
    "start_all_gather": "belongs to the program of one device, which is not cut further",
    "start_all_reduce": "belongs to the program of one device, which is not cut further",
    "start_all_to_all": "belongs to the program of one device, which is not cut further",
    "start_reduce_scatter": "belongs to the program of one device, which is not cut further",
    "wait": "belongs to the program of one device, which is not cut further",
}

OPS = {
    name: kind for name, kind in Op.registry.items() if kind.__module__.startswith("lynx.ir.ops")
}


@pytest.mark.parametrize("name", OPS)
def test_documented(name: str) -> None:
    text = inspect.getdoc(OPS[name]) or ""
    assert re.search(rf"^ *(%\w+(, )?)+ = {re.escape(name)}\b.*", text, re.MULTILINE), "no IR line"


@pytest.mark.parametrize("name", OPS)
def test_has_a_meaning(name: str) -> None:
    assert OPS[name] in covered()


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_SAMPLE])
def test_has_a_sample(name: str) -> None:
    assert any(type(sample.op) is OPS[name] for sample in SAMPLES.values())


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_SPACE])
def test_has_an_iteration_space(name: str) -> None:
    of_kind = [sample.op for sample in SAMPLES.values() if type(sample.op) is OPS[name]]
    assert all(op.space() is not None for op in of_kind)


def test_exceptions_are_ops() -> None:
    assert set(WITHOUT_SAMPLE) <= set(OPS)
    assert set(WITHOUT_SPACE) <= set(OPS)
    assert lynx.ir.ops.__all__
