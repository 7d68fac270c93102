"""The cross-entropy of a linear projection, kept whole so that the logits need not exist."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType

from .factors import Factors, require_rank, require_same_dtype, require_shape
from .loss import REDUCTIONS

GRADIENTS = ("x", "weight", "bias")
"""The operands that may have gradients."""

_TOKENS = {"none": FactorKind.PARALLEL, "mean": FactorKind.OPAQUE, "sum": FactorKind.REDUCTION}


class ProjectedLoss(Op):
    """Base of the loss and its gradients: checks of the operands, types and space of results."""

    def _check(self) -> TensorType:
        """Check operands and attributes, and return the type of `x`."""
        x, weight, bias, target = self._tensors()
        classes, features = require_rank(self, weight, 2).shape
        type_ = x.tensor_type
        require_shape(self, x, (*target.shape, features), "tokens")
        if not type_.dtype.is_floating or not target.tensor_type.dtype.is_integer:
            raise self.error("bad-dtype", f"cannot compare {type_} with {target.type}")
        require_same_dtype(self, x, weight, *(() if bias is None else (bias,)))
        class_weight, token_weight = self._weights()
        for vector in (bias, class_weight):
            if vector is not None:
                require_shape(self, vector, (classes,), "a number for each class")
        if token_weight is not None:
            require_shape(self, token_weight, target.shape, "a number for each token")
        return type_

    def _check_form(self, reduction: str, gradients: tuple[str, ...]) -> None:
        if reduction not in REDUCTIONS:
            raise self.error("bad-attribute", f"does not know the reduction '{reduction}'")
        if self._weights()[1] is not None and reduction != "sum":
            raise self.error("bad-attribute", f"weighs tokens in sums, not in '{reduction}'")
        has_bias = self._tensors()[2] is not None
        known = GRADIENTS if has_bias else GRADIENTS[:2]
        if tuple(name for name in known if name in gradients) != gradients:
            raise self.error("bad-attribute", f"has no gradients {gradients}")

    def _tensors(self) -> tuple[Value, Value, Value | None, Value]:
        raise NotImplementedError(type(self).__name__)

    def _weights(self) -> tuple[Value | None, Value | None]:
        raise NotImplementedError(type(self).__name__)

    def _gradient_types(self, gradients: tuple[str, ...], dtype: DType) -> tuple[TensorType, ...]:
        operands = dict(zip(GRADIENTS, self._tensors(), strict=False))
        chosen = [operands[name] for name in gradients]
        return tuple(
            TensorType(dtype, value.shape, value.tensor_type.device)
            for value in chosen
            if value is not None
        )

    def _space(
        self,
        kind: FactorKind,
        gradients: tuple[str, ...],
        results: tuple[str, ...],
        before: tuple[str, ...] = (),
    ) -> IterationSpace:
        """Return the space, with names for results before the gradients and operands before `x`.

        Each token needs all its features and the scores of all classes at once.
        """
        _, weight, bias, target = self._tensors()
        factors = Factors()
        tokens: IndexMap = tuple(
            factors.of(kind, f"t{n}", size) for n, size in enumerate(target.shape)
        )
        classes = factors.opaque("c", weight.shape[0])
        features = factors.opaque("f", weight.shape[1])
        maps: dict[str, IndexMap] = {
            "loss": tokens,
            "scalar": (),
            "x": (*tokens, features),
            "weight": (classes, features),
            "bias": (classes,),
        }
        class_weight, token_weight = self._weights()
        operands = [maps[name] for name in (*before, "x", "weight")]
        operands += [maps["bias"]] if bias is not None else []
        operands += [tokens]
        operands += [maps["bias"]] if class_weight is not None else []
        operands += [tokens] if token_weight is not None else []
        linear = ((0,),) if before else ()
        indexed = tuple(maps[name] for name in (*results, *gradients))
        return factors.space(tuple(operands), indexed, linear)


class LinearCrossEntropy(ProjectedLoss, name="linear_cross_entropy"):
    """Return the cross-entropy of logits `x @ weight.T + bias`, and gradients for a gradient of 1.

        %l = linear_cross_entropy %x, %w, none, %t, none, none {steps = ["tanh"]} : f32[]

    `x` is `[*tokens, features]`, `weight` `[classes, features]`, `target` `[*tokens]`. Before the
    softmax `steps` are applied to the logits: "multiply 0.5", "divide 30.0", "tanh", "convert f32".
    Targets that are `ignore` count as nothing; `smoothing` is the uniform part of the target
    distribution. Losses are multiplied by `class_weight` of their targets, as `nll_loss` does, and
    by `token_weight` before they are summed. `gradients` are those that are computed at once.
    """

    x: Value
    weight: Value
    bias: Value | None
    target: Value
    class_weight: Value | None
    token_weight: Value | None
    reduction: str = "mean"
    ignore: int | None = -100
    smoothing: float = 0.0
    steps: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the loss and of the gradients, which are not rounded."""
        type_ = self._check()
        self._check_form(self.reduction, self.gradients)
        if self.gradients and self.reduction == "none":
            raise self.error("bad-attribute", "has gradients of a loss that is not reduced")
        shape = self.target.shape if self.reduction == "none" else ()
        loss = TensorType(loss_dtype(self, type_.dtype, self.steps), shape, type_.device)
        computed = DType.F64 if type_.dtype is DType.F64 else DType.F32
        return loss, *self._gradient_types(self.gradients, computed)

    def space(self) -> IterationSpace:
        """Run over tokens in parallel, or add up what they give; a mean needs all of them."""
        loss = "loss" if self.reduction == "none" else "scalar"
        return self._space(_TOKENS[self.reduction], self.gradients, (loss,))

    def _tensors(self) -> tuple[Value, Value, Value | None, Value]:
        return self.x, self.weight, self.bias, self.target

    def _weights(self) -> tuple[Value | None, Value | None]:
        return self.class_weight, self.token_weight


