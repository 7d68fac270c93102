"""Decompositions of random ops are as accurate as eager, special values included."""

from __future__ import annotations

import random
import zlib

import pytest

from lynx.ir.types import DType
from tests.passes.decompose_cases import CASES, WITHOUT_NAN, Draw
from tests.passes.decompositions import assert_as_accurate, decomposed, graph_of

ROUNDS = 5


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_random_ops(name: str, dtype: DType, special: bool) -> None:
    generator = random.Random(zlib.crc32(f"{name} {dtype} {special}".encode()))
    for _ in range(ROUNDS):
        draw = Draw(dtype, generator, special, nan=name not in WITHOUT_NAN)
        op = CASES[name](draw)
        before = graph_of(op)
        after = decomposed(before)
        assert op not in after.ops
        assert_as_accurate(op, draw.inputs, after)
