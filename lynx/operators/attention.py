"""The operator `lynx::attention`: softmax of any score function, times values, without its weights.

`score` is the text of a Lynx graph that makes scores of the products of queries and keys and of
`operands`, in `f64` for operands of that type and in `f32` for all others; `sizes` are the values
of its symbols. The empty text takes the products as they are. Head `h` of the queries reads head
`h // (heads of queries / heads of keys)` of keys and values.

Results are the output, in memory in which heads lie inside queries, and the logarithm of the sum
of exponentials of each query's scores. Autograd keeps the operands and these. The backward computes
the scores once more; gradients of gradients go through torch's own operators. Operands have one
element type; autocast does not reach inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from lynx.backends.reference.attention import (
    AttentionForm,
    attend,
    attend_backward,
    composite,
    composite_backward,
    computing_dtype,
    empty_output,
)
from lynx.ir.score import score_region
from lynx.passes.attention import why_no_derivative

from .transforms import Operator, Optional, Rule, Tensors, gradients_by_torch, tangents

_FORWARD = "lynx::attention"
_BACKWARD = "lynx::attention_backward"
_FORM = "str score, SymInt[] sizes, float keep_scale, bool zero_empty"

Form = tuple[str, Sequence[int], float, bool]
Gradients = Callable[..., list[Optional]]

torch.library.define(
    _FORWARD,
    "(Tensor q, Tensor k, Tensor v, Tensor[] operands, Tensor? sink, Tensor? keep, "
    f"{_FORM}) -> (Tensor, Tensor)",
)
torch.library.define(
    _BACKWARD,
    "(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor[] operands, "
    "Tensor? sink, Tensor? keep, Tensor out, Tensor lse, "
    f"{_FORM}, bool[] wanted) -> Tensor[]",
)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor] = (),
    sink: Optional = None,
    keep: Optional = None,
    score: str = "",
    sizes: Sequence[int] = (),
    keep_scale: float = 1.0,
    zero_empty: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the logarithms of its denominators.

    `q` is `[batch, heads, queries, depth]`, `k` `[batch, heads of keys, keys, depth]`, `v` the same
    with a depth of its own. `sink`, broadcastable to `[batch, heads, queries]`, is one more logit
    in the denominator. Weights where `keep`, `[batch, heads, queries, keys]`, is false count as
    zero, and others are multiplied by `keep_scale`.
    """
    form = (score, list(sizes), keep_scale, zero_empty)
    if torch.compiler.is_dynamo_compiling():
        results: Tensors = torch.ops.lynx.attention(q, k, v, list(operands), sink, keep, *form)
    else:
        results = _Attention.apply(  # type: ignore[no-untyped-call]
            q, k, v, sink, keep, *form, *operands
        )
    return results[0], results[1]


def _form(score: str, sizes: Sequence[int], keep_scale: float, zero_empty: bool) -> AttentionForm:
    region = score_region(score, tuple(map(int, sizes))) if score else None
    return AttentionForm(region, keep_scale, zero_empty)


@torch.library.impl(_FORWARD, "default")
def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: list[torch.Tensor],
    sink: Optional,
    keep: Optional,
    *form: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(q, k, v)
    return attend(q, k, v, operands, sink, keep, _form(*form))


@torch.library.register_fake(_FORWARD)  # type: ignore[untyped-decorator]
def _fake_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(q, k, v)
    return empty_output(q, v), q.new_empty(q.shape[:3], dtype=computing_dtype(q.dtype))


@torch.library.impl(_BACKWARD, "default")
def _backward(
    grad_out: torch.Tensor,
    grad_lse: Optional,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: list[torch.Tensor],
    sink: Optional,
    keep: Optional,
    out: torch.Tensor,
    lse: torch.Tensor,
    score: str,
    sizes: list[int],
    keep_scale: float,
    zero_empty: bool,
    wanted: list[bool],
) -> list[torch.Tensor]:
    form = _form(score, sizes, keep_scale, zero_empty)
    return attend_backward(grad_out, grad_lse, q, k, v, operands, sink, keep, form, wanted)


