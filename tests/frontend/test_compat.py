"""Each private API of torch that `lynx.compat` wraps still does what Lynx needs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lynx import compat
from lynx.importer.dims import evaluate_size


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trace(function: Callable[..., Any], *inputs: Any, mode: str = "fake") -> torch.fx.GraphModule:
    module: torch.fx.GraphModule = make_fx(function, tracing_mode=mode)(*inputs)
    return module


def node(module: torch.fx.GraphModule, name: str) -> torch.fx.Node:
    return next(n for n in module.graph.nodes if n.name == name)


def test_aot_autograd_hands_out_boxed_graphs_and_metadata() -> None:
    seen: list[tuple[str, int | None, int]] = []

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(module: torch.fx.GraphModule, _: Any) -> Any:
            outputs = len(module.graph.output_node().args[0])  # type: ignore[arg-type]
            seen.append((kind, compat.forward_output_count(), outputs))
            return compat.boxed(lambda arguments: module.forward(*arguments))

        return compile_

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return compat.aot_autograd(
            module,
            inputs,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions={},
        )

    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda t: (t.sin().exp(), t * 2), backend=backend)(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, x.cos() * x.sin().exp())
    kinds = [kind for kind, _, _ in seen]
    assert kinds == ["forward", "backward"]
    assert seen[0][1] == 2
    assert seen[0][2] > 2


def test_parameters_are_static() -> None:
    found: list[frozenset[int]] = []

    def forward(module: torch.fx.GraphModule, _: Any) -> Any:
        found.append(compat.static_input_indices())
        return compat.boxed(lambda arguments: module.forward(*arguments))

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return compat.aot_autograd(
            module, inputs, forward=forward, backward=forward, inference=forward, decompositions={}
        )

    torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.randn(1, 2))
    assert len(found[0]) == 2


def test_outside_tracing_tensors_are_real() -> None:
    with torch._subclasses.FakeTensorMode():
        with compat.outside_tracing():
            assert type(torch.ones(2) + 1) is torch.Tensor
        assert isinstance(torch.ones(2), compat.FakeTensor)


def test_kinds_of_nodes() -> None:
    module = trace(lambda x: (torch.rand_like(x), x + 1), torch.ones(2))
    rand, add = node(module, "rand_like"), node(module, "add")
    assert compat.draws_random_numbers(rand.target)
    assert not compat.draws_random_numbers(add.target)
    assert not compat.has_side_effect(add)
    assert not compat.has_side_effect(rand)
    assert compat.has_side_effect(module.graph.output_node())


def test_symbols_and_their_ranges() -> None:
    module = trace(lambda x: x * 2, torch.ones(5, 3), mode="symbolic")
    size = node(module, "mul").meta["val"].shape[0]
    expression = compat.symbolic_expression(size)
    assert expression.is_Symbol
    lower, _ = compat.value_range(compat.shape_environment(size), expression)
    assert lower in (0, 2)


def test_storage_identity_and_plain_fakes() -> None:
    module = trace(lambda x: (x.view(-1), x + 1), torch.ones(2, 2))
    view, add = node(module, "view").meta["val"], node(module, "add").meta["val"]
    given = next(iter(module.graph.nodes)).meta["val"]
    assert compat.storage_identity(view) == compat.storage_identity(given)
    assert compat.storage_identity(add) != compat.storage_identity(given)
    assert compat.is_plain_fake(view)
    assert not compat.is_plain_fake(torch.ones(2, 2).to_sparse())
    assert not compat.is_plain_fake(3)


def test_graph_breaks_have_reasons_and_places() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    ((reason, place),) = compat.graph_break_reasons(function, torch.ones(2))
    assert reason
    assert "test_compat.py" in place


def test_backward_graphs_can_be_compiled_with_their_forward() -> None:
    kinds: list[str] = []

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(module: torch.fx.GraphModule, _: Any) -> Any:
            kinds.append(kind)
            return compat.boxed(lambda arguments: module.forward(*arguments))

        return compile_

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return compat.aot_autograd(
            module,
            inputs,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions={},
        )

    with compat.eager_backward_compilation():
        torch.compile(torch.sin, backend=backend)(torch.ones(2, requires_grad=True))
    assert sorted(kinds) == ["backward", "forward"]


def test_control_flow_errors_of_dynamo_are_known() -> None:
    assert len(compat.CONTROL_FLOW_ERRORS) >= 2


def test_size_source_can_be_evaluated() -> None:
    module = trace(
        lambda x: x.new_zeros(torch.sym_int(x.shape[0] * 0.7)), torch.ones(5), mode="symbolic"
    )
    expression = compat.symbolic_expression(node(module, "new_zeros").meta["val"].shape[0])
    (symbol,) = expression.free_symbols
    source = compat.size_source(expression)
    assert evaluate_size(source, **{symbol.name: 9}) == 6


def test_classes_of_operators_and_the_table_of_decompositions() -> None:
    assert isinstance(torch.ops.aten.add.Tensor, compat.OpOverload)
    assert isinstance(torch.ops.higher_order.cond, compat.HigherOrderOperator)
    table = compat.get_decompositions([torch.ops.aten.select_backward])
    assert torch.ops.aten.select_backward.default in table


def test_tensors_inside_transforms() -> None:
    seen: list[tuple[bool, bool]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append((compat.is_transformed(x), compat.is_batched(x)))
        return x.sum()

    x = torch.ones(2, 3)
    look(x)
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x)
    torch.func.grad(lambda y: torch.func.vmap(look)(y).sum())(x)
    torch.func.vmap(torch.func.grad(look))(x)
    assert seen == [(False, False), (True, False), (True, True), (True, True), (True, True)]


def test_sizes_that_were_traced() -> None:
    found: list[int | None] = []

    def keep(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(compat.size_hint(item) for item in inputs if isinstance(item, torch.SymInt))
        return module.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x * 2, backend=keep, dynamic=True)(torch.ones(5, 7))
    assert found == [5, 7]
    assert compat.size_hint(3) == 3


def test_grad_mode_changes_are_what_dynamo_calls() -> None:
    targets: list[Any] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(node.target for node in module.graph.nodes)
        return module.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
        with torch.enable_grad():
            return x.cos() + y

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(torch.ones(3, requires_grad=True))
    assert any(target in compat.GRAD_MODE_CHANGES for target in targets)


def test_graphs_with_symbols_do_not_donate() -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 4, requires_grad=True)
    function = torch.compile(lambda y: y.exp().sin(), backend="lynx", dynamic=True)
    loss = function(x).sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)


def test_functions_are_traced_without_operations_in_place() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.clone().mul_(2)

    module = compat.traced_graph(double, (torch.ones(2),))
    assert not any(str(node.target).startswith("aten.mul_") for node in module.graph.nodes)
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))


def test_fake_tensors_know_their_mode_and_guards() -> None:
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
    assert compat.fake_mode_of(fake) is mode
    assert compat.fake_mode_of(torch.ones(2)) is None
    assert compat.guard_count(fake) == 0
    with compat.python_dispatch():
        pass


def test_flex_attention_is_an_operator_of_higher_order() -> None:
    assert isinstance(compat.FLEX_ATTENTION, compat.HigherOrderOperator)
