"""Random score functions, each as a region and, written independently, in plain torch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, product, simplify
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_compare as compare
from lynx.ir.ops import elementwise_math as functions
from lynx.ir.ops import factory, indexing, layout
from lynx.ir.ops.fusion import Region
from lynx.ir.types import DType, TensorType

Tensors = Sequence[torch.Tensor]
Step = Callable[[torch.Tensor, Tensors], torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of products, and how they are written in the region."""

    numbers: tuple[int, int, int, int]
    dims: tuple[Dim, Dim, Dim, Dim]


class RandomScore:
    """A score function of a few random steps; `of_torch` computes the same."""

    def __init__(self, seed: int, sizes: Sizes, dtype: DType, steps: int = 4) -> None:
        self.random = random.Random(seed)
        self.sizes, self.dtype = sizes, dtype
        self.dot = Value(TensorType(dtype, sizes.dims), name="dot")
        self.parameters = [self.dot]
        self.operands: list[torch.Tensor] = []
        self.ops: list[Op] = []
        self.value = self.dot
        self.steps: list[Step] = []
        self.torch_dtype = torch.float64 if dtype is DType.F64 else torch.float32
        kinds = [
            self.scale, self.cap, self.bias, self.slopes, self.causal, self.window, self.padding,
            self.table, self.merged, self.documents, self.turned, self.bent, self.offsets,
        ]  # fmt: skip
        self.names: list[str] = []
        self.is_masked = False
        for _ in range(steps):
            # What becomes of infinities when they are multiplied is not what attention is about.
            kind = self.random.choice(kinds[2:9] if self.is_masked else kinds)
            self.names.append(kind.__name__)
            kind()

    @property
    def region(self) -> Region:
        return Region(tuple(self.parameters), tuple(self.ops), (self.value,))

    def of_torch(self, dot: torch.Tensor, operands: Tensors) -> torch.Tensor:
        for step in self.steps:
            dot = step(dot, operands)
        return dot

    def add(self, op: Op) -> Value:
        self.ops.append(op)
        return op.results[0]

    def operand(self, tensor: torch.Tensor, shape: tuple[Dim, ...], dtype: DType) -> Value:
        """Add an operand of the score function."""
        self.operands.append(tensor)
        self.parameters.append(Value(TensorType(dtype, shape), name=f"p{len(self.parameters) - 1}"))
        return self.parameters[-1]

    def floats(self, dims: Sequence[int | None]) -> tuple[Value, int]:
        """Add a floating operand; a dimension is that of products, or of size 1 for None."""
        shape = [1 if d is None else self.sizes.numbers[d] for d in dims]
        written = tuple(1 if d is None else self.sizes.dims[d] for d in dims)
        tensor = torch.randn(shape, dtype=self.torch_dtype)
        return self.operand(tensor, written, self.dtype), len(self.operands) - 1

    # steps

    def scale(self) -> None:
        number = self.random.choice([0.5, -1.25, 2.0])
        kind = self.random.choice([arithmetic.Multiply, arithmetic.Divide])
        self.value = self.add(kind(self.value, number))
        divides = kind is arithmetic.Divide
        self.steps.append(lambda s, _: s / number if divides else s * number)

    def cap(self) -> None:
        inner = self.add(functions.Tanh(self.add(arithmetic.Divide(self.value, 3.0))))
        self.value = self.add(arithmetic.Multiply(inner, 3.0))
        self.steps.append(lambda s, _: torch.tanh(s / 3.0) * 3.0)

    def bias(self) -> None:
        dims = [d if self.random.random() < 0.6 else None for d in range(4)]
        dims = dims[self.random.choice([0, 0, 1, 2]) :]
        operand, place = self.floats(dims)
        self.value = self.add(arithmetic.Add(self.value, operand))
        self.steps.append(lambda s, o: s + o[place])

    def _differences(self, offset: int) -> tuple[Value, Callable[[torch.Tensor], torch.Tensor]]:
        """Return `key - query + offset` of all pairs."""
        _, _, rows, keys = self.sizes.dims
        row = self.add(factory.Iota(0, 1, rows, DType.I64))
        key = self.add(factory.Iota(offset, 1, keys, DType.I64))
        column = self.add(layout.Unsqueeze(row, 1))
        return self.add(
            arithmetic.Subtract(key, column)
        ), lambda s: torch.arange(s.shape[3]) + offset - torch.arange(s.shape[2])[:, None]

    def slopes(self) -> None:
        difference, of_torch = self._differences(0)
        slope, place = self.floats([1, None, None])
        wide = self.add(arithmetic.Cast(difference, self.dtype))
        scaled = self.add(arithmetic.Multiply(slope, wide))
        self.value = self.add(arithmetic.Add(self.value, scaled))
        self.steps.append(lambda s, o: s + o[place] * of_torch(s).to(s.dtype))

    def _fill(self) -> float:
        self.is_masked = True
        return self.random.choice([-math.inf, -math.inf, -3e4])

    def causal(self) -> None:
        offset = self.random.choice([0, 0, 1, -1, -3])
        difference, of_torch = self._differences(offset)
        seen = self.add(compare.LessEqual(difference, 0))
        fill = self._fill()
        self.value = self.add(arithmetic.Where(seen, self.value, fill))
        self.steps.append(lambda s, _: s.masked_fill(of_torch(s) > 0, fill))

    def window(self) -> None:
        self.is_masked = True
        difference, of_torch = self._differences(0)
        width = self.random.choice([1, 2, 4])
        near = self.add(
            compare.LogicalAnd(
                self.add(compare.LessEqual(difference, width)),
                self.add(compare.Greater(difference, -width)),
            )
        )
        zero = self.add(factory.Full(0.0, (), self.dtype))
        added = self.add(arithmetic.Where(near, zero, -math.inf))
        self.value = self.add(arithmetic.Add(self.value, added))

        def step(s: torch.Tensor, _: Tensors) -> torch.Tensor:
            d = of_torch(s)
            return s + torch.where((d <= width) & (d > -width), 0.0, -math.inf).to(s.dtype)

        self.steps.append(step)

    def padding(self) -> None:
        batch, _, _, keys = self.sizes.numbers
        dims = (self.sizes.dims[0], 1, 1, self.sizes.dims[3])
        valid = torch.rand(batch, 1, 1, keys) < 0.8
        operand, place = self.operand(valid, dims, DType.BOOL), len(self.operands) - 1
        fill = self._fill()
        self.value = self.add(arithmetic.Where(operand, self.value, fill))
        self.steps.append(lambda s, o: torch.where(o[place], s, fill))

    def documents(self) -> None:
        batch, _, rows, keys = self.sizes.numbers
        size = self.sizes.dims
        of_rows = self.operand(torch.randint(0, 2, (batch, rows)), (size[0], size[2]), DType.I64)
        of_keys = self.operand(torch.randint(0, 2, (batch, keys)), (size[0], size[3]), DType.I64)
        place = len(self.operands) - 2
        a = self.add(layout.Reshape(of_rows, (size[0], 1, size[2], 1)))
        b = self.add(layout.Reshape(of_keys, (size[0], 1, 1, size[3])))
        same = self.add(compare.Equal(a, b))
        self.value = self.add(arithmetic.Where(same, self.value, -1e4))
        self.steps.append(
            lambda s, o: torch.where(
                o[place][:, None, :, None] == o[place + 1][:, None, None, :], s, -1e4
            )
        )

    def table(self) -> None:
        difference, of_torch = self._differences(2)
        place_of = self.add(arithmetic.Clamp(difference, 0, 4))
        heads = self.sizes.numbers[1]
        table = torch.randn(5, heads, dtype=self.torch_dtype)
        operand = self.operand(table, (5, self.sizes.dims[1]), self.dtype)
        place = len(self.operands) - 1
        if self.random.random() < 0.5:
            found = self.add(indexing.Embedding(operand, place_of))
        else:
            found = self.add(indexing.Index(operand, (place_of,)))
        turned = self.add(layout.Permute(found, (2, 0, 1)))
        self.value = self.add(arithmetic.Add(self.value, turned))
        self.steps.append(lambda s, o: s + o[place][of_torch(s).clamp(0, 4)].permute(2, 0, 1))

    def merged(self) -> None:
        batch, heads, rows, keys = self.sizes.dims
        both = simplify(product((batch, heads)))
        count = self.sizes.numbers[0] * self.sizes.numbers[1]
        tensor = torch.randn(count, 1, self.sizes.numbers[3], dtype=self.torch_dtype)
        operand, place = self.operand(tensor, (both, 1, keys), self.dtype), len(self.operands) - 1
        flat = self.add(layout.Reshape(self.value, (both, rows, keys)))
        added = self.add(arithmetic.Add(flat, operand))
        self.value = self.add(layout.Reshape(added, (batch, heads, rows, keys)))
        self.steps.append(lambda s, o: (s.reshape(count, *s.shape[2:]) + o[place]).reshape(s.shape))

    def turned(self) -> None:
        other = self.add(layout.Permute(self.value, (2, 0, 3, 1)))
        operand, place = self.floats([2, None, None, 1])
        scaled = self.add(arithmetic.Multiply(other, operand))
        self.value = self.add(layout.Permute(scaled, (1, 3, 0, 2)))
        self.steps.append(lambda s, o: (s.permute(2, 0, 3, 1) * o[place]).permute(1, 3, 0, 2))

    def bent(self) -> None:
        kind, of_torch = self.random.choice(
            [
                (functions.Sigmoid, torch.sigmoid),
                (functions.Absolute, torch.abs),
                (functions.Sin, torch.sin),
            ]
        )
        self.value = self.add(kind(self.value))
        self.steps.append(lambda s, _: of_torch(s))

    def offsets(self) -> None:
        """Multiply by a number for each key that is looked up in a table along another axis."""
        keys = self.sizes.dims[3]
        places = torch.randint(0, 3, (self.sizes.numbers[3],))
        index = self.operand(places, (keys,), DType.I64)
        tensor = torch.randn(3, 1, dtype=self.torch_dtype)
        operand, place = self.operand(tensor, (3, 1), self.dtype), len(self.operands) - 1
        chosen = self.add(indexing.IndexSelect(operand, index, 0))
        row = self.add(layout.Squeeze(chosen, (1,)))
        self.value = self.add(arithmetic.Multiply(self.value, row))
        self.steps.append(lambda s, o: s * o[place][o[place - 1]][:, 0])
