"""Attention in C: against torch, for score functions, types, layouts and sizes of all kinds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from lynx.backends.c import compile_segments
from lynx.ir import symbol
from lynx.ir.kernel_verifier import verify_kernel
from lynx.ir.native import AttentionSizes, Segment
from lynx.passes.attention.masks import mask_of, region_of
from lynx.passes.attention.score import plain_score
from tests.backends.c.attentions import (
    Example,
    Gradients,
    Memory,
    backward_call,
    forward_call,
    gradients_of,
    reference_gradients,
    results,
)
from tests.backends.c.score_functions import ALL

F32 = torch.float32
TOLERANCE = {
    torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2, torch.float16: 1.5e-3,
}  # fmt: skip


def is_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Compare with a tolerance relative to the largest number; NaN and infinities are equal."""
    found, expected = found.double(), expected.double()
    finite = expected[expected.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale, equal_nan=True)


@dataclasses.dataclass
class Run:
    """An example with its memory, and what its calls have to give."""

    example: Example
    backward: bool
    memory: Memory = dataclasses.field(default_factory=Memory)
    found: Gradients = dataclasses.field(default_factory=Gradients)

    def __post_init__(self) -> None:
        example = self.example
        self.operands = example.tensors()
        self.out, self.lse = results(example)
        forward = forward_call(example, self.memory, *self.operands, self.out, self.lse)
        self.calls: list[Any] = [forward]
        generator = torch.Generator().manual_seed(3)
        self.grad_out = torch.randn(self.out.shape, generator=generator).to(self.out.dtype)
        self.grad_lse = torch.randn(self.lse.shape, generator=generator).to(self.lse.dtype)
        verify_kernel(forward.score)
        if self.backward:
            self.found = gradients_of(example, *self.operands)
            grads = (self.grad_out, self.grad_lse)
            call = backward_call(example, self.memory, forward, *grads, self.found)
            verify_kernel(call.derivative)
            self.calls.append(call)

    def segment(self) -> Segment:
        return Segment("attention", tuple(self.calls), len(self.memory.tensors), ())

    def compare(self, loose: float) -> None:
        example = self.example
        expected, logarithms = example.reference(*self.operands)
        tolerance = TOLERANCE[example.dtype] * loose
        is_close(self.out, expected, tolerance)
        is_close(self.lse, logarithms, TOLERANCE[example.real] * loose)
        if not self.backward:
            return
        grads = (self.grad_out, self.grad_lse)
        for name, grad in reference_gradients(example, *self.operands, *grads).items():
            # The reference gives gradients of operands in their own type.
            own = TOLERANCE[F32] if name.startswith("x") else 0.0
            is_close(self.found.all()[name], grad, 3 * max(tolerance, own))


def check(*examples: Example, backward: bool = True, loose: float = 1.0) -> None:
    """Compile examples together, run them both ways, and compare all results."""
    runs = [Run(example, backward) for example in examples]
    functions = compile_segments(tuple(run.segment() for run in runs))
    for run, function in zip(runs, functions, strict=True):
        run.memory.again(function)
        run.compare(loose)


SEVERAL = (2, 4, 2, 110, 300, 8, 12)
"""Several blocks of queries and tiles of keys."""


LOOSE = {"slopes": 30.0, "additive_1e4": 1000.0, "hidden_rows_with_1e4": 100.0}
"""Large numbers in scores take digits from the rest, of the reference too."""


@pytest.mark.parametrize("name", ALL)
def test_score_functions(name: str) -> None:
    check(ALL[name](sizes=SEVERAL), loose=LOOSE.get(name, 3.0))


@pytest.mark.parametrize("name", ["hidden_rows_with_least", "bias_b11k"])
def test_many_tiles(name: str) -> None:
    check(ALL[name](sizes=(1, 2, 1, 300, 1100, 8, 8)), loose=3.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "bias_1hqk"])
def test_types(name: str, dtype: torch.dtype) -> None:
    check(ALL[name](dtype=dtype))


