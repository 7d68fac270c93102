"""Samples of convolutions and pooling."""

from __future__ import annotations

from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
    MaxPool,
    MaxPoolBackward,
)
from lynx.ir.types import DType

from . import Sample
from .linear import tensor

CONVOLUTIONS = [
    Convolution(tensor(3, 4, 9), tensor(6, 4, 3), None),
    Convolution(tensor(2, 4, 7, 8), tensor(6, 4, 3, 2), tensor(6), padding=(1, 1)),
    Convolution(tensor(2, 4, 7, 8), tensor(5, 4, 3, 3), None, (2, 3), (1, 2), (2, 1)),
    Convolution(tensor(2, 4, 5, 5), tensor(6, 4, 1, 1), None),
    Convolution(tensor(2, 6, 7, 5), tensor(9, 2, 3, 3), None, groups=3, padding=(1, 0)),
    Convolution(tensor(2, 4, 6, 6), tensor(4, 1, 3, 3), tensor(4), groups=4, stride=(2, 2)),
    Convolution(tensor(1, 2, 4, 5, 4), tensor(3, 2, 2, 3, 2), None, padding=(1, 1, 1)),
    Convolution(tensor(2, 4, 5, 5), tensor(4, 6, 3, 3), None, (2, 2), (1, 1), (), True, (1, 1)),
    Convolution(tensor(2, 4, 5), tensor(4, 3, 3), tensor(6), (2,), (), (2,), True, (), 2),
    Convolution(tensor(2, 3, 6), tensor(4, 3, 2), None, padding=(1,), end_padding=(3,)),
]

BACKWARD = [
    (tensor(3, 6, 7), tensor(3, 4, 9), tensor(6, 4, 3), {}),
    (
        tensor(3, 6, 4, 6),
        tensor(3, 4, 7, 7),
        tensor(6, 4, 3, 2),
        {"stride": (2, 1), "padding": (1, 0)},
    ),
    (tensor(3, 6, 6), tensor(3, 4, 6), tensor(6, 2, 3), {"padding": (1,), "groups": 2}),
    (
        tensor(2, 6, 10),
        tensor(2, 4, 5),
        tensor(4, 6, 3),
        {"stride": (2,), "padding": (1,), "transposed": True, "output_padding": (1,)},
    ),
    (tensor(2, 6, 7), tensor(2, 4, 5), tensor(4, 3, 3), {"transposed": True, "groups": 2}),
]

IMAGE, VOLUME, PLANE = tensor(2, 3, 6, 7), tensor(2, 3, 4, 5, 4), tensor(3, 6, 7)
PADDED = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}

SAMPLES = [
    *(Sample(op, tolerance=1e-4) for op in CONVOLUTIONS),
    *(Sample(ConvolutionBackwardInput(*v, **given), tolerance=1e-4) for *v, given in BACKWARD),
    *(Sample(ConvolutionBackwardWeight(*v, **given), tolerance=1e-4) for *v, given in BACKWARD),
    *(
        Sample(
            ConvolutionBackwardWeight(*v, **given, of_weight=of_weight, of_bias=True),
            tolerance=1e-4,
        )
        for *v, given in BACKWARD[:3]
        for of_weight in (True, False)
    ),
    Sample(MaxPool(IMAGE, (2, 2))),
    Sample(MaxPool(PLANE, **PADDED, dilation=(1, 2), ceil_mode=True)),
    Sample(MaxPool(VOLUME, (2, 2, 2), stride=(1, 1, 1))),
    Sample(
        MaxPoolBackward(tensor(2, 3, 3, 3), IMAGE, tensor(2, 3, 3, 3, dtype=DType.I64), (2, 2)),
        {2: (0, 42)},
    ),
    Sample(
        MaxPoolBackward(
            tensor(2, 3, 2, 2, 2), VOLUME, tensor(2, 3, 2, 2, 2, dtype=DType.I64), (2, 2, 2)
        ),
        {2: (0, 80)},
    ),
    Sample(AveragePool(IMAGE, (2, 2))),
    Sample(AveragePool(PLANE, (3, 2), stride=(1, 3), divisor=5)),
    Sample(AveragePool(IMAGE, **PADDED, ceil_mode=True, counts_padding=False)),
    Sample(AveragePool(VOLUME, (2, 2, 2), stride=(1, 1, 1))),
    Sample(AveragePoolBackward(tensor(2, 3, 3, 3), IMAGE, (2, 2))),
    Sample(AveragePoolBackward(tensor(2, 3, 4, 8), IMAGE, **PADDED, ceil_mode=True)),
    Sample(AveragePoolBackward(tensor(2, 3, 2, 2, 2), VOLUME, (2, 2, 2))),
    Sample(AdaptiveAveragePool(IMAGE, (2, 3))),
    Sample(AdaptiveAveragePool(PLANE, (1, 1))),
    Sample(AdaptiveAveragePool(VOLUME, (2, 3, 2))),
    Sample(AdaptiveAveragePoolBackward(tensor(2, 3, 2, 3), IMAGE, 2)),
    Sample(AdaptiveAveragePoolBackward(tensor(2, 3, 2, 3, 2), VOLUME, 3)),
    Sample(
        Convolution(tensor(2, 4, 9), tensor(8, 2, 3), tensor(8), (2,), (2,), (3,), groups=2),
        tolerance=1e-4,
    ),
    Sample(
        Convolution(tensor(1, 3, 5), tensor(3, 2, 3), None, (3,), (1,), (2,), True, (2,), 3),
        tolerance=1e-4,
    ),
    Sample(
        Convolution(tensor(2, 2, 5, 1), tensor(2, 2, 3, 1), None, padding=(4, 0)), tolerance=1e-4
    ),
    Sample(MaxPool(PLANE, (3, 3), (3, 2), (1, 0), (), True)),
    Sample(AveragePool(IMAGE, (3, 3), (2, 2), (1, 0), True, True)),
]
