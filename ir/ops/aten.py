"""The op for everything that runs through torch, and literals of a graph."""

from __future__ import annotations

from lynx.ir.core import Argument, Op, Value
from lynx.ir.dims import Dim, contiguous_strides
from lynx.ir.space import IterationSpace
from lynx.ir.space_rules import SPACE_RULES, cut_shape
from lynx.ir.types import DType, ScalarType, TensorType, Type


class Aten(Op, name="aten"):
    """Call a torch operator, a higher-order operator or a Python function by its name.

        %v, %i = aten @aten.topk.default(%x, 5, largest = true) : f32[4, 5], i64[4, 5]

    The result types are those that fake tensors gave. `operand_strides` are the strides that each
    tensor operand had while tracing (None for the others); the runtime restores them, since such an
    op may look at the layout. `strides` are those of the results. `sequences` says, for operators
    in Python, what each sequence in the arguments is, from the outermost inwards: "list", "tuple",
    or "dict" with the key of each item; if it is empty they are lists. `reason` says why there is
    no structured op.
    """

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    types: tuple[Type, ...]
    operand_strides: tuple[tuple[Dim, ...] | None, ...] = ()
    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    random: bool = False
    effect: bool = False
    reason: str = ""
    sequences: tuple[str, ...] = ()

    def infer(self) -> tuple[Type, ...]:
        """Return the recorded types."""
        return self.types

    @property
    def is_removable(self) -> bool:
        """Whether nothing but its results tells that it ran."""
        return not (self.random or self.effect)

    def space(self) -> IterationSpace | None:
        """Return the space that a rule gives for the target, None if there is no rule."""
        rule = SPACE_RULES.get(self.target) or SPACE_RULES.get(self.target.rpartition(".")[0])
        return None if rule is None else rule.space(self.operands, self.results)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Return the call on parts of the operands, whose results are dense."""
        space = self.space()
        if space is None:
            raise self.error("no-space", f"has no rule to be cut along '{factor}'")
        types = tuple(
            type_.with_shape(cut_shape(space, axes, {factor: size}))
            if isinstance(type_, TensorType)
            else type_
            for type_, axes in zip(self.types, space.results, strict=True)
        )
        return self.with_operands(
            operands,
            types=types,
            operand_strides=tuple(map(_dense, (one.type for one in operands))),
            strides=tuple(map(_dense, types)),
        )


def _dense(type_: Type) -> tuple[Dim, ...] | None:
    return contiguous_strides(type_.shape) if isinstance(type_, TensorType) else None


class Symbolic(Op, name="symbolic"):
    """Give the value of a symbolic integer.

    %n = symbolic {expr = s0*2} : int(s0*2)
    """

    expr: Dim

    def infer(self) -> ScalarType:
        """Return an integer whose value is known as an expression."""
        return ScalarType("int", self.expr)

    def space(self) -> IterationSpace:
        """Return the empty space."""
        return IterationSpace((), (), ((),))


class Resource(Op, name="resource"):
    """Read a constant tensor that the graph holds under a name.

    %c = resource {key = "c0", dtype = i64, shape = [2]} : i64[2]
    """

    key: str
    dtype: DType
    shape: tuple[Dim, ...]
    device: str = "cpu"

    def infer(self) -> TensorType:
        """Return the declared type."""
        return TensorType(self.dtype, self.shape, self.device)
