"""Sizes and numbers that are known only when a compiled function runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention

CAPTURE = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(function: Callable[..., Any], *calls: tuple[Any, ...], **config: Any) -> None:
    """Compare calls of one dynamically compiled function with eager: results, gradients, RNG."""
    fast = torch.compile(function, backend="lynx", options={"strict": True}, dynamic=True)
    with torch._dynamo.config.patch(config):
        for call in calls:
            torch.manual_seed(0)
            expected = function(*call)
            state = torch.get_rng_state()
            torch.manual_seed(0)
            actual = fast(*call)
            torch.testing.assert_close(actual, expected, equal_nan=True)
            assert torch.equal(torch.get_rng_state(), state)
            (x, *_) = call
            if x.requires_grad:
                losses = [torch.utils._pytree.tree_leaves(r)[0].sum() for r in (actual, expected)]
                torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))


def images(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(2, 3, size, size + 1, requires_grad=True),) for size in sizes]


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_sizes_scaled_by_a_fraction(mode: str) -> None:
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode) * 2, *images(4, 7, 9))


def test_sizes_by_way_of_floats() -> None:
    check(
        lambda x: (x[:, :, : int(x.shape[2] * 0.7)] * 2, x.new_zeros(round(x.shape[3] ** 0.5), 2)),
        *images(4, 7, 9),
    )
    check(lambda x: x * int(x.shape[2] * 0.7) + int(x.shape[2] / 3), *images(4, 7, 9))


def test_sizes_given_to_random_operators() -> None:
    check(
        lambda x: (torch.randint(0, x.shape[2], (3,)), torch.randperm(x.shape[2])),
        *((x.detach(),) for (x,) in images(4, 7, 9)),
    )


def test_numbers_of_which_only_a_sum_is_used() -> None:
    check(lambda x: sum(x.tolist()) + x, (torch.arange(4),), (torch.arange(4) * 3,), **CAPTURE)


def test_a_result_of_which_only_the_size_is_used() -> None:
    x = torch.tensor([0, 2, 0, 5])
    check(lambda x: x + x.nonzero().shape[0] * 2, (x,), (x + 1,), **CAPTURE)


def test_equal_selections_that_were_merged_after_tracing() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x[x > 0], y[y > 0]]), x[x > 0].sum() + y[y > 0].sum()

    calls = [(torch.randn(n, 3, requires_grad=True), torch.randn(5, 2)) for n in (4, 6)]
    check(function, *calls, **CAPTURE)

    def second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return function(x, y)[1]

    check(second, *calls, **CAPTURE)