@torch.library.register_fake(_BACKWARD)  # type: ignore[untyped-decorator]
def _fake_backward(
    grad_out: torch.Tensor,
    grad_lse: Optional,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: list[torch.Tensor],
    sink: Optional,
    *rest: Any,
) -> list[torch.Tensor]:
    wanted = rest[-1]
    found = [empty_output(x, x) for x, want in zip((q, k, v), wanted, strict=False) if want]
    others = (sink, *operands)
    for other, want in zip(others, wanted[3:], strict=True):
        if want and other is not None:
            found.append(other.new_empty(other.shape))
    return found


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise `ValueError` for operands that do not belong together, as far as integers tell."""
    for name, tensor in (("queries", q), ("keys", k), ("values", v)):
        if tensor.dim() != 4:
            raise ValueError(f"expects {name} of four dimensions, got {tensor.dim()}")
        if tensor.dtype != q.dtype or not tensor.is_floating_point():
            raise ValueError(
                f"expects floating operands of one type, got {q.dtype}, {k.dtype} and {v.dtype}"
            )
    pairs = (
        ("batches", q.shape[0], k.shape[0]),
        ("batches", q.shape[0], v.shape[0]),
        ("heads of keys and values", k.shape[1], v.shape[1]),
        ("keys and values", k.shape[2], v.shape[2]),
        ("depths of queries and keys", q.shape[3], k.shape[3]),
    )
    for what, a, b in pairs:
        if type(a) is int and type(b) is int and a != b:
            raise ValueError(f"expects as many {what}, got {a} and {b}")
    heads, shared = q.shape[1], k.shape[1]
    if type(heads) is int and type(shared) is int and (heads % shared if shared else heads):
        raise ValueError(f"cannot share {shared} heads of keys among {heads} heads of queries")


def _wanted(needed: Sequence[bool], sink: Optional, operands: Sequence[torch.Tensor]) -> list[bool]:
    """Return which gradients there are, for q, k, v, the sink, and operands."""
    floating = [operand.is_floating_point() for operand in operands]
    asked = [need and able for need, able in zip(needed[4:], floating, strict=True)]
    return [*map(bool, needed[:3]), bool(needed[3]) and sink is not None, *asked]


# Of `_Attention`: q, k, v, sink, keep, score, sizes, keep_scale, zero_empty, *operands. The
# operator itself takes the operands as a list in fourth place.


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    q, k, v, sink, keep, score, sizes, keep_scale, zero_empty, *operands = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sink, keep, *output, *operands)
    ctx.save_for_forward(q, k, v, sink, keep, *output, *operands)
    ctx.form = (score, sizes, keep_scale, zero_empty)


def _differentiate(
    ctx: Any, needed: Sequence[bool], grad_out: Optional, grad_lse: Optional
) -> list[Optional]:
    """Return gradients of q, k, v, the sink, and operands."""
    q, k, v, sink, keep, out, lse, *operands = ctx.saved_tensors
    wanted = _wanted(needed, sink, operands)
    if not any(wanted) or (grad_out is None and grad_lse is None):
        return [None] * len(wanted)
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    if not _has_derivative(ctx.form[0], wanted):
        given, incoming = (q, k, v, sink, *operands), (grad_out, grad_lse)
        return gradients_by_torch(_composite(keep, ctx.form), given, incoming, wanted)
    found: Tensors = _Gradients.apply(  # type: ignore[no-untyped-call]
        grad_out, grad_lse, q, k, v, sink, keep, out, lse, *ctx.form, wanted, *operands
    )
    return _placed(found, wanted)


def _placed(found: Sequence[Optional], wanted: Sequence[bool]) -> list[Optional]:
    """Return a gradient or None for each operand."""
    rest = iter(found)
    return [next(rest) if want else None for want in wanted]


def _has_derivative(score: str, wanted: Sequence[bool]) -> bool:
    """Whether a score function has gradients of the product and of the wanted operands."""
    chosen = tuple(n for n, want in enumerate(wanted[4:]) if want)
    return not score or _has_gradients(score, chosen)


@functools.lru_cache(maxsize=256)
def _has_gradients(score: str, chosen: tuple[int, ...]) -> bool:
    return not why_no_derivative(score_region(score), chosen)


def _composite(keep: Optional, form: Form) -> Callable[..., Tensors]:
    """Return attention as autograd knows it, of q, k, v, the sink, and operands."""

    def function(q: Any, k: Any, v: Any, sink: Optional, *operands: Any) -> Tensors:
        return composite(q, k, v, operands, sink, keep, _form(*form))

    return function


def _composite_gradients(keep: Optional, form: Form, wanted: Sequence[bool]) -> Gradients:
    """Return its gradients, of what they come from and of q, k, v, the sink, and operands."""

    def by_hand(grad_out: Any, grad_lse: Optional, *given: Any) -> list[Optional]:
        q, k, v, sink, *operands = given
        operands_and_rest = (q, k, v, operands, sink, keep, _form(*form), wanted)
        return _placed(composite_backward(grad_out, grad_lse, *operands_and_rest), wanted)

    def by_torch(grad_out: Any, grad_lse: Optional, *given: Any) -> list[Optional]:
        return gradients_by_torch(_composite(keep, form), given, (grad_out, grad_lse), wanted)

    return by_hand if _has_derivative(form[0], wanted) else by_torch


def _tangents(ctx: Any, *directions: Any) -> tuple[Any, ...]:
    q, k, v, sink, keep, out, lse, *operands = ctx.saved_tensors
    moving = (*directions[:4], *directions[9:])
    moves = [direction is not None for direction in moving]
    gradients = _composite_gradients(keep, ctx.form, moves)
    given = (q, k, v, sink, *operands)
    return tangents(lambda *incoming: gradients(*incoming, *given), (out, lse), moving)


def _differentiate_function(ctx: Any, *grads: Optional) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    found = _differentiate(ctx, (*needs[:4], *needs[9:]), *grads)
    return (*found[:4], None, None, None, None, None, *found[4:])


def _keep_operator(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    q, k, v, operands, *rest = inputs
    _keep_for_backward(ctx, (q, k, v, *rest, *operands), output)


def _differentiate_operator(ctx: Any, *grads: Optional) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    count = len(ctx.saved_tensors) - 7
    of_operands = needs[3] if isinstance(needs[3], list | tuple) else [needs[3]] * count
    found = _differentiate(ctx, (*needs[:3], needs[4], *of_operands), *grads)
    sizes = _nothing_for(ctx.form[1])
    return (*found[:3], found[4:], found[3], None, None, sizes, None, None)


def _nothing_for(sizes: Sequence[int]) -> list[None] | None:
    """Return the gradient of a list of numbers: torch takes an empty one for a list of tensors."""
    return None if sizes else []


# Of `_Gradients`: grad_out, grad_lse, q, k, v, sink, keep, out, lse, score, sizes, keep_scale,
# zero_empty, wanted, *operands. The operator takes the operands as a list before the sink.

_PLAIN = 14
"""How many arguments of `_Gradients` there are before the operands."""


def _keep_for_second_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:7], *inputs[_PLAIN:])
    ctx.save_for_forward(*inputs[:7], *inputs[_PLAIN:])
    ctx.form, ctx.wanted = inputs[9:13], inputs[13]


def _sources(ctx: Any) -> tuple[list[Optional], Optional]:
    """Return grad_out, grad_lse, q, k, v, the sink, and operands; and what is kept."""
    saved = list(ctx.saved_tensors)
    return saved[:6] + saved[7:], saved[6]


def _differentiate_twice(
    ctx: Any, needed: Sequence[bool], grads: Sequence[Optional]
) -> list[Optional]:
    """Return gradients of grad_out, grad_lse, q, k, v, the sink, and operands, by eager's way."""
    sources, keep = _sources(ctx)
    gradients = _composite_gradients(keep, ctx.form, ctx.wanted)
    return gradients_by_torch(gradients, sources, _placed(grads, ctx.wanted), needed)


