"""What the operations of torch do to the elements of tensors, as far as attention needs to know."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from lynx.compat import OPERATOR_SPACES, OpOverload
from lynx.operators import matmul
from lynx.recognise.nodes import Node, name_of


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYOUT = _words(
    """
    view reshape view_as reshape_as flatten unflatten transpose permute swapaxes swapdims
    movedim moveaxis unsqueeze squeeze expand expand_as broadcast_to contiguous clone alias
    t .T .mT getitem narrow select slice chunk split unbind tile repeat repeat_interleave
    _unsafe_view cat concat concatenate stack pad flip roll squeeze_ detach rearrange
    _reshape_copy
    """
)
"""Operations that move elements, leave some out, or repeat them."""

REPEATING = _words(
    """
    expand expand_as broadcast_to repeat repeat_interleave tile cat concat stack
    """
)
"""Those of them whose result may hold an element several times."""

CASTS = _words("to type type_as float half bfloat16 double int long bool _to_copy")
"""Conversions to another element type."""

ELEMENTWISE = _words(
    """
    add sub rsub mul div divide multiply subtract true_divide floor_divide remainder neg abs
    pow square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log1p tanh sigmoid relu sin cos
    erf sign maximum minimum clamp clamp_min clamp_max clip where masked_fill eq ne lt le gt
    ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not
    bitwise_xor and_ or_ xor invert not_ isinf isnan isneginf floor ceil round trunc fmod
    lerp addcmul addcdiv tril triu nan_to_num softplus elu gelu silu hardtanh leaky_relu
    floordiv mod radd iand ior __and__ __or__ __xor__ __invert__ softsign logaddexp celu
    log_sigmoid logsigmoid bitwise_right_shift bitwise_left_shift zeros_like ones_like
    full_like __add__ __radd__ __mul__ __rmul__ __sub__ __rsub__ __truediv__ masked_fill_
    scalar_tensor add_ sub_ mul_ div_ clamp_ neg_ tanh_ exp_ truediv iadd isub imul itruediv
    setitem
    """
)
"""Operations of which an element of the result depends on elements at the same place."""

FACTORIES = _words(
    """
    arange ones zeros full empty eye tensor new_ones new_zeros new_full new_empty new_tensor
    ones_like zeros_like full_like empty_like scalar_tensor linspace tril_indices
    """
)
"""Operations that make a tensor of numbers that are known."""

NORMALIZING = _words("softmax _softmax _safe_softmax log_softmax _log_softmax")
EXPONENTIALS = NORMALIZING | {"exp", "logsumexp"}
REDUCTIONS = _words("sum amax max amin min mean logsumexp all any cumsum")
DROPOUTS = _words("dropout native_dropout dropout1d feature_dropout")
CONTRACTIONS = _words("matmul bmm mm einsum baddbmm linear tensordot addmm inner mv")
WALKABLE = (LAYOUT | CASTS | ELEMENTWISE | NORMALIZING | EXPONENTIALS | REDUCTIONS | DROPOUTS) - (
    CONTRACTIONS
)
"""What may lie between the product of queries and keys and that of weights and values."""

CHEAP = (LAYOUT | CASTS | ELEMENTWISE | FACTORIES) - {"clone_", "setitem", "roll", "cat", "stack"}
"""What of masks and biases is better computed where it is used than kept."""

_SPACES: tuple[Any, ...] = (torch.special, torch.linalg, *OPERATOR_SPACES)


def kind_of(node: Node) -> str:
    """Return the name of what a node does, however it is spelled; empty for what has none."""
    known = node.meta.get("lynx_kind")
    if known is None:
        known = node.meta["lynx_kind"] = _kind_of(node)
    return str(known)


def _kind_of(node: Node) -> str:
    name = name_of(node)
    if name or node.op != "call_function":
        return name
    target: Any = node.target
    if target is matmul:
        return "matmul"
    if isinstance(target, OpOverload):
        return str(target._schema.name).partition("::")[2]
    plain = str(getattr(target, "__name__", ""))
    if str(getattr(target, "__module__", "")).endswith(("_ops", "ops.aten")):
        return plain
    for space in _SPACES:
        for word in (plain, plain.removeprefix("special_"), plain.removeprefix("linalg_")):
            if word and getattr(space, word, None) is target:
                return word.removeprefix("special_")
    return ""
