"""The rewrite driver: order, locations, types, bounds, reasons."""

from __future__ import annotations

import pytest

from lynx.ir.core import Builder, Graph, Mutation, Op, Value
from lynx.ir.errors import InternalError
from lynx.ir.location import Location
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.layout import Broadcast, Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.types import DType, TensorType
from lynx.passes import NoMatch, PassContext, rewrite, rule

HERE = Location("model.py", 5, "block.0")
OTHER = Location("other.py", 9)


@rule
def reshape_twice(op: Unsqueeze) -> Value | NoMatch:
    """Build two ops without locations, and one with.

    unsqueeze(x, d)  ==>  reshape(reshape(permute(x)))
    """
    turned = Permute(op.x, (1, 0))
    flat = Reshape(turned.out, (6,), loc=OTHER)
    return Reshape(flat.out, op.out.shape).out


@rule
def drop_squeeze(op: Squeeze) -> Value | NoMatch:
    """Drop an op whose dimensions are none."""
    return op.x if not op.dims else NoMatch("removes a dimension")


@rule
def broadcast_is_squeeze(op: Broadcast) -> Value:
    """Build an op that another rule replaces in turn.

    broadcast(x)  ==>  squeeze(permute(permute(x)))
    """
    twice = Permute(Permute(op.x, (1, 0)).out, (1, 0))
    return Squeeze(twice.out, ()).out


def single(op: Op, x: Value) -> Graph:
    return Graph("g", (x,), (op,), op.results)


def matrix() -> Value:
    return Value(TensorType(DType.F32, (2, 3)), name="x")


def test_new_ops_come_before_their_use_and_inherit_the_location() -> None:
    x = matrix()
    graph = rewrite(single(Unsqueeze(x, 0, loc=HERE), x), [reshape_twice], PassContext())
    assert [op.name for op in graph.ops] == ["permute", "reshape", "reshape"]
    assert [op.loc for op in graph.ops] == [HERE, OTHER, HERE]
    assert graph.outputs == graph.ops[-1].results
    assert graph.ops[2].operands == graph.ops[1].results
    assert graph.ops[1].operands == graph.ops[0].results


def test_rules_apply_to_what_rules_build() -> None:
    x = matrix()
    rules = [broadcast_is_squeeze, drop_squeeze]
    graph = rewrite(single(Broadcast(x, (2, 3), loc=HERE), x), rules, PassContext())
    assert [op.name for op in graph.ops] == ["permute", "permute"]
    assert graph.outputs == graph.ops[-1].results
    assert all(op.loc == HERE for op in graph.ops)


def test_uses_follow_outputs_and_mutations() -> None:
    builder = Builder("g")
    x = builder.input("x", TensorType(DType.F32, (2, 3)))
    same = builder.emit(Squeeze(x, ()))
    again = builder.emit(Squeeze(same, ()))
    turned = builder.emit(Permute(again, (1, 0)))
    before = builder.build((again, None, turned), mutations=(Mutation(x, same),))
    graph = rewrite(before, [drop_squeeze], PassContext())
    assert len(graph.ops) == 1
    assert graph.outputs == (x, None, graph.ops[0].results[0])
    assert graph.ops[0].operands == (x,)
    assert graph.mutations == (Mutation(x, x),)
    assert len(before.ops) == 3, "the graph given is not changed"


def test_nothing_to_do_returns_the_graph_itself() -> None:
    x = matrix()
    graph = single(Permute(x, (1, 0)), x)
    assert rewrite(graph, [drop_squeeze, reshape_twice], PassContext()) is graph


def test_several_results() -> None:
    types = (TensorType(DType.F32, (2,)), TensorType(DType.I64, (2,)))

    @rule
    def rename(op: Aten) -> tuple[Value, ...] | NoMatch:
        """Call another function."""
        if op.target == "b":
            return NoMatch("is b already")
        return Aten("b", op.arguments, op.keywords, op.types).results

    x = matrix()
    graph = rewrite(single(Aten("a", (x,), (), types, loc=HERE), x), [rename], PassContext())
    (op,) = graph.ops
    assert isinstance(op, Aten)
    assert (op.target, op.loc) == ("b", HERE)
    assert graph.outputs == op.results


def test_unions_and_base_classes_pick_ops() -> None:
    @rule
    def either(op: Squeeze | Unsqueeze) -> NoMatch:
        """Refuse."""
        return NoMatch("seen")

    @rule
    def any_op(op: Op) -> NoMatch:
        """Refuse."""
        return NoMatch("any")

    x = matrix()
    context = PassContext(reasons=True)
    ops = (Squeeze(x, ()), Permute(x, (1, 0)), Unsqueeze(x, 0))
    rewrite(Graph("g", (x,), ops, ()), [either, any_op], context)
    subjects = [(remark.subject, remark.message) for remark in context.remarks]
    seen, everything = ("either", "seen"), ("any_op", "any")
    assert subjects == [seen, everything, everything, seen, everything]


def test_reasons_are_kept_only_when_asked() -> None:
    x = matrix()
    graph = single(Squeeze(Value(TensorType(DType.F32, (1,))), (0,), loc=HERE), x)
    quiet, loud = PassContext(), PassContext(reasons=True)
    rewrite(graph, [drop_squeeze], quiet)
    rewrite(graph, [drop_squeeze], loud)
    assert quiet.remarks == []
    (remark,) = loud.remarks
    assert remark.subject == "drop_squeeze"
    assert remark.message == "removes a dimension"
    assert remark.loc == HERE


def test_a_rule_must_keep_the_type() -> None:
    @rule
    def flatten(op: Permute) -> Value:
        """Change the shape."""
        return Reshape(op.x, (6,)).out

    x = matrix()
    with pytest.raises(InternalError) as caught:
        rewrite(single(Permute(x, (1, 0), loc=HERE), x), [flatten], PassContext())
    assert caught.value.code == "rule-changes-type"
    assert "rule 'flatten' turned 'permute' of type f32[3, 2] into f32[6]" in str(caught.value)
    assert caught.value.loc == HERE


def test_a_rule_must_keep_the_number_of_results() -> None:
    @rule
    def twice(op: Permute) -> tuple[Value, ...]:
        """Return one value too many."""
        return (op.out, op.out)

    x = matrix()
    with pytest.raises(InternalError, match="rule-changes-type"):
        rewrite(single(Permute(x, (1, 0)), x), [twice], PassContext())


@pytest.mark.parametrize("wrapped", [False, True])
def test_rules_that_do_not_settle(wrapped: bool) -> None:
    @rule
    def forever(op: Reshape) -> Value:
        """Replace an op by its like, or by something around itself."""
        if wrapped:
            return Permute(Permute(op.out, (1, 0)).out, (1, 0)).out
        return Reshape(op.x, op.shape).out

    x = matrix()
    with pytest.raises(InternalError) as caught:
        rewrite(single(Reshape(x, (3, 2), loc=HERE), x), [forever], PassContext())
    assert caught.value.code == "rules-do-not-settle"
    assert "forever" in str(caught.value)


def test_long_replacements_are_no_recursion() -> None:
    @rule
    def unroll(op: Unsqueeze) -> Value:
        """Build a long chain."""
        value = op.x
        for _ in range(20_000):
            value = Permute(value, (1, 0)).out
        return Reshape(value, op.out.shape).out

    x = matrix()
    graph = rewrite(single(Unsqueeze(x, 0), x), [unroll], PassContext())
    assert len(graph.ops) == 20_001