class LinearCrossEntropyBackward(ProjectedLoss, name="linear_cross_entropy_backward"):
    """Return gradients of `linear_cross_entropy`, computing the logits once more.

    %g = linear_cross_entropy_backward %d, %x, %w, none, %t, none, none {gradients = ["x"]} : f32[8]
    """

    grad: Value
    x: Value
    weight: Value
    bias: Value | None
    target: Value
    class_weight: Value | None
    token_weight: Value | None
    reduction: str = "mean"
    ignore: int | None = -100
    smoothing: float = 0.0
    steps: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the operands."""
        type_ = self._check()
        self._check_form(self.reduction, self.gradients)
        loss_dtype(self, type_.dtype, self.steps)
        shape = self.target.shape if self.reduction == "none" else ()
        require_shape(self, self.grad, shape, "an incoming gradient")
        return self._gradient_types(self.gradients, type_.dtype)

    def space(self) -> IterationSpace:
        """Add up what tokens give; a mean needs all of them."""
        kind = FactorKind.OPAQUE if self.reduction == "mean" else FactorKind.REDUCTION
        grad = "loss" if self.reduction == "none" else "scalar"
        return self._space(kind, self.gradients, (), (grad,))

    def _tensors(self) -> tuple[Value, Value, Value | None, Value]:
        return self.x, self.weight, self.bias, self.target

    def _weights(self) -> tuple[Value | None, Value | None]:
        return self.class_weight, self.token_weight


def loss_dtype(op: Op, dtype: DType, steps: tuple[str, ...]) -> DType:
    """Return the type that logits have after the steps; `CompileError` on one that is none."""
    for step in steps:
        kind, _, rest = step.partition(" ")
        try:
            if kind == "convert":
                dtype = DType(rest)
            elif kind in ("multiply", "divide"):
                float(rest)
            elif step != "tanh":
                raise ValueError(step)
        except ValueError:
            raise op.error("bad-attribute", f"does not know the step '{step}'") from None
    return dtype