SIZES = [
    (1, 1, 1, 1, 1, 1, 1), (1, 2, 2, 5, 3, 3, 80), (2, 3, 1, 1, 600, 7, 5),
    (1, 1, 1, 700, 1, 64, 64), (1, 4, 1, 97, 257, 96, 33), (1, 2, 1, 200, 530, 128, 128),
    (3, 6, 2, 49, 49, 32, 32), (1, 1, 1, 3, 0, 4, 4), (0, 1, 1, 3, 2, 4, 4), (1, 2, 2, 0, 3, 4, 4),
    (1, 2, 1, 3, 4, 0, 4), (1, 2, 1, 3, 4, 4, 0),
    (4, 8, 4, 100, 40, 9, 16), (1, 2, 2, 9, 300, 17, 32),
]  # fmt: skip


@pytest.mark.parametrize("name", ["scaled", "causal"])
def test_sizes(name: str) -> None:
    check(*(ALL[name](sizes=sizes) for sizes in SIZES), loose=10.0)


@pytest.mark.parametrize("name", ["causal_from_the_end", "additive", "hidden_rows_with_least"])
def test_few_queries(name: str) -> None:
    """Decoding reads keys where they lie, in several parts; heads that share keys are together."""
    few = [(1, 4, 1, 1, 1500, 24, 20), (3, 2, 2, 3, 700, 16, 16), (2, 8, 8, 1, 40, 7, 9)]
    check(*(ALL[name](sizes=sizes) for sizes in few), backward=False, loose=3.0)


LAYOUTS = [(0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 3, 2), (2, 0, 1, 3)]


def test_layouts() -> None:
    check(*(ALL["causal"](layout=layout) for layout in LAYOUTS))


SINKS = [(1, 4, 1), (2, 1, 70), (1, 1, 1), (2, 4, 70)]


@pytest.mark.parametrize("name", ["plain", "hidden_rows", "hidden_rows_with_least"])
def test_sinks(name: str) -> None:
    generator = torch.Generator().manual_seed(8)
    sinks = [torch.randn(shape, generator=generator) for shape in SINKS]
    check(*(ALL[name](sink=sink) for sink in sinks), loose=3.0)


@pytest.mark.parametrize("name", ["causal", "bias_b11k", "softcap"])
def test_dropout(name: str) -> None:
    sizes = Example().sizes
    shape = (sizes[0], sizes[1], sizes[3], sizes[4])
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(9)) < 0.7
    check(ALL[name](keep=keep, keep_scale=1 / 0.7))


@pytest.mark.parametrize("name", ["hidden_rows", "additive_infinite"])
def test_queries_that_see_nothing_give_zeros_if_asked_to(name: str) -> None:
    check(ALL[name](zero_empty=True))


def test_queries_that_see_nothing_are_not_a_number() -> None:
    example = ALL["hidden_rows"]()
    q, k, v = example.tensors()
    out, lse = results(example)
    memory = Memory()
    memory.run(forward_call(example, memory, q, k, v, out, lse))
    assert out[:, :, :9].isnan().all()
    assert (lse[:, :, :9] == -math.inf).all()
    assert out[:, :, 9:].isfinite().all()


def test_not_a_number_spreads_as_in_eager() -> None:
    example = ALL["scaled"]()
    q, k, v = example.tensors()
    q[0, 1, 3, 0] = math.nan
    out, lse = results(example)
    memory = Memory()
    memory.run(forward_call(example, memory, q, k, v, out, lse))
    assert out[0, 1, 3].isnan().all()
    assert out.isnan().sum() == out.shape[3]


@pytest.mark.parametrize("name", ["causal", "causal_with_least", "additive_1e4"])
def test_what_is_hidden_spreads_if_it_is_not_finite(name: str) -> None:
    """A weight of zero times NaN or infinity is NaN, wherever that lies."""
    (function,) = compile_segments((Run(ALL[name](sizes=SEVERAL), backward=True).segment(),))
    for which, place, number in (
        ("q", (0, 1, 3, 0), math.nan), ("k", (0, 1, 290, 2), math.nan),
        ("v", (1, 0, 290, 1), math.nan), ("v", (1, 1, 5, 1), math.inf),
        ("grad_out", (0, 1, 3, 0), math.nan),
    ):  # fmt: skip
        run = Run(ALL[name](sizes=SEVERAL), backward=True)
        tensors = dict(zip("qkv", run.operands, strict=True), grad_out=run.grad_out)
        tensors[which][place] = number
        run.memory.again(function)
        run.compare(LOOSE.get(name, 3.0))


