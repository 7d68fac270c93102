"""The operator of attention against eager, under autograd and the transforms of `torch.func`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
import torch.utils._pytree

from lynx.backends.reference import attention as in_rows
from lynx.ir.dims import symbol
from lynx.ir.ops.fusion import Region
from lynx.ir.score import score_region, score_text
from lynx.ir.types import DType
from lynx.operators import attention
from tests.frontend.random_scores import RandomScore, Sizes

F64 = torch.float64


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score: Callable[[torch.Tensor], torch.Tensor] = lambda dot: dot,
    sink: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
    keep_scale: float = 1.0,
    zero_empty: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention as models write it."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = score(q @ k.mT)
    columns = scores
    if sink is not None:
        column = sink.broadcast_to(q.shape[:3])[..., None].to(scores.dtype)
        columns = torch.cat([scores, column], 3)
    function = torch._safe_softmax if zero_empty else torch.softmax
    weights = function(columns, -1)[..., : scores.shape[3]]
    if keep is not None:
        weights = weights * keep * keep_scale
    return weights @ v, torch.logsumexp(columns, -1)


def operands(
    batch: int = 2, heads: int = 4, shared: int = 2, rows: int = 5, keys: int = 7,
    depth: int = 3, depth_of_values: int = 6, dtype: torch.dtype = F64,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    shapes = (
        (batch, heads, rows, depth),
        (batch, shared, keys, depth),
        (batch, shared, keys, depth_of_values),
    )
    return tuple(torch.randn(shape, dtype=F64).to(dtype).requires_grad_() for shape in shapes)


def text_of(region: Region, sizes: Sizes) -> dict[str, Any]:
    """Return the text of a region, and the values of its symbols."""
    text, names = score_text(region)
    values = {str(dim): n for dim, n in zip(sizes.dims, sizes.numbers, strict=True)}
    return {"score": text, "sizes": [values[str(name)] for name in names]}


def compare(ours: Any, theirs: Any, sources: list[torch.Tensor], tolerance: float = 1e-9) -> None:
    """Compare results, and their gradients, with those of other means in `f64`."""
    torch.manual_seed(1)
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            actual.to(F64), expected.to(F64), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    # Torch's logsumexp has no gradient where nothing is seen.
    kept = [n for n, result in enumerate(theirs) if bool(result.isfinite().all())] or [0]
    weights = [torch.randn(theirs[n].shape, dtype=F64) for n in kept]
    found = []
    for results in (ours, theirs):
        parts = [(results[n].to(F64) * w).sum() for n, w in zip(kept, weights, strict=True)]
        found.append(torch.autograd.grad(sum(parts), sources, allow_unused=True))
    for actual, expected in zip(*found, strict=True):
        assert (actual is None) == (expected is None) or expected is None or not expected.any()
        if actual is not None and expected is not None:
            torch.testing.assert_close(
                actual, expected, rtol=tolerance * 10, atol=tolerance * 10, equal_nan=True
            )


@pytest.mark.parametrize("rows_at_a_time", [None, 1, 2])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_sink_dropout_and_shared_heads(
    shared: int, rows_at_a_time: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows_at_a_time is not None:
        monkeypatch.setattr(in_rows, "BLOCK_BYTES", rows_at_a_time * 2 * 4 * 7 * 8)
    q, k, v = operands(shared=shared)
    sink = torch.randn(4, 1, dtype=F64, requires_grad=True)
    keep = torch.rand(2, 4, 5, 7) < 0.7
    ours = attention(q, k, v, (), sink, keep, keep_scale=1.5)
    compare(ours, eager(q, k, v, sink=sink, keep=keep, keep_scale=1.5), [q, k, v, sink])


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_random_scores(seed: int, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3:
        monkeypatch.setattr(in_rows, "BLOCK_BYTES", (seed % 3) * 2 * 4 * 7 * 8)
    numbers = (2, 4, 5, 7)
    dims = (symbol("u9"), 4, symbol("s77"), symbol("s3")) if symbolic else numbers
    sizes = Sizes(numbers, dims)
    made = RandomScore(seed, sizes, DType.F64)
    q, k, v = operands()
    floating = [o.requires_grad_() for o in made.operands if o.is_floating_point()]
    zero_empty = bool(seed % 2)
    form = text_of(made.region, sizes)
    ours = attention(q, k, v, made.operands, **form, zero_empty=zero_empty)
    score = lambda dot: made.of_torch(dot, made.operands)  # noqa: E731
    theirs = eager(q, k, v, score, zero_empty=zero_empty)
    if not zero_empty and theirs[0].isnan().any():
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        return
    compare(ours, theirs, [q, k, v, *floating])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("seed", range(4))
def test_low_precision_is_computed_in_single(seed: int, dtype: torch.dtype) -> None:
    sizes = Sizes((2, 4, 5, 7), (2, 4, 5, 7))
    made = RandomScore(seed, sizes, DType.F32)
    q, k, v = operands(dtype=dtype)
    ours = attention(q, k, v, made.operands, **text_of(made.region, sizes), zero_empty=True)
    assert ours[0].dtype is dtype
    assert ours[1].dtype is torch.float32
    precise = [x.detach().to(F64).requires_grad_() for x in (q, k, v)]
    wide = [o.to(F64) if o.is_floating_point() else o for o in made.operands]
    theirs = eager(*precise, lambda dot: made.of_torch(dot, wide), zero_empty=True)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(ours[0].to(F64), theirs[0], rtol=rounding, atol=1e-5)
    torch.testing.assert_close(ours[1].to(F64), theirs[1], rtol=1e-5, atol=1e-4)
    found = torch.autograd.grad(ours[0].sum(), (q, k, v))
    expected = torch.autograd.grad(theirs[0].sum(), precise)
    for actual, exact in zip(found, expected, strict=True):
        assert actual.dtype is dtype
        scale = float(exact.abs().max()) + 1e-3
        torch.testing.assert_close(actual.to(F64), exact, rtol=rounding, atol=3e-5 * scale)


@pytest.mark.parametrize("shape", [(0, 4, 2, 5, 7), (2, 4, 2, 0, 7), (2, 4, 2, 5, 0)])
def test_empty_sizes(shape: tuple[int, ...]) -> None:
    q, k, v = operands(*shape)
    out, lse = attention(q, k, v)
    assert out.shape == (shape[0], 4, shape[3], 6)
    assert not out.any()
    assert bool((lse == -math.inf).all())
    found = torch.autograd.grad(out.sum(), (q, k, v))
    assert [g.shape for g in found] == [q.shape, k.shape, v.shape]
    assert not any(g.any() for g in found)


def masked(fill: str) -> str:
    return f"""graph @score(%dot: f64[s0, s1, s2, s3], %p0: bool[s2, s3]) {{
        %0 = where %p0, %dot, {fill} : f64[s0, s1, s2, s3]
        return %0
    }}"""


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("zero_empty", [False, True])
@pytest.mark.parametrize("fill", ["-inf", "-1e300"])
def test_rows_that_see_nothing(fill: str, zero_empty: bool, sink: bool) -> None:
    q, k, v = operands()
    mask = torch.rand(5, 7) < 0.5
    mask[2] = False
    given = torch.randn(4, 1, dtype=F64, requires_grad=True) if sink else None
    form = {"score": masked(fill), "sizes": (2, 4, 5, 7), "zero_empty": zero_empty}
    ours = attention(q, k, v, (mask,), given, **form)
    score = lambda dot: torch.where(mask, dot, float(fill))  # noqa: E731
    theirs = eager(q, k, v, score, given, zero_empty=zero_empty)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    sources = [q, k, v] if given is None else [q, k, v, given]
    grads = [torch.autograd.grad(r[0].sum(), sources) for r in (ours, theirs)]
    torch.testing.assert_close(*grads, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bias_in_low_precision_gets_its_gradient_rounded_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_rows, "BLOCK_BYTES", 2 * 4 * 7 * 4)
    name = {torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]
    text = f"""graph @score(%dot: f32[2, 4, 64, 7], %p0: {name}[4, 1, 7]) {{
        %0 = cast %p0 {{dtype = f32}} : f32[4, 1, 7]
        %1 = add %dot, %0 : f32[2, 4, 64, 7]
        return %1
    }}"""
    q, k, v = operands(rows=64, dtype=torch.float32)
    bias = torch.randn(4, 1, 7).to(dtype).requires_grad_()
    out, _ = attention(q, k, v, (bias,), score=text)
    (found,) = torch.autograd.grad(out.square().sum(), bias)
    precise = bias.detach().to(F64).requires_grad_()
    q, k, v = (x.detach().to(F64) for x in (q, k, v))
    exact, _ = eager(q, k, v, lambda dot: dot + precise)
    (expected,) = torch.autograd.grad(exact.square().sum(), precise)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_output_lies_as_models_want_it() -> None:
    q, k, v = operands()
    out, lse = attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous()
    assert lse.is_contiguous()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.transpose(1, 2).is_contiguous()


def test_any_strides() -> None:
    packed = torch.randn(2, 7, 3, 4, 3, dtype=F64)
    q, k, v = (x.requires_grad_() for x in packed.permute(2, 0, 3, 1, 4).detach())
    compare(attention(q, k, v), eager(q, k, v), [q, k, v])
    one = torch.randn(1, 1, 7, 3, dtype=F64).expand(2, 4, 7, 3).requires_grad_()
    compare(attention(q, one, one), eager(q, one, one), [q, one])


LGAMMA = """graph @score(%dot: f64[s0, 4, s1, s2], %p0: f64[4, 1, s2]) {
    %0 = lgamma %dot : f64[s0, 4, s1, s2]
    %1 = add %0, %p0 : f64[s0, 4, s1, s2]
    return %1
}"""

CAP = """graph @score(%dot: f64[s0, 4, s1, s2], %p0: f64[4, 1, s2]) {
    %0 = tanh %dot : f64[s0, 4, s1, s2]
    %1 = add %0, %p0 : f64[s0, 4, s1, s2]
    return %1
}"""


@pytest.mark.filterwarnings("ignore:Backwards compat")
@pytest.mark.parametrize("by_operator", [False, True])
def test_gradients_of_first_and_second_order(by_operator: bool) -> None:
    q, k, v = operands(batch=1, rows=2, keys=3, depth=2, depth_of_values=2)
    bias = torch.randn(4, 1, 3, dtype=F64, requires_grad=True)
    sink = torch.randn(4, 1, dtype=F64, requires_grad=True)
    keep = torch.rand(1, 4, 2, 3) < 0.8

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        *three, b, s = given
        if by_operator:
            form = (CAP, [1, 2, 3], 1.25, False)
            return torch.ops.lynx.attention(*three, [b], s, keep, *form)
        return attention(*three, (b,), s, keep, CAP, (1, 2, 3), 1.25)

    assert torch.autograd.gradcheck(function, (q, k, v, bias, sink))
    assert torch.autograd.gradgradcheck(function, (q, k, v, bias, sink))


def test_gradients_that_depend_on_results_count_once() -> None:
    q, _, v = operands(shared=4, rows=7)
    bias = torch.randn(4, 1, 7, dtype=F64, requires_grad=True)
    for score in ({"score": CAP, "sizes": (2, 7, 7)}, {"score": LGAMMA, "sizes": (2, 7, 7)}):
        of_torch = torch.tanh if score["score"] is CAP else torch.lgamma

        def penalty(out: torch.Tensor) -> list[torch.Tensor]:
            (first,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
            return list(torch.autograd.grad(first.square().sum(), (q, v, bias)))

        ours = penalty(attention(q, q * 0.5, v, (bias,), **score)[0])
        theirs = penalty(eager(q, q * 0.5, v, lambda dot, f=of_torch: f(dot) + bias)[0])
        torch.testing.assert_close(ours, theirs)


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v, (b,), score=CAP, sizes=(q.shape[0], q.shape[2], k.shape[2]))[0]


def capped_by_eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return eager(q, k, v, lambda dot: dot.tanh() + b)[0]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v)[0] * b.sum()


def plain_by_eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return eager(q, k, v)[0] * b.sum()


Function = Callable[..., torch.Tensor]


def summed(function: Function) -> Function:
    return lambda *given: function(*given).sin().sum()


TRANSFORMS: dict[str, Callable[[Function], Callable[..., Any]]] = {
    "grad": lambda f: torch.func.grad(summed(f), (0, 1, 2, 3)),
    "vmap": lambda f: (
        lambda q, *rest: torch.func.vmap(f, (0, None, None, None))(torch.stack([q, 2 * q]), *rest)
    ),
    "vmap of grad": lambda f: (
        lambda q, k, v, b: torch.func.vmap(
            torch.func.grad(summed(f), (0, 1, 2)), (0, 1, None, None)
        )(torch.stack([q, 2 * q]), torch.stack([k, -k], 1), v, b)
    ),
    "vmap over operands": lambda f: (
        lambda q, k, v, b: torch.func.vmap(f, (None, None, None, 0))(q, k, v, torch.stack([b, -b]))
    ),
    "grad of grad": lambda f: torch.func.grad(
        lambda *a: torch.func.grad(summed(f), 1)(*a).square().sum(), (0, 3)
    ),
    "jacrev": lambda f: torch.func.jacrev(f, 2),
}


@pytest.mark.parametrize("pair", [(capped, capped_by_eager), (plain, plain_by_eager)])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, pair: tuple[Function, Function]) -> None:
    given = [x.detach() for x in operands()]
    given.append(torch.randn(4, 1, 7, dtype=F64))
    ours, theirs = (TRANSFORMS[name](function)(*given) for function in pair)
    torch.testing.assert_close(ours, theirs)


def test_score_without_derivative_is_differentiated_by_torch() -> None:
    text = """graph @score(%dot: f64[s0, s1, s2, s3]) {
        %0 = lgamma %dot : f64[s0, s1, s2, s3]
        return %0
    }"""
    q, k, v = operands()
    ours = attention(q, k, v, score=text, sizes=(2, 4, 5, 7))
    compare(ours, eager(q, k, v, torch.lgamma), [q, k, v], 1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.randn(2, 2, 7, 3)}, "of one type"),
        ({"q": torch.randn(4, 5, 3, dtype=F64)}, "four dimensions"),
        ({"v": torch.randn(2, 2, 8, 6, dtype=F64)}, "as many keys and values"),
        ({"k": torch.randn(2, 3, 7, 3, dtype=F64)}, "heads of keys and values"),
        ({"q": torch.randn(2, 3, 5, 3, dtype=F64)}, "cannot share 2 heads"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    q, k, v = operands()
    with pytest.raises(ValueError, match=message):
        attention(**({"q": q, "k": k, "v": v} | change))


def test_operator_agrees_with_its_fake() -> None:
    q, k, v = operands()
    bias = torch.randn(4, 1, 7, dtype=F64, requires_grad=True)
    sink = torch.randn(4, 1, dtype=F64, requires_grad=True)
    form = (CAP, [2, 5, 7], 1.0, True)
    torch.library.opcheck(torch.ops.lynx.attention.default, (q, k, v, [bias], sink, None, *form))
    out, lse = torch.ops.lynx.attention(q, k, v, [bias], sink, None, *form)
    wanted = [True, False, True, True, True]
    given = (torch.randn_like(out), None, q, k, v, [bias], sink, None, out, lse, *form, wanted)
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
    given[5] = [bias.detach()]
    torch.library.opcheck(torch.ops.lynx.attention_backward.default, tuple(given))


def test_memory_grows_with_the_sequence_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest tensor that is made has no more elements than a block of rows."""
    monkeypatch.setattr(in_rows, "BLOCK_BYTES", 1 << 16)
    length = 512
    text = f"""graph @score(%dot: f32[1, 2, {length}, {length}], %p0: f32[2, 1, 1]) {{
        %0 = iota 0, 1 {{length = {length}, dtype = i64}} : i64[{length}]
        %1 = unsqueeze %0 {{dim = 1}} : i64[{length}, 1]
        %2 = sub %0, %1 : i64[{length}, {length}]
        %3 = cast %2 {{dtype = f32}} : f32[{length}, {length}]
        %4 = mul %p0, %3 : f32[2, {length}, {length}]
        %5 = add %dot, %4 : f32[1, 2, {length}, {length}]
        %6 = le %2, 0 : bool[{length}, {length}]
        %7 = where %6, %5, -inf : f32[1, 2, {length}, {length}]
        return %7
    }}"""
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    slopes = torch.rand(2, 1, 1, requires_grad=True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for item in torch.utils._pytree.tree_leaves(result):
                if isinstance(item, torch.Tensor):
                    largest = max(largest, item.numel())
            return result

    with Watch():
        out, _ = in_rows.attend(q, k, v, [slopes], None, None, form_of(text))
        in_rows.attend_backward(
            out, None, q, k, v, [slopes], None, None, form_of(text), [True] * 3 + [False, True]
        )
    assert largest <= 2 * 2 * 16 * length


def form_of(text: str) -> in_rows.AttentionForm:
    return in_rows.AttentionForm(score_region(text))
