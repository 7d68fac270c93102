"""Models of Hugging Face families compute with the compiler what they compute with eager."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.tools.compare import (
    assert_as_accurate,
    assert_same,
    assert_same_gradients,
    compiled,
    gradients,
)
from tests.tools.roundtrip import round_trips

transformers = pytest.importorskip("transformers")
families = pytest.importorskip("tests.models.families")
FAMILIES, build = families.FAMILIES, families.build

pytestmark = pytest.mark.filterwarnings("ignore")
AT_ANOTHER_SIZE = ["bert", "gemma2", "gpt2", "llama", "resnet", "t5", "vit", "wav2vec2"]
WITH_EAGER_ATTENTION = ["bart", "bert", "gemma2", "gpt2", "llama", "vit", "whisper"]


def some(names: list[str]) -> list[Any]:
    """Return parameters for all families, of which only those named are in the default suite."""
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch._dynamo.reset()
    start = time.perf_counter()
    yield
    record_property("seconds", round(time.perf_counter() - start, 2))
    torch._dynamo.reset()


def compiled_copy(model: Any) -> Any:
    return compiled(copy.deepcopy(model))


def inputs_of(name: str, batch: int = 2, second: bool = False) -> dict[str, Any]:
    torch.manual_seed(1)
    family = FAMILIES[name]
    drawn: dict[str, Any] = family.inputs(batch, family.lengths[second])
    return drawn


def train(model: Any, inputs: dict[str, Any], seed: int = 2) -> dict[str, Any]:
    """Run forward and backward; return what forward gave, and where the generator then stood."""
    torch.manual_seed(seed)
    output = model(**inputs)
    output.loss.backward()
    return {"output": dict(output), "next random number": torch.rand(())}


def assert_trains_alike(model: Any, inputs: dict[str, Any]) -> None:
    """Compare one step: output, loss, every gradient, buffers, and the random numbers used."""
    ours, exact = compiled_copy(model), copy.deepcopy(model).double()
    expected = train(model, inputs)
    actual = train(ours, inputs)
    try:
        assert_same(actual, expected)
        assert_same_gradients(ours._orig_mod, model)
        assert_same(dict(ours._orig_mod.named_buffers()), dict(model.named_buffers()))
    except AssertionError:
        true = train(exact, {name: in_double(value) for name, value in inputs.items()})
        assert_as_accurate(actual, expected, true)
        assert_as_accurate(gradients(ours._orig_mod), gradients(model), gradients(exact))


def in_double(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def without_cache(name: str) -> dict[str, Any]:
    return {"use_cache": False} if FAMILIES[name].cached else {}


@pytest.mark.parametrize("name", FAMILIES)
def test_training(name: str) -> None:
    model = build(name).train()
    next(model.parameters()).requires_grad_(False)
    with round_trips() as texts:
        assert_trains_alike(model, {**inputs_of(name), **without_cache(name)})
    assert texts.count > 4


@pytest.mark.parametrize("name", FAMILIES)
def test_inference(name: str) -> None:
    model = build(name).eval()
    inputs = inputs_of(name)
    with torch.no_grad(), round_trips() as texts:
        assert_same(compiled_copy(model)(**inputs), model(**inputs))
    assert texts.count > 2


@pytest.mark.parametrize("name", some(AT_ANOTHER_SIZE))
def test_inference_at_another_size(name: str) -> None:
    model = build(name).eval()
    ours = compiled_copy(model)
    for second in (False, True):
        inputs = inputs_of(name, batch=3 if second else 2, second=second)
        with torch.no_grad():
            assert_same(ours(**inputs), model(**inputs))


@pytest.mark.parametrize("name", WITH_EAGER_ATTENTION)
def test_training_with_attention_written_out(name: str) -> None:
    model = build(name, attention="eager").train()
    assert_trains_alike(model, {**inputs_of(name), **without_cache(name)})


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generation_step_by_step(name: str) -> None:
    model = build(name).eval()
    ours = compiled_copy(model)
    first = inputs_of(name)
    del first["labels"]
    results = []
    for runner in (ours, model):
        with torch.no_grad():
            results.append(
                decode(runner, dict(first), decoder="decoder_start_token_id" in model.config)
            )
    assert_same(results[0], results[1])


def decode(model: Any, inputs: dict[str, Any], decoder: bool, steps: int = 4) -> list[Any]:
    """Predict tokens one by one, each from the last and the cache of those before."""
    logits = []
    key = "decoder_input_ids" if decoder else "input_ids"
    if decoder:
        inputs[key] = torch.ones(2, 1, dtype=torch.int64)
    else:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    for _ in range(steps):
        output = model(**inputs, use_cache=True)
        logits.append(output.logits[:, -1])
        inputs[key] = output.logits[:, -1:].argmax(-1)
        inputs["past_key_values"] = output.past_key_values
        if not decoder:
            mask = inputs["attention_mask"]
            inputs["attention_mask"] = torch.cat([mask, mask[:, :1]], 1)
    return logits


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_dropout_draws_what_eager_draws(name: str, attention: str) -> None:
    model = build(name, attention, dropout=0.2).train()
    inputs = {**inputs_of(name), **without_cache(name)}
    assert not torch.equal(
        train(model, inputs, 2)["output"]["loss"], train(model, inputs, 3)["output"]["loss"]
    )
    model.zero_grad()
    assert_trains_alike(model, inputs)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_activation_checkpointing(name: str) -> None:
    model = build(name, dropout=0.1).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_trains_alike(model, {**inputs_of(name), "use_cache": False})


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_autocast(name: str) -> None:
    model = build(name).train()
    inputs = {**inputs_of(name), **without_cache(name)}
    ours, exact = compiled_copy(model), copy.deepcopy(model).double()
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = train(model, inputs), train(ours, inputs)
    # Sums of products are rounded at other places, so both are compared with what is exact.
    true = train(exact, {key: in_double(value) for key, value in inputs.items()})
    assert_as_accurate(actual, expected, true)
    assert_as_accurate(gradients(ours._orig_mod), gradients(model), gradients(exact))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_several_steps_with_an_optimizer(name: str) -> None:
    model = build(name).train()
    ours = compiled_copy(model)
    inputs = {**inputs_of(name), **without_cache(name)}
    losses: list[list[float]] = []
    for runner in (ours, model):
        optimizer = torch.optim.AdamW(runner.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            losses[-1].append(float(train(runner, inputs)["output"]["loss"]))
            optimizer.step()
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]
