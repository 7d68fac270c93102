"""Attention as models that people use write it is found, and computes what it should."""

from __future__ import annotations

import pytest
import torch

from tests.frontend.attention_flex import FLEX
from tests.frontend.attention_idioms import Idiom
from tests.frontend.attention_language import LANGUAGE
from tests.frontend.attention_pooling import POOLING
from tests.frontend.attention_spellings import SPELLINGS
from tests.frontend.attention_vision import VISION
from tests.frontend.test_recognise_attention import (
    Counter,
    assert_as_good,
    drawn,
    evaluated,
    in_double,
    with_dynamic_sizes,
)

WITHOUT_BACKWARD = tuple(idiom.name for idiom in FLEX)
ONE_SIZE = ("prefix_lm", "fairseq", "stick_temperature_log_n", "sam_decomposed", "axial")
"""What writes a size as a number, or has to be of one size for other reasons."""


@pytest.mark.parametrize(
    ("dtype", "training", "dynamic"),
    [(torch.float32, False, False), (torch.bfloat16, True, True)],
    ids=["f32-inference-static", "bf16-training-dynamic"],
)
@pytest.mark.parametrize(
    "idiom", [*SPELLINGS, *VISION, *LANGUAGE, *POOLING, *FLEX], ids=lambda idiom: idiom.name
)
def test_found(idiom: Idiom, dtype: torch.dtype, training: bool, dynamic: bool) -> None:
    given = drawn(idiom, dtype, training=training and idiom.name not in WITHOUT_BACKWARD)
    expected = evaluated(idiom.function, given)
    exact = evaluated(idiom.function, tuple(map(in_double, given)))
    if dynamic and idiom.name not in ONE_SIZE:
        with_dynamic_sizes(given)
    counter = Counter()
    actual = evaluated(torch.compile(idiom.function, backend=counter), given)
    assert counter.count == idiom.count, counter.messages
    assert_as_good(actual, expected, exact)
