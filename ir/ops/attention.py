"""Attention with any score function, kept whole so that its weights need not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, may_equal
from lynx.ir.space import Axis, FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType, is_same_type, unsharded

from .factors import (
    Factors,
    broadcast_axes,
    broadcast_shapes,
    require_rank,
    require_same_dtype,
    require_shape,
)
from .fusion import Region
from .layout import quotient
from .parts import CannotCut, Part, part_of


class Scoring(Op):
    """Base of all ops that compare queries with keys: checks of operands, and their score function.

    The operands are described at `attention`.
    """

    q: Value
    k: Value
    v: Value
    inputs: tuple[Value, ...]
    sink: Value | None
    keep: Value | None

    @property
    def computing_dtype(self) -> DType:
        """The element type in which scores are computed."""
        return DType.F64 if self.q.tensor_type.dtype is DType.F64 else DType.F32

    @property
    def dot_type(self) -> TensorType:
        """The type of all products of queries and keys, and of their scores."""
        (batch, heads, queries, _), keys = self.q.shape, self.k.shape[2]
        shape = (batch, heads, queries, keys)
        return TensorType(self.computing_dtype, shape, self.q.tensor_type.device)

    @property
    def group(self) -> Dim | None:
        """How many heads of queries share a head of keys; None where sizes do not tell."""
        return quotient(self.q.shape[1], self.k.shape[1])

    @property
    def out_type(self) -> TensorType:
        """The type of the output."""
        return self.v.tensor_type.with_shape((*self.q.shape[:3], self.v.shape[3]))

    @property
    def lse_type(self) -> TensorType:
        """The type of the logarithms of denominators."""
        return self.dot_type.with_shape(self.q.shape[:3])

    def scoring(self) -> Region | None:
        """Return the score function; None where the products are the scores."""
        raise NotImplementedError(type(self).__name__)

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Return the score function where one factor runs over a part of its extent."""
        score = self.scoring()
        if score is None:
            return {}
        cut = self._cut(factor, start, size)
        part = CannotCut("heads are not shared evenly") if cut is None else _part(score, *cut)
        if isinstance(part, CannotCut):
            raise self.error("no-local-form", f"has no parts along '{factor}': {part.reason}")
        return {"score": part.region}

    def _cut(self, factor: str, start: Dim, size: Dim) -> tuple[int, Dim, Dim] | None:
        """Return which part of the products a part of a factor is: dimension, start and length."""
        if factor == "g":
            return None if self.group is None else (1, start * self.group, size * self.group)
        dims = {"b": 0, "r": 1, "q": 2}
        if factor not in dims:
            raise self.error("no-local-form", f"needs all of '{factor}' at once")
        return dims[factor], start, size

    def _check(self) -> None:
        for value in (self.q, self.k, self.v):
            require_rank(self, value, 4)
        batch, heads, queries, depth = self.q.shape
        shared, keys = self.k.shape[1], self.k.shape[2]
        dtype = require_same_dtype(self, self.q, self.k, self.v)
        if not dtype.is_floating:
            raise self.error("bad-dtype", f"cannot compare {self.q.type} with {self.k.type}")
        require_shape(self, self.k, (batch, shared, keys, depth), "keys")
        require_shape(self, self.v, (batch, shared, keys, self.v.shape[3]), "values")
        if isinstance(heads, int) and isinstance(shared, int) and heads % max(shared, 1):
            raise self.error("shape-mismatch", f"shares {shared} heads of keys among {heads}")
        if self.keep is not None:
            require_shape(self, self.keep, self.dot_type.shape, "what is kept")
            if self.keep.tensor_type.dtype is not DType.BOOL:
                raise self.error("bad-dtype", f"keeps where {self.keep.type} is true")
        if self.sink is not None:
            row = (batch, heads, queries)
            full = broadcast_shapes(self, [self.sink.shape, row])
            if (
                len(full) != 3
                or not all(map(may_equal, full, row))
                or not self.sink.tensor_type.dtype.is_floating
            ):
                raise self.error("shape-mismatch", f"has the sink {self.sink.type}")
        self._check_score()

    def _check_score(self) -> None:
        dot, score = self.dot_type, self.scoring()
        if score is None:
            if self.inputs:
                raise self.error("region-inputs", "has inputs that no score function takes")
            return
        given = (dot, *(unsharded(value.type) for value in self.inputs))
        wanted = tuple(parameter.type for parameter in score.parameters)
        if len(given) != len(wanted) or not all(map(is_same_type, given, wanted)):
            texts = [", ".join(map(str, types)) for types in (given, wanted)]
            raise self.error("region-inputs", f"passes ({texts[0]}) to parameters ({texts[1]})")
        results = tuple(result.type for result in score.results)
        if len(results) != 1 or not is_same_type(results[0], dot):
            found = ", ".join(map(str, results))
            raise self.error("region-results", f"has scores ({found}), expected {dot}")


