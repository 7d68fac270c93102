"""All idioms of attention through generated kernels: as exact as eager, in all element types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.records import RECORDS
from tests.frontend.attention_idioms import Idiom
from tests.frontend.attention_more_idioms import IDIOMS
from tests.frontend.test_recognise_attention import (
    BATCH,
    LENGTH,
    assert_as_good,
    evaluated,
    in_double,
    with_dynamic_sizes,
)

LENGTHS = (LENGTH, 13)

OFTEN = (
    "bert", "gemma_softcap", "old_gpt2", "t5", "swin", "sdpa_causal", "gpt_oss_sinks",
    "grouped_einsum", "sliding_window", "documents", "alibi_of_indices", "masked_softmax",
    "cross_attention_of_other_depth", "one_token",
)  # fmt: skip
"""Idioms whose score functions and layouts differ: of the others most run with the slow tests."""

SOME = ("t5", "gpt_oss_sinks", "grouped_einsum", "sliding_window")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    RECORDS.reset()
    yield
    torch._dynamo.reset()


def marked(*names: str) -> list[Any]:
    """Return all idioms, those not named to be run only with the slow tests."""
    slow = pytest.mark.slow
    return [i if i.name in names else pytest.param(i, marks=slow, id=i.name) for i in IDIOMS]


def check(
    idiom: Idiom, dtype: torch.dtype, lengths: tuple[int, ...], *, training: bool, dynamic: bool
) -> None:
    """Compare errors with eager's, and see that kernels of attention have run."""
    options = {"strict": True, "cache": False}
    compiled = torch.compile(idiom.function, backend="lynx", dynamic=False, options=options)
    if dynamic:  # what is marked
        compiled = torch.compile(idiom.function, backend="lynx", options=options)
    for length in lengths:
        torch.manual_seed(0)
        given = idiom.draw(BATCH, length, dtype)
        if not training:
            given = tuple(x.detach() for x in given)
        expected = evaluated(idiom.function, given)
        exact = evaluated(idiom.function, tuple(map(in_double, given)))
        if dynamic and length == LENGTH:
            with_dynamic_sizes(given)
        assert_as_good(evaluated(compiled, given), expected, exact)
    kinds = (Attention, AttentionBackward) if training else (Attention,)
    found = [
        kind for graph in RECORDS.graphs for kind in native_attentions(graph.executable.native)
    ]
    assert len(RECORDS.graphs) == len(kinds)
    assert found.count(Attention) >= idiom.count
    # Gradients of a single query are computed by products.
    assert set(found) == ({Attention} if idiom.name == "one_token" else set(kinds))


def native_attentions(native: Any) -> list[type[Any]]:
    """Return the kinds of the attentions that native code computes."""
    steps = native.program.steps
    kinds = (Attention, AttentionBackward)
    return [type(steps[i].op) for i in native.steps if isinstance(steps[i].op, kinds)]


@pytest.mark.parametrize("idiom", marked(*OFTEN), ids=lambda idiom: idiom.name)
def test_training_with_dynamic_sizes(idiom: Idiom) -> None:
    check(idiom, torch.float32, LENGTHS, training=True, dynamic=True)


@pytest.mark.parametrize("idiom", marked(*SOME), ids=lambda idiom: idiom.name)
def test_training_in_low_precision(idiom: Idiom) -> None:
    check(idiom, torch.bfloat16, LENGTHS[:1], training=True, dynamic=False)


@pytest.mark.parametrize("idiom", marked("gemma_softcap", "one_token"), ids=lambda i: i.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_inference(idiom: Idiom, dtype: torch.dtype) -> None:
    dynamic = dtype is torch.float32
    check(idiom, dtype, LENGTHS if dynamic else LENGTHS[:1], training=False, dynamic=dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
def test_training_with_many_tiles(idiom: Idiom) -> None:
    is_short = idiom.name in ("nano_gpt", "old_gpt2", "gpt_neox")  # their masks are of 32
    check(idiom, torch.float32, (32 if is_short else 300,), training=True, dynamic=False)