def _tangents_of_gradients(ctx: Any, *directions: Any) -> tuple[Any, ...]:
    sources, keep = _sources(ctx)
    gradients = _composite_gradients(keep, ctx.form, ctx.wanted)
    moving = (*directions[:6], *directions[_PLAIN:])
    moves = [direction is not None for direction in moving]

    def second(*incoming: torch.Tensor) -> list[Optional]:
        return gradients_by_torch(gradients, sources, _placed(incoming, ctx.wanted), moves)

    pairs = zip(sources[2:], ctx.wanted, strict=True)
    results = [source for source, want in pairs if want and source is not None]
    return tangents(second, results, moving)


def _differentiate_gradients(ctx: Any, *grads: Optional) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    found = _differentiate_twice(ctx, (*needs[:6], *needs[_PLAIN:]), grads)
    return (*found[:6], *(None,) * (_PLAIN - 6), *found[6:])


def _keep_gradients_operator(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *first, operands = inputs[:6]
    _keep_for_second_backward(ctx, (*first, *inputs[6:], *operands), output)


def _differentiate_gradients_operator(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    given = grads[0] if len(grads) == 1 and isinstance(grads[0], list | tuple) else grads
    needs = ctx.needs_input_grad
    count = len(ctx.saved_tensors) - 7
    of_operands = needs[5] if isinstance(needs[5], list | tuple) else [needs[5]] * count
    found = _differentiate_twice(ctx, (*needs[:5], needs[6], *of_operands), given)
    rest = (None, None, None, None, _nothing_for(ctx.form[1]), None, None, None)
    return (*found[:5], found[6:], found[5], *rest)


# transforms of torch.func


def _is_foldable(form: Form, *absent: Any) -> bool:
    """Whether a batch may lie in that of the operands: nothing else tells its size."""
    return not form[0] and all(item is None for item in absent)


def _folded(size: int, dim: int | None, tensor: Optional) -> Optional:
    """Return a tensor with one more batch axis in its first one."""
    if tensor is None:
        return None
    moved = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.reshape(size * moved.shape[1], *moved.shape[2:])


def _unfolded(size: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(size, tensor.shape[0] // size, *tensor.shape[1:])


class _Attention(Operator):
    """The operator for transforms of `torch.func`."""

    @staticmethod
    def forward(*args: Any) -> Tensors:
        q, k, v, sink, keep, *form = args[:9]
        results: Tensors = torch.ops.lynx.attention(q, k, v, list(args[9:]), sink, keep, *form)
        return results

    setup_context = staticmethod(_keep_for_backward)
    backward = staticmethod(_differentiate_function)
    jvp = staticmethod(_tangents)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Rule:
        size = info.batch_size
        if not _is_foldable(args[5:9], *args[3:5], *args[9:]):
            return super().vmap(info, in_dims, *args)
        folded = [_folded(size, dim, x) for dim, x in zip(in_dims[:3], args[:3], strict=True)]
        out, lse = _Attention.apply(*folded, *args[3:])  # type: ignore[no-untyped-call]
        return (_unfolded(size, out), _unfolded(size, lse)), (0, 0)


class _Gradients(Operator):
    """The same for the operator of its gradients."""

    @staticmethod
    def forward(*args: Any) -> Tensors:
        first, plain, operands = args[:5], args[5:_PLAIN], list(args[_PLAIN:])
        return tuple(torch.ops.lynx.attention_backward(*first, operands, *plain))

    setup_context = staticmethod(_keep_for_second_backward)
    backward = staticmethod(_differentiate_gradients)
    jvp = staticmethod(_tangents_of_gradients)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Rule:
        size = info.batch_size
        if not _is_foldable(args[9:13], *args[5:7], *args[_PLAIN:]):
            return super().vmap(info, in_dims, *args)
        folded = [_folded(size, dim, x) for dim, x in zip(in_dims[:9], args[:9], strict=True)]
        found = _Gradients.apply(*folded, *args[9:])  # type: ignore[no-untyped-call]
        return tuple(_unfolded(size, x) for x in found), (0,) * len(found)


def _vmap_operator(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Rule:
    q, k, v, operands, *rest = args
    dims = (*in_dims[:3], *in_dims[4:], *_dims_of(in_dims[3], operands))
    return _Attention.vmap(info, dims, q, k, v, *rest, *operands)


def _vmap_gradients_operator(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    operands = args[5]
    dims = (*in_dims[:5], *in_dims[6:], *_dims_of(in_dims[5], operands))
    found, placed = _Gradients.vmap(info, dims, *args[:5], *args[6:], *operands)
    return list(found), list(placed)


def _dims_of(dims: Any, operands: Sequence[Any]) -> Sequence[Any]:
    return dims if isinstance(dims, list | tuple) else [dims] * len(operands)


torch.library.register_autograd(_FORWARD, _differentiate_operator, setup_context=_keep_operator)
torch.library.register_autograd(
    _BACKWARD, _differentiate_gradients_operator, setup_context=_keep_gradients_operator
)
torch.library.register_vmap(_FORWARD, _vmap_operator)
torch.library.register_vmap(_BACKWARD, _vmap_gradients_operator)


@register_flop_formula([torch.ops.lynx.attention])
def _flops(q: Any, k: Any, v: Any, *rest: Any, **keywords: Any) -> int:
    """Count the two products, of all keys."""
    batch, heads, queries, depth = q
    return int(2 * batch * heads * queries * k[2] * (depth + v[3]))


@register_flop_formula([torch.ops.lynx.attention_backward])
def _flops_backward(grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, *rest: Any, **_: Any) -> int:
    """Count the five products, of all keys."""
    batch, heads, queries, depth = q
    return int(2 * batch * heads * queries * k[2] * (3 * depth + 2 * v[3]))