class Attending(Scoring):
    """Base of attention and its gradients."""

    @property
    def headed(self) -> tuple[Value, ...]:
        """The results that have heads as `q` has, inside of which the rows of a head may lie."""
        raise NotImplementedError(type(self).__name__)


class Attention(Attending, name="attention"):
    """Return softmax of scores, times values, and the logarithms of its denominators.

        %o, %l = attention %q, %k, %v, [%m], none, none with score(%s: f32[1, 2, 4, 4], %b: f32[]) {
            %0 = add %s, %b : f32[1, 2, 4, 4]
            yield %0
        } : f32[1, 2, 4, 8], f32[1, 2, 4]

    `q` is `[batch, heads, queries, depth]`, `k` and `v` are `[batch, shared heads, keys, ...]`;
    head `h` reads the shared head `h // (heads / shared heads)`. The score function takes all
    products of queries and keys, and `inputs`; without one the products are the scores. `sink` is
    one more logit of each denominator. Weights count where `keep` is true, times `keep_scale`. A
    query all of whose scores are negative infinity gives NaN, or zeros with `zero_empty`.
    """

    score: Region | None = None
    keep_scale: float = 1.0
    zero_empty: bool = False

    def scoring(self) -> Region | None:
        """Return the score function; None where the products are the scores."""
        return self.score

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the output and of the logarithms."""
        self._check()
        return self.out_type, self.lse_type

    @property
    def headed(self) -> tuple[Value, ...]:
        """The output."""
        return self.results[:1]

    def space(self) -> IterationSpace:
        """Run over batches in parallel where the score function does; softmax needs all keys."""
        indices = Indices(self, FactorKind.PARALLEL)
        (batch, heads, queries, _), depth = indices.q, indices.v[3]
        row = (batch, heads, queries)
        return indices.space(indices.operands(), ((*row, depth), row))


class AttentionBackward(Attending, name="attention_backward"):
    """Return gradients of `attention`, computing the scores once more.

        %d = attention_backward %q, %k, %v, [], none, none, %g, none, %o, %l
            {wanted = [true, false, false, false]} : f32[1, 2, 4, 8]

    `wanted` says which: of `q`, `k`, `v`, `sink`, and of `inputs`. `output` and `lse` are the
    results of the forward op, `grad_out` and `grad_lse` their gradients.
    """

    grad_out: Value
    grad_lse: Value | None
    output: Value
    lse: Value
    score: Region | None = None
    keep_scale: float = 1.0
    zero_empty: bool = False
    wanted: tuple[bool, ...] = ()

    def scoring(self) -> Region | None:
        """Return the score function; None where the products are the scores."""
        return self.score

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the operands whose gradients are wanted."""
        self._check()
        require_shape(self, self.grad_out, self.out_type.shape, "an incoming gradient")
        require_shape(self, self.output, self.out_type.shape, "the output")
        require_shape(self, self.lse, self.lse_type.shape, "logarithms")
        if self.grad_lse is not None:
            require_shape(self, self.grad_lse, self.lse_type.shape, "an incoming gradient")
        if len(self.wanted) != 4 + len(self.inputs):
            raise self.error("bad-attribute", f"has {len(self.wanted)} choices of gradients")
        return tuple(value.tensor_type.with_shape(value.shape) for value in self.sources)

    @property
    def headed(self) -> tuple[Value, ...]:
        """The gradients of `q`, `k` and `v`."""
        return self.results[: sum(self.wanted[:3])]

    @property
    def sources(self) -> tuple[Value, ...]:
        """The operands whose gradients are wanted."""
        operands = (self.q, self.k, self.v, self.sink, *self.inputs)
        chosen = []
        for operand, want in zip(operands, self.wanted, strict=True):
            if want and (operand is None or not operand.tensor_type.dtype.is_floating):
                raise self.error("bad-attribute", "wants the gradient of what has none")
            if want and operand is not None:
                chosen.append(operand)
        return tuple(chosen)

    def space(self) -> IterationSpace:
        """Add up what batches and queries give to operands that they share."""
        indices = Indices(self, FactorKind.REDUCTION)
        (batch, heads, queries, _), depth = indices.q, indices.v[3]
        row = (batch, heads, queries)
        given = [(*row, depth), *(() if self.grad_lse is None else (row,)), (*row, depth), row]
        operands = indices.operands()
        count = 3 + len(self.inputs)
        of_sink = () if self.sink is None else operands[count]
        sources = (*operands[:3], of_sink, *operands[3:count])
        chosen = zip(sources, self.wanted, strict=True)
        return indices.space((*operands, *given), tuple(one for one, want in chosen if want))


