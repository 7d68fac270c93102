"""Attention in Triton's interpreter: against torch, for score functions, types and sizes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from lynx.backends.triton.attention import AttentionOptions, print_attention
from lynx.backends.triton.attention_writer import Tiles, parts_of
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.ir.dims import symbol
from lynx.ir.errors import CompileError
from lynx.ir.native import AttentionSizes, Strided
from lynx.ir.types import DType
from lynx.passes.attention.score import plain_score
from tests.backends.c.attentions import Gradients, Memory, backward_call, forward_call
from tests.backends.c.score_functions import ALL
from tests.backends.triton.attentions import SMALL, Run, is_close
from tests.frontend.random_scores import RandomScore, Sizes

SIZES = (1, 2, 1, 35, 40, 8, 8)
"""Several blocks of queries and keys, the last ones not full."""

LOOSE = {"slopes": 30.0, "additive_1e4": 1000.0, "hidden_rows_with_1e4": 100.0}
"""Large numbers in scores take digits from the rest, of the reference too."""

QUICK = (
    "causal", "window", "hidden_rows", "hidden_rows_with_least", "hidden_rows_with_1e4",
    "documents", "softcap_causal", "bias_1hqk", "bias_b11k", "bias_1111", "additive",
)  # fmt: skip
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALL]


@pytest.mark.parametrize("name", NAMES)
def test_score_functions(name: str, interpreter: TritonInterpreter) -> None:
    run = Run(ALL[name](sizes=SIZES))
    run.interpret(interpreter)
    run.compare(LOOSE.get(name, 1.0))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_low_precision(dtype: torch.dtype, interpreter: TritonInterpreter) -> None:
    run = Run(ALL["softcap_causal"](sizes=SIZES, dtype=dtype))
    run.interpret(interpreter)
    run.compare()


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1, 1, 1), (2, 3, 1, 1, 33, 7, 5), (1, 2, 2, 20, 16, 40, 80),
        (1, 1, 1, 3, 0, 4, 4), (0, 1, 1, 3, 2, 4, 4), (1, 2, 2, 0, 3, 4, 4),
    ],
)  # fmt: skip
def test_sizes(sizes: tuple[int, ...], interpreter: TritonInterpreter) -> None:
    run = Run(ALL["causal"](sizes=sizes))
    run.interpret(interpreter)
    run.compare(3.0)


def test_depths_are_held_by_little_more() -> None:
    widths = {depth: [part.width for part in parts_of(depth)] for depth in (5, 64, 80, 96, 112)}
    assert widths == {5: [16], 64: [64], 80: [64, 16], 96: [64, 32], 112: [128]}


def test_layouts_and_unequal_tiles(interpreter: TritonInterpreter) -> None:
    run = Run(ALL["causal_from_the_end"](sizes=SIZES, layout=(3, 2, 1, 0)))
    run.interpret(interpreter, Tiles(16, 32, 4, 2))
    run.compare()


@pytest.mark.parametrize("shape", [(2, 1), (1, 1, 1), (1, 2, 35)])
def test_sinks(shape: tuple[int, ...], interpreter: TritonInterpreter) -> None:
    sink = torch.randn(shape, generator=torch.Generator().manual_seed(8))
    run = Run(ALL["hidden_rows"](sizes=SIZES, sink=sink))
    run.interpret(interpreter)
    run.compare()


def test_dropout(interpreter: TritonInterpreter) -> None:
    keep = torch.rand(1, 2, 35, 40, generator=torch.Generator().manual_seed(9)) < 0.7
    run = Run(ALL["bias_1h1k"](sizes=SIZES, keep=keep, keep_scale=1 / 0.7))
    run.interpret(interpreter)
    run.compare()


def test_queries_that_see_nothing_give_zeros_if_asked_to(interpreter: TritonInterpreter) -> None:
    run = Run(ALL["hidden_rows"](sizes=SIZES, zero_empty=True))
    run.interpret(interpreter)
    run.compare()


def test_not_a_number_spreads_as_in_eager(interpreter: TritonInterpreter) -> None:
    run = Run(ALL["scaled"](sizes=SIZES), backward=False)
    run.operands[0][0, 1, 3, 0] = math.nan
    run.interpret(interpreter)
    assert run.out[0, 1, 3].isnan().all()
    assert run.out.isnan().sum() == run.out.shape[3]


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))]
)
def test_random_scores(seed: int, interpreter: TritonInterpreter) -> None:
    sizes = (2, 4, 2, 18, 21, 8, 8)
    b, h, _, m, n, _, _ = sizes
    made = RandomScore(seed, Sizes((b, h, m, n), (b, h, m, n)), DType.F32)
    example = _RandomExample(
        sizes=sizes, text="random", score=lambda dot, *o: made.of_torch(dot, o),
        operands=made.operands, zero_empty=True, made=made,
    )  # fmt: skip
    run = Run(example)
    run.interpret(interpreter)
    run.compare(100.0)


@dataclasses.dataclass
class _RandomExample(type(ALL["plain"]())):  # type: ignore[misc]
    made: RandomScore | None = None

    def region(self) -> object:
        assert self.made is not None
        return self.made.region


@pytest.mark.parametrize("name", ["q", "k", "v", "x0"])
def test_some_gradients_alone(name: str, interpreter: TritonInterpreter) -> None:
    run = Run(ALL["bias_1hqk"](sizes=SIZES))
    chosen = Gradients()
    if name == "x0":
        chosen.operands = run.found.operands
    else:
        setattr(chosen, name, getattr(run.found, name))
    run.memory, whole = Memory(), run.found
    forward = forward_call(run.example, run.memory, *run.operands, run.out, run.lse)
    grads = (run.grad_out, run.grad_lse)
    run.calls = [forward, backward_call(run.example, run.memory, forward, *grads, chosen)]
    run.interpret(interpreter)
    run.found, run.backward = whole, False
    from_all = Run(run.example)
    from_all.interpret(interpreter)
    is_close(chosen.all()[name], from_all.found.all()[name], 1e-6)


def test_sizes_and_depths_may_be_known_late(interpreter: TritonInterpreter) -> None:
    s, t, d = symbol("s"), symbol("t"), symbol("d")
    for queries, keys, depth in ((20, 35, 8), (3, 17, 24)):
        run = Run(ALL["plain"](sizes=(2, 4, 2, queries, keys, depth, depth)))
        score = plain_score(DType.F32, (2, 4, s, t))
        sizes = AttentionSizes(2, 4, 2, s, t, d, d)
        forward, backward = run.calls
        late = {
            "q": (4 * s * d, d, 4 * d, 1), "k": (2 * t * d, d, 2 * d, 1),
            "v": (2 * t * d, d, 2 * d, 1), "out": (4 * s * d, d, 4 * d, 1), "lse": (4 * s, s, 1),
        }  # fmt: skip

        def relaid(x: Strided, name: str, strides: dict[str, tuple] = late) -> Strided:  # type: ignore[type-arg]
            return dataclasses.replace(x, strides=strides[name])

        forward = dataclasses.replace(
            forward, score=score, sizes=sizes,
            **{name: relaid(getattr(forward, name), name) for name in late},
        )  # fmt: skip
        backward = dataclasses.replace(
            backward, forward=forward,
            **{name: relaid(getattr(backward, name), name) for name in "qkv"},
        )  # fmt: skip
        run.calls = [forward, backward]
        run.interpret(interpreter, sizes={"s": queries, "t": keys, "d": depth})
        run.compare()


def test_large_tensors_are_indexed_with_64_bits() -> None:
    run = Run(ALL["causal"](sizes=SIZES), backward=False)
    (call,) = run.calls
    far = dataclasses.replace(call.k, strides=(2**31, *call.k.strides[1:]))
    sizes = dataclasses.replace(call.sizes, batch=2)
    text = print_attention(dataclasses.replace(call, k=far, sizes=sizes)).printed.text
    assert ".to(tl.int64)" in text
    late = dataclasses.replace(call, k=dataclasses.replace(call.k, strides=(symbol("n"), 1, 1, 1)))
    late = dataclasses.replace(late, sizes=sizes)
    assert "index = tl.int64 if" in print_attention(late).printed.text


def test_tiles_beyond_what_is_seen_are_skipped(interpreter: TritonInterpreter) -> None:
    """What no query sees is never read: it is not a number, and would show."""
    sizes = (1, 2, 2, 16, 64, 16, 16)
    run = Run(ALL["causal"](sizes=sizes), backward=False)
    for tensor in run.operands[1:]:
        tensor[:, :, 16:] = math.nan
    run.interpret(interpreter, SMALL)
    assert run.out.isfinite().all()


def test_sums_in_any_order_are_refused_where_that_matters() -> None:
    options = AttentionOptions(is_deterministic=True)
    run = Run(ALL["bias_b11k"](sizes=SIZES))
    with pytest.raises(CompileError, match="any order"):
        print_attention(run.calls[1], options)
    assert "atomic_add" in print_attention(run.calls[1]).printed.text
    apart = Run(ALL["bias_bhqk"](sizes=SIZES))
    assert "atomic_add" not in print_attention(apart.calls[1], options).printed.text


def test_double_precision_is_refused() -> None:
    run = Run(ALL["causal"](sizes=SIZES, dtype=torch.float64), backward=False)
    with pytest.raises(CompileError, match="attend to no f64"):
        print_attention(run.calls[0])
