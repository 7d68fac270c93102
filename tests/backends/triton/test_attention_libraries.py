"""Which library computes which attention, with libraries that only pretend to be there."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lynx.backends.triton import attention_libraries as libraries
from lynx.backends.triton.attention import AttentionOptions
from lynx.backends.triton.attention_launch import OURS, AttentionKernel, attention_kernel
from lynx.backends.triton.autotune import Tuner
from lynx.backends.triton.interpreter import InterpretedAttention
from lynx.passes.attention.standard import StandardForm, standard_form
from tests.backends.c.attentions import Example, reference_gradients
from tests.backends.c.score_functions import ALL
from tests.backends.triton.attentions import Run, is_close

SIZES = (1, 4, 2, 33, 33, 16, 16)
LOW: dict[str, Any] = {"sizes": SIZES, "dtype": torch.bfloat16}

FORMS = {
    "plain": StandardForm(),
    "scaled": StandardForm(0.25),
    "causal": StandardForm(0.25, upper=0),
    "causal_from_the_end": StandardForm(0.25, upper=7),
    "causal_with_least": StandardForm(0.25, upper=0),
    "window": StandardForm(0.25, upper=0, lower=19),
    "hidden_rows": StandardForm(0.25, upper=-9),
    "softcap": StandardForm(0.25, 3.0),
    "softcap_causal": StandardForm(0.25, 3.0, upper=0),
}


@pytest.mark.parametrize("name", ALL)
def test_forms(name: str) -> None:
    run = Run(ALL[name](sizes=(1, 2, 2, 33, 40, 8, 8)), backward=False)
    found = standard_form(run.calls[0].score)
    wanted = FORMS.get(name)
    if name == "hidden_rows_with_least":
        wanted = FORMS["hidden_rows"]
    assert found == wanted if wanted is not None else isinstance(found, str)


class Flash:
    """Pretends to be flash-attn 2: records how it is called, and computes in torch."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def flash_attn_func(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        self.calls.append(options)
        if self.error is not None:
            raise self.error
        given = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = self.example.reference(*given)
        return out.transpose(1, 2).to(q.dtype), lse.float(), None

    def _flash_attn_backward(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any,
        dv: Any, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, softcap: float, alibi_slopes: Any, deterministic: bool,
        rng_state: Any = None,
    ) -> None:  # fmt: skip
        self.calls.append({"causal": causal, "deterministic": deterministic})
        if self.error is not None:
            raise self.error
        given = [x.transpose(1, 2) for x in (q, k, v, dout)]
        with torch.enable_grad():
            found = reference_gradients(self.example, *given, None)
        for name, target in zip("qkv", (dq, dk, dv), strict=True):
            target.copy_(found[name].transpose(1, 2))


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flash]:
    """Let flash-attn 2 be there, on a device of capability 8.0."""
    made = Flash(ALL["causal"](**LOW))
    package = types.ModuleType("flash_attn")
    inner = types.ModuleType("flash_attn.flash_attn_interface")
    package.flash_attn_func = made.flash_attn_func  # type: ignore[attr-defined]
    inner._flash_attn_backward = made._flash_attn_backward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", inner)
    monkeypatch.setattr(libraries, "_capability", lambda device: (8, 0))
    libraries._module.cache_clear()
    yield made
    libraries._module.cache_clear()


def kernels(run: Run, heard: list[str], **options: Any) -> list[AttentionKernel]:
    tuner = options.pop("tuner", None)
    return [
        attention_kernel(
            call, AttentionOptions(**options), InterpretedAttention, heard.append, tuner, "cuda:0"
        )
        for call in run.calls
    ]


def launch(run: Run, made: list[AttentionKernel]) -> None:
    for kernel in made:
        kernel.launch(run.memory.tensors[: len(kernel.kernel.buffers)], ())


def test_a_library_computes_what_it_can(flash: Flash) -> None:
    run, heard = Run(flash.example, with_grad_lse=False), list[str]()
    made = kernels(run, heard, is_deterministic=True)
    names = [[one.name for one in kernel.providers] for kernel in made]
    assert all(found[0] == "flash-attn 2" and found[-1] == OURS for found in names)
    launch(run, made)
    assert flash.calls[0]["causal"]
    assert flash.calls[0]["softmax_scale"] == 0.25
    assert flash.calls[1] == {"causal": True, "deterministic": True}
    expected, logarithms = flash.example.reference(*run.operands)
    is_close(run.out, expected, 1e-2)
    is_close(run.lse, logarithms, 1e-5)
    grads = reference_gradients(flash.example, *run.operands, run.grad_out, None)
    for name, grad in grads.items():
        is_close(run.found.all()[name], grad, 2e-2)
    assert heard == []