def _part(score: Region, dim: int, start: Dim, size: Dim) -> Part | CannotCut:
    """Return the part of a score function along a dimension of the products, with all parameters.

    Each parameter stands for itself, cut or whole.
    """
    part = part_of(score, {0: dim}, start, size)
    if isinstance(part, CannotCut):
        return part
    if [index for index, _ in part.parameters] != list(range(len(score.parameters))):
        return CannotCut("it reads an operand as a whole and in part")
    return part if part.results == (dim,) else CannotCut("it moves a dimension")


class Indices:
    """How the factors of attention index its operands.

    `b` runs over the batch, `g` over shared heads, `r` over the heads that share one, `q` over
    queries, `k` over keys. Factors along which the score function has no parts are opaque. `keys`
    makes the axis of keys, of the kind that is given, if they can be cut; else they are needed all.
    """

    def __init__(
        self,
        op: Scoring,
        kind: FactorKind,
        keys: Callable[[Factors, bool], Axis] | None = None,
    ) -> None:
        self.op, self.factors = op, Factors()
        score, group = op.scoring(), op.group
        (batch, heads, queries, depth), shared = op.q.shape, op.k.shape[1]
        self.parts = [
            None if score is None else _part(score, dim, 0, op.dot_type.shape[dim])
            for dim in range(3 if keys is None else 4)
        ]
        kinds = [FactorKind.OPAQUE if isinstance(part, CannotCut) else kind for part in self.parts]
        self.batch = self.factors.of(kinds[0], "b", batch)
        if group is None:
            self.shared = self.factors.opaque("g", shared)
            self.heads = self.factors.opaque("r", heads)
        else:
            self.shared = self.factors.of(kinds[1], "g", shared)
            inner = self.factors.of(kinds[1] if shared == 1 else FactorKind.OPAQUE, "r", group)
            self.heads = (*self.shared, *inner)
        self.queries = self.factors.of(kinds[2], "q", queries)
        self.keys: Axis = (
            self.factors.opaque("k", op.k.shape[2])
            if keys is None
            else keys(self.factors, not isinstance(self.parts[3], CannotCut))
        )
        depth_of_keys = self.factors.opaque("d", depth)
        self.q: IndexMap = (self.batch, self.heads, self.queries, depth_of_keys)
        self.k: IndexMap = (self.batch, self.shared, self.keys, depth_of_keys)
        depth_of_values = self.factors.opaque("e", op.v.shape[3])
        self.v: IndexMap = (self.batch, self.shared, self.keys, depth_of_values)

    def operands(self) -> tuple[IndexMap, ...]:
        """Return the index maps of the operands of attention."""
        op, row = self.op, (self.batch, self.heads, self.queries)
        maps = [self.q, self.k, self.v]
        maps += [self._of_input(n, value) for n, value in enumerate(op.inputs)]
        if op.sink is not None:
            maps.append(broadcast_axes(op.sink.shape, op.q.shape[:3], row))
        if op.keep is not None:
            maps.append((*row, self.keys))
        return tuple(maps)

    def _of_input(self, place: int, value: Value) -> IndexMap:
        """Return the map of an operand of the score function, which needs the rest as a whole."""
        axes: dict[int, Axis] = {}
        names = (self.batch, self.heads, self.queries, self.keys)
        for part, name in zip(self.parts, names, strict=False):
            if isinstance(part, Part):
                _, dim = part.parameters[1 + place]
                if dim is not None:
                    axes[dim] = name
        return tuple(
            axes[dim] if dim in axes else self.factors.opaque(f"i{place}_{dim}", size)
            for dim, size in enumerate(value.shape)
        )

    def space(
        self, operands: tuple[IndexMap, ...], results: tuple[IndexMap, ...]
    ) -> IterationSpace:
        """Return the space of the factors."""
        return self.factors.space(operands, results)
