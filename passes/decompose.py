"""Expands composite ops into primitive ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, ClassVar

from lynx.ir.core import Graph, Op
from lynx.ir.errors import UsageError
from lynx.ir.ops.linear import AddProduct
from lynx.ir.types import DType, TensorType

from .base import PassContext, Requirement, Violation, register_pass
from .decompose_activation import ACTIVATION_RULES
from .decompose_batch_norm import BATCH_NORM_RULES
from .decompose_elementwise import ELEMENTWISE_RULES
from .decompose_linear import LINEAR_RULES
from .decompose_loss import LOSS_RULES
from .decompose_nll_loss import NLL_LOSS_RULES
from .decompose_normalization import NORMALIZATION_RULES
from .decompose_pooling import POOLING_RULES
from .decompose_reduction import REDUCTION_RULES
from .decompose_softmax import SOFTMAX_RULES
from .decompose_windows import WINDOW_RULES
from .requirements import IS_GRAPH
from .rewrite import rewrite
from .target import Target

RULES = (
    *ACTIVATION_RULES,
    *ELEMENTWISE_RULES,
    *REDUCTION_RULES,
    *SOFTMAX_RULES,
    *NORMALIZATION_RULES,
    *BATCH_NORM_RULES,
    *LOSS_RULES,
    *NLL_LOSS_RULES,
    *POOLING_RULES,
    *LINEAR_RULES,
    *WINDOW_RULES,
)

COMPOSITE: tuple[type[Op], ...] = tuple(kind for rule in RULES for kind in rule.kinds)
"""The op classes that have a decomposition."""

_INTEGERS = (DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)
_GENERATED = frozenset(
    (DType.BOOL, *_INTEGERS, DType.F16, DType.BF16, DType.F32, DType.F64),
)
"""The element types of generated kernels."""


@register_pass
@dataclass(frozen=True)
class Decompose:
    """Expand the composite ops that the back end does not support, or generates kernels for.

    With `only`, those named instead; with `all`, every one. Expanded ops compute what eager
    computes, low precision in `f32`, but not in the same order, so last bits may differ.
    """

    name: ClassVar[str] = "decompose"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    only: tuple[str, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        known = sorted(kind.name for kind in COMPOSITE)
        for name in self.only:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
                raise UsageError("bad-option", f"no composite op is called '{name}'{hint}")

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with the chosen ops expanded."""

        def is_chosen(op: Op) -> bool:
            if self.all or self.only:
                return self.all or op.name in self.only
            return not context.supports(type(op)) or is_generated(op, context.target)

        return rewrite(module, RULES, context, is_chosen)


def is_generated(op: Op, target: Target) -> bool:
    """Whether kernels are generated for what a composite op is made of.

    Products with an added term are no such thing: the library computes them.
    """
    if not target.generates_code or isinstance(op, AddProduct):
        return False
    types = (value.type for value in (*op.operands, *op.results))
    return all(_is_generated_type(t, target) for t in types if isinstance(t, TensorType))


def _is_generated_type(type_: TensorType, target: Target) -> bool:
    on_device = type_.device.partition(":")[0] == target.device
    # A tensor of no dimensions on the CPU goes with any device.
    on_device = on_device or (not type_.shape and type_.device == "cpu")
    return on_device and type_.dtype in _GENERATED


def _find_composite(module: Any) -> Violation | None:
    for op in module.ops:
        if isinstance(op, COMPOSITE):
            return Violation(f"found '{op.name}'", op.loc)
    return None


NO_COMPOSITE_OPS = Requirement("no composite ops", _find_composite)