def test_a_library_that_fails_gives_way_once(flash: Flash) -> None:
    flash.error = RuntimeError("no kernel image\n is available")
    run, heard = Run(flash.example, backward=False), list[str]()
    made = kernels(run, heard)
    for provider in made[0].providers[1:-1]:  # torch has none of this on a CPU
        made[0].providers.remove(provider)
    launch(run, made)
    launch(run, made)
    assert len(flash.calls) == 1
    (message,) = heard
    assert message.startswith(f"lynx computes an attention by {OURS}: flash-attn 2 does not")
    assert "no kernel image is available" in message
    expected, _ = flash.example.reference(*run.operands)
    is_close(run.out, expected, 1e-2)


@pytest.mark.parametrize("error", [IndexError("out of range"), torch.OutOfMemoryError("none")])
def test_what_is_the_users_is_raised(flash: Flash, error: Exception) -> None:
    flash.error = error
    run = Run(flash.example, backward=False)
    with pytest.raises(type(error)):
        launch(run, kernels(run, []))


def test_windows_are_counted_from_the_end(flash: Flash) -> None:
    flash.example = ALL["window"](sizes=(1, 4, 2, 33, 30, 16, 16), dtype=torch.bfloat16)
    run = Run(flash.example, backward=False)
    launch(run, kernels(run, []))
    (options,) = flash.calls
    assert not options["causal"]
    assert options["window_size"] == (16, 3)


CHOICES = {
    "causal": ("causal", {}, "flash-attn 2"),
    "a window before the own key": ("causal", {"sizes": (1, 4, 2, 30, 33, 16, 16)}, OURS),
    "bias": ("bias_1hqk", {}, OURS),
    "documents": ("documents", {}, OURS),
    "rows that see nothing": ("hidden_rows", {}, OURS),
    "more depth of values": ("causal", {"sizes": (1, 4, 2, 33, 33, 16, 24)}, OURS),
    "odd depth": ("causal", {"sizes": (1, 4, 2, 33, 33, 15, 15)}, OURS),
    "single precision": ("causal", {"dtype": torch.float32}, OURS),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choices(case: str, flash: Flash) -> None:
    name, more, wanted = CHOICES[case]
    run = Run(ALL[name](**{**LOW, **more}), backward=False)
    (made,) = kernels(run, [])
    assert made.choose(run.memory.tensors, ()).name == wanted


def test_without_a_library_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_capability", lambda device: (0, 0))
    monkeypatch.setattr(libraries, "_has_torch_flash", lambda device: False)
    run = Run(ALL["causal"](**LOW), backward=False)
    (made,) = kernels(run, [])
    assert [one.name for one in made.providers] == [OURS]


def test_the_fastest_by_measurement_is_taken(flash: Flash) -> None:
    run = Run(flash.example, backward=False)
    times = iter([3.0, 2.0, 1.0])

    def measure(call: Any) -> float:
        return next(times)

    (made,) = kernels(run, [], tuner=Tuner(None, measure, "pretended"))
    made.providers[1:-1] = []
    assert made.choose(run.memory.tensors, ()).name == OURS
    assert made.choose(run.memory.tensors, ()).name == OURS


def test_torch_is_asked_for_what_it_computes() -> None:
    causal = Run(ALL["causal"](**LOW), backward=False)
    form = standard_form(causal.calls[0].score)
    assert isinstance(form, StandardForm)
    attended = libraries.Attended(libraries.TORCH_FLASH, causal.calls[0], form, (), False)
    assert attended.takes_values(causal.memory.tensors, ())
    capped = Run(ALL["softcap"](**LOW), backward=False)
    form = standard_form(capped.calls[0].score)
    assert isinstance(form, StandardForm)
    attended = libraries.Attended(libraries.TORCH_FLASH, capped.calls[0], form, (), False)
    assert not attended.takes_values(capped.memory.tensors, ())