def test_a_mask_that_hides_little_is_computed_in_full() -> None:
    """Where the number filled in is not below the other scores, nothing may be skipped."""
    check(ALL["hidden_rows_with_1e4"](scale=30.0), backward=False, loose=30.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    """Every bit is the same, whatever runs in parallel."""
    example = ALL["bias_1h1k"](sizes=(2, 4, 2, 300, 700, 24, 16), dtype=dtype)
    q, k, v = example.tensors()
    before = torch.get_num_threads()
    runs: list[list[torch.Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, lse = results(example)
            memory, found = Memory(), gradients_of(example, q, k, v)
            forward = forward_call(example, memory, q, k, v, out, lse)
            grad_out = torch.ones_like(out)
            call = backward_call(example, memory, forward, grad_out, None, found)
            segment = Segment("attention", (forward, call), len(memory.tensors), ())
            memory.again(compile_segments((segment,))[0])
            runs.append([out, lse, *found.all().values()])
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_some_gradients_alone() -> None:
    example = ALL["bias_1hqk"]()
    q, k, v = example.tensors()
    out, lse = results(example)
    grad_out = torch.ones_like(out)
    expected = reference_gradients(example, q, k, v, grad_out, None)
    for name in ("q", "k", "v", "x0"):
        memory = Memory()
        forward = forward_call(example, memory, q, k, v, out, lse)
        all_of_them = gradients_of(example, q, k, v)
        chosen = Gradients()
        if name == "x0":
            chosen.operands = all_of_them.operands
        else:
            setattr(chosen, name, getattr(all_of_them, name))
        call = backward_call(example, memory, forward, grad_out, None, chosen)
        segment = Segment("attention", (forward, call), len(memory.tensors), ())
        memory.again(compile_segments((segment,))[0])
        is_close(chosen.all()[name], expected[name], 1e-5)


def test_sizes_may_be_known_late() -> None:
    """One function serves all sizes; strides are symbolic, too."""
    s, t = symbol("s"), symbol("t")
    for queries, keys in ((70, 90), (5, 300)):
        example = Example(sizes=(2, 4, 2, queries, keys, 16, 24))
        q, k, v = example.tensors()
        out, lse = results(example)
        memory = Memory()
        call = forward_call(example, memory, q, k, v, out, lse)
        score = plain_score(call.score.buffers[0].dtype, (2, 4, s, t))
        sizes = AttentionSizes(2, 4, 2, s, t, 16, 24)
        moved = {
            "sizes": sizes,
            "score": score,
            "lse": _with_strides(call.lse, (4 * s, s, 1)),
            "out": _with_strides(call.out, (96 * s, 24, 96, 1)),
            "q": _with_strides(call.q, (64 * s, 16, 64, 1)),
            "k": _with_strides(call.k, (32 * t, 16, 32, 1)),
        }
        segment = Segment(
            "attention", (dataclasses.replace(call, **moved),), len(memory.tensors), ("s", "t")
        )
        (function,) = compile_segments((segment,))
        memory.again(function, (queries, keys))
        expected, _ = example.reference(q, k, v)
        is_close(out, expected, 3e-6)


def _with_strides(tensor: Any, strides: Any) -> Any:
    return dataclasses.replace(tensor, strides=strides)


CLASSES = {
    "causal": (1, 0), "causal_with_least": (1, 0), "window": (2, 0), "prefix": (1, 0),
    "documents": (0, 1), "padding": (0, 1), "lengths": (1, 0), "softcap_causal": (1, 0),
    "additive": (0, 1), "one_minus": (1, 0), "scaled": (0, 0), "blocks_of_keys": (0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_known_of_masks(name: str) -> None:
    example = ALL[name]()
    q, k, v = example.tensors()
    call = forward_call(example, Memory(), q, k, v, *results(example))
    mask = mask_of(call.score)
    affine = [literal for literal in mask.literals if region_of(literal) is not None]
    other = len(mask.literals) - len(affine) + len(mask.terms)
    assert (len(affine), other) == CLASSES[name]
