"""Invariants that text cannot break, and the words with which the verifier reports."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from lynx.ir import (
    CompileError,
    DType,
    Foreign,
    Graph,
    InputSpec,
    Location,
    Mutation,
    OutputSpec,
    Sharding,
    SymbolRange,
    TensorType,
    Value,
    symbol,
    verifier,
    verify,
)
from lynx.ir.ops import Aten, Exp, Negate, Resource
from tests.conftest import chunks
from tests.tools.tree import ROOT

F32 = TensorType(DType.F32, (4,))
X = Value(F32, name="x")
FIRST = Exp(X, loc=Location("model.py", 3, "mlp"))
SECOND = Negate(FIRST.out, loc=Location("model.py", 4, "mlp"))
GRAPH = Graph("g", (X,), (FIRST, SECOND), (SECOND.out,))


def failure(graph: Graph, **options: Any) -> CompileError:
    with pytest.raises(CompileError) as caught:
        verify(graph, **options)
    return caught.value


def changed(**fields: Any) -> Graph:
    if "outputs" in fields:
        fields.setdefault("output_specs", (OutputSpec(),) * len(fields["outputs"]))
    return dataclasses.replace(GRAPH, **fields)


def wrong(op: Any, types: tuple[TensorType, ...]) -> Any:
    """Return a copy of an op whose results were tampered with."""
    copy = dataclasses.replace(op)
    results = tuple(Value(type_, copy, index) for index, type_ in enumerate(types))
    object.__setattr__(copy, "results", results)
    return copy


def test_fine() -> None:
    verify(GRAPH)
    verify(GRAPH, known=GRAPH)


def test_report_names_op_place_and_rule() -> None:
    error = failure(changed(ops=(SECOND, FIRST)))
    assert error.code == "used-before-definition"
    assert error.loc == Location("model.py", 4, "mlp")
    assert str(error) == (
        "model.py:4 in mlp: error[used-before-definition]: operand <exp#0: f32[4]> is defined only "
        "later, in '%1 = neg %0 : f32[4]'"
    )


STRANGER = Value(F32, name="stranger")
SHARDED = dataclasses.replace(F32, sharding=Sharding((("dp",), ())))
TWICE = Value(F32, name="x")
CASES: dict[str, tuple[str, Graph]] = {
    "an operand of another graph": ("foreign-value", changed(ops=(SECOND,))),
    "an output of another graph": ("foreign-value", changed(outputs=(STRANGER,))),
    "an output from later": ("foreign-value", changed(ops=(FIRST,), outputs=(SECOND.out,))),
    "a mutation of another graph": ("foreign-value", changed(mutations=(Mutation(X, STRANGER),))),
    "a mutated stranger": ("mutation-target", changed(mutations=(Mutation(STRANGER, X),))),
    "an input that is a result": (
        "foreign-value", changed(inputs=(FIRST.out,), ops=(), outputs=()),
    ),
    "an input twice": (
        "defined-twice", changed(inputs=(X, X), input_specs=(InputSpec(), InputSpec())),
    ),
    "an op twice": ("defined-twice", changed(ops=(FIRST, FIRST, SECOND))),
    "a wrong result type": ("type-mismatch", changed(
        ops=(op := wrong(FIRST, (TensorType(DType.F64, (4,)),)),), outputs=(op.out,))),
    "too many results": ("type-mismatch", changed(ops=(wrong(FIRST, (F32, F32)),), outputs=())),
    "too many dimensions in a sharding": (
        "sharding-rank", changed(inputs=(Value(SHARDED),), ops=(), outputs=()),
    ),
    "an output that is cut in another way than promised": ("output-sharding", changed(
        output_specs=(OutputSpec(sharding=Sharding((("dp",),))),))),
    "a missing resource": ("unknown-resource", changed(
        ops=(Resource("c", DType.I64, (2,)),), outputs=(), resources={"d": 1})),
    "a missing resource of torch": ("unknown-resource", changed(
        ops=(Aten("f", (Foreign("resource", "c"),), (), ()),), outputs=(), resources={"d": 1})),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_violations(what: str) -> None:
    code, graph = CASES[what]
    assert failure(graph).code == code


def test_result_of_another_op() -> None:
    copy = dataclasses.replace(FIRST)
    object.__setattr__(copy, "results", FIRST.results)
    assert failure(changed(ops=(copy,), outputs=())).code == "foreign-result"


def test_counts_of_specs() -> None:
    # The constructor refuses these already, so they are forced.
    for name in ("input_specs", "output_specs"):
        graph = changed()
        object.__setattr__(graph, name, ())
        assert failure(graph).code == "spec-count"
    with pytest.raises(CompileError, match="spec-count"):
        changed(output_specs=(OutputSpec(), OutputSpec()))


def test_resources_may_be_missing_altogether() -> None:
    verify(changed(ops=(Resource("c", DType.I64, (2,)),), outputs=()))


def test_known_ops_are_checked_again_where_the_scope_differs() -> None:
    size = symbol("s0")
    x = Value(TensorType(DType.F32, (size,)), name="x")
    relu = Aten("relu", (x,), (), (TensorType(DType.F32, (symbol("u0"),)),))
    known = Graph("g", (x,), (relu,), (), symbols=(SymbolRange("s0"), SymbolRange("u0")))
    verify(known)
    fewer = dataclasses.replace(known, symbols=(SymbolRange("s0"),))
    assert failure(fewer, known=known).code == "undeclared-symbol"
    wrong_order = changed(ops=(SECOND, FIRST))
    assert failure(wrong_order, known=GRAPH).code == "used-before-definition"


def test_errors_of_inference_pass_through() -> None:
    op = dataclasses.replace(FIRST)
    object.__setattr__(op, "x", Value(TensorType(DType.I64, (4,))))
    assert failure(changed(ops=(op,), outputs=())).code == "bad-dtype"


def test_each_invariant_of_the_list_has_a_test() -> None:
    text = verifier.__doc__ or ""
    listed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    numbered = re.findall(r"^(\d+)\. ", text, re.MULTILINE)
    assert numbered == [str(n + 1) for n in range(len(numbered))]
    raised = set(re.findall(r'fail\(\s*"([a-z-]+)"', (ROOT / "ir/verifier.py").read_text()))
    assert listed == raised
    lynx = (ROOT / "tests/ir/verifier_errors.lynx").read_text()
    here = {"foreign-result", "spec-count", *(code for code, _ in CASES.values())}
    here |= {"used-before-definition"}
    assert listed <= here | set(re.findall(r"ERROR\(([a-z-]+)\)", lynx))
    assert len(list(chunks(lynx))) > 10
