"""What compiled functions promise beyond values: mutation, aliasing, strides, RNG, autograd."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

STRICT = {"strict": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="lynx", options=STRICT, **kwargs)


def copies(inputs: tuple[Any, ...]) -> list[Any]:
    """Copy tensors with their strides and `requires_grad`."""
    result = []
    for item in inputs:
        if isinstance(item, torch.Tensor):
            dense = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype)
            item = dense.copy_(item.detach()).requires_grad_(item.requires_grad)
        result.append(item)
    return result


def tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(leaf)]


def sharing(inputs: list[Any], outputs: list[torch.Tensor]) -> list[list[bool]]:
    """Which outputs share memory with which inputs and outputs."""
    everything = [i for i in inputs if torch.is_tensor(i)] + outputs
    storages = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in everything]
    return [[a == b and a != -1 for a in storages] for b in storages]


def check(function: Callable[..., Any], *inputs: Any, calls: int = 2, **kwargs: Any) -> None:
    """Compare calls with eager: values, layout, aliasing, inputs, gradients."""
    fast = compiled(function, **kwargs)
    for _ in range(calls):
        ours, theirs = copies(inputs), copies(inputs)
        torch.manual_seed(5)
        expected = function(*theirs)
        torch.manual_seed(5)
        actual = fast(*ours)
        compare(actual, expected)
        assert sharing(ours, tensors(actual)) == sharing(theirs, tensors(expected))
        compare(ours, theirs)
        losses = [sum(t.sum() for t in tensors(r) if t.requires_grad) for r in (actual, expected)]
        if torch.is_tensor(losses[1]):
            for loss in losses:
                loss.backward()
            compare(
                [i.grad for i in ours if torch.is_tensor(i)],
                [i.grad for i in theirs if torch.is_tensor(i)],
            )


def compare(actual: Any, expected: Any) -> None:
    ours, structure = torch.utils._pytree.tree_flatten(actual)
    theirs, wanted = torch.utils._pytree.tree_flatten(expected)
    assert structure == wanted
    for a, e in zip(ours, theirs, strict=True):
        if not torch.is_tensor(e):
            assert type(a) is type(e)
            assert a == e
            continue
        assert (a.dtype, a.shape, a.requires_grad) == (e.dtype, e.shape, e.requires_grad)
        assert a.stride() == e.stride()
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6, equal_nan=True)


def randn(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_(grad)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: dict[str, torch.Tensor]


torch.utils._pytree.register_dataclass(Pair)


def in_place_on_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x[0] += 1
    return x.sum()


def in_place_on_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:, ::2].add_(y)
    x.t()[0].zero_()
    return x @ x.t()


def returns_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, x.view(-1), x[1:], x + 1


def returns_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y, y.view(-1), x * 2


def clones(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.clone(), x.clone(), x.contiguous(), x.t().contiguous()


def strided_outputs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.exp()
    return y.t(), y.t() + 1, (y.t() * 2).contiguous(), y[:, ::2], y.expand(3, *y.shape)


def constant_outputs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ones(3), torch.arange(4), torch.zeros_like(x), torch.full((2, 2), 7)


def nested(x: torch.Tensor) -> Pair:
    return Pair(x + 1, {"a": x * 2, "b": x.relu()})


def dropout(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = nn.functional.dropout(x, 0.5)
    return y, torch.rand_like(x), torch.nn.functional.dropout(y, 0.1), torch.randn(3)


def unused_randomness(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return torch.rand_like(x)


def sizes(x: torch.Tensor) -> tuple[Any, ...]:
    return x.shape[0] * 2, x.view(-1, x.shape[0]), x.new_zeros(x.shape[0] + 1), x / x.shape[1]


def mixed_types(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + i, i / 3, i // 2, x.to(torch.bfloat16) * 0.1, (x > 0) & (i > 1), i % 3


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def block(a: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout((a @ w).relu(), 0.3)

    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()


def autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).softmax(-1)


def partly_without_gradient(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        y = x * 3
    return y, (x * w).sum(), w.detach() + 1


def saved_is_output(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.tanh()
    return y, y.sigmoid(), y.exp().exp()


def many_views(x: torch.Tensor) -> torch.Tensor:
    y = x.view(2, -1).t().unsqueeze(0).expand(2, -1, -1)
    return y.flip(0).permute(2, 0, 1).reshape(-1)[1::2]


def empty_sizes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:0].sum(0), x[:0] * 2, torch.cat([x[:0], x])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        returns_input, returns_twice, clones, strided_outputs, constant_outputs, nested, dropout,
        unused_randomness, sizes, saved_is_output, many_views, empty_sizes,
    ],
)  # fmt: skip
def test_one_tensor(function: Callable[..., Any], grad: bool, dynamic: bool) -> None:
    check(function, randn(4, 6, grad=grad), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_mutation_of_inputs(dynamic: bool) -> None:
    check(in_place_on_input, randn(4, 6), dynamic=dynamic)
    check(in_place_on_view, randn(5, 6), randn(4, 3), dynamic=dynamic)
    check(in_place_on_view, randn(6, 5).t(), randn(4, 3), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_two_tensors(dynamic: bool) -> None:
    check(mixed_types, randn(3, 4), torch.arange(12).view(3, 4) - 5, dynamic=dynamic)
    x, w = randn(4, 8, grad=True), randn(8, 8, grad=True)
    check(checkpointed, x, w, dynamic=dynamic)
    check(autocast, x, w, dynamic=dynamic)
    check(partly_without_gradient, x, randn(4, 8, grad=True), dynamic=dynamic)


def test_channels_last_stays() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    layer = layer.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    expected = layer(x)
    actual = compiled(layer)(x)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected)


def test_outputs_survive_later_calls() -> None:
    fast = compiled(lambda x: (x * 2, (x + 1).t(), x.exp().sum(0)))
    kept = [(x, fast(x)) for x in (torch.randn(8, 8) for _ in range(5))]
    for x, (doubled, moved, summed) in kept:
        torch.testing.assert_close(doubled, x * 2)
        torch.testing.assert_close(moved, (x + 1).t())
        torch.testing.assert_close(summed, x.exp().sum(0))


def test_several_live_forwards_and_retained_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x * 3).tanh() @ x.t()).sigmoid().sum()

    fast = compiled(function)
    inputs = [randn(6, 6, grad=True) for _ in range(4)]
    losses = [fast(x) for x in inputs]
    for x, loss in reversed(list(zip(inputs, losses, strict=True))):
        loss.backward(retain_graph=True)
        fast(randn(6, 6, grad=True)).backward()
        loss.backward()
        (expected,) = torch.autograd.grad(function(x), x)
        torch.testing.assert_close(x.grad, 2 * expected)


def test_threads() -> None:
    fast = compiled(lambda x: ((x + 1) * 2).tanh().sum(1))
    fast(torch.randn(32, 32))
    failures: list[str] = []

    def work(seed: int) -> None:
        x = torch.full((32, 32), float(seed) / 10)
        for _ in range(50):
            if not torch.allclose(fast(x), ((x + 1) * 2).tanh().sum(1)):
                failures.append(str(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_batch_norm_trains_and_evaluates() -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        )

    ours, theirs = model(), model()
    fast = compiled(ours)
    for step in range(3):
        x = torch.randn(3, 2, 6, 6)
        for net, forward in ((ours, fast), (theirs, theirs)):
            net.train(step < 2)
            forward(x).square().sum().backward()
        compare(dict(ours.named_buffers()), dict(theirs.named_buffers()))
        compare([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(self.embedding(tokens)), tokens)

    model = Tied()
    tokens = torch.arange(11)
    model(tokens).backward()
    expected = model.embedding.weight.grad.clone()
    model.zero_grad()
    compiled(model)(tokens).backward()
    torch.testing.assert_close(model.embedding.weight.grad, expected)


def test_data_dependent_sizes() -> None:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        check(lambda x: (x.nonzero() * 2, x[x > 0].sum()), randn(5, 5))
        check(lambda x, n: x[: n.item()].sum(), randn(8), torch.tensor(3))


def test_custom_operators() -> None:
    @torch.library.custom_op("lynx_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("lynx_tests::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = twice(x.t())
        bump(y)
        bump(x)
        return y + x.t()

    check(function, randn(3, 4))


def test_sparse_and_complex_run_through_torch() -> None:
    check(
        lambda x: torch.fft.fft(x).real + torch.view_as_real(x.to(torch.complex64)).sum(-1),
        randn(4, 4),
    )
    check(lambda x: (x.to_sparse() @ x).relu(), randn(4, 4))


def test_higher_order_operators() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)) * 2

    check(function, torch.ones(3))
    check(function, -torch.ones(3))


def test_operators_in_python_get_sequences_of_their_kind() -> None:
    def causal(score: Any, batch: Any, head: Any, query: Any, key: Any) -> torch.Tensor:
        return torch.where(query >= key, score, -float("inf"))

    def attention(x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x, x, x, score_mod=causal)

    check(attention, randn(1, 2, 16, 8))


def test_a_new_size_reuses_the_dynamic_graph() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("lynx")
    fast = torch.compile(lambda x: (x.exp() @ x.t()).softmax(-1), backend=counter)
    for size in (3, 4, 5, 9, 33, 4):
        x = torch.randn(size, 6)
        torch.testing.assert_close(fast(x), (x.exp() @ x.t()).softmax(-1))
    assert counter.frame_count == 2


def test_errors_at_run_time_are_torch_errors() -> None:
    fast = compiled(lambda x, i: x[i] * 2)
    with pytest.raises(IndexError):
        fast(torch.randn(3), torch.tensor([7]))
    torch.testing.assert_close(fast(torch.ones(3), torch.tensor([2])), torch.tensor([2.0]))


def copies_and_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.clone(), x.clone()
    return y[0], y, z.view(-1), z[1:], x + 0


def test_copies_stay_apart_and_their_views_together() -> None:
    check(copies_and_views, randn(3, 4))
    check(lambda x: copies_and_views(x.exp()), randn(3, 4))
    check(copies_and_views, randn(3, 4, grad=True))
