"""Time the ways to multiply matrices and to convolve, interleaved, and print tables of ratios.

python benchmarks/products.py
python benchmarks/products.py --groups rows,layers --rounds 21 --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Ways = dict[str, Callable[[], Any]]
LAST = torch.channels_last


def compare(label: str, ways: Ways, rounds: int) -> None:
    """Print the median time of the first way, and how many times faster the others are.

    Ratios are medians over rounds, in each of which all ways run once.
    """
    for run in ways.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    first, *others = ways
    parts = [f"{first} {statistics.median(seconds[first]) * 1e6:9.0f} us"]
    for name in others:
        pairs = zip(seconds[first], seconds[name], strict=True)
        parts.append(f"{name} {statistics.median(a / b for a, b in pairs):5.2f}x")
    print(f"{label:<28} {'   '.join(parts)}", flush=True)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with Lynx, anew."""
    torch._dynamo.reset()
    return torch.compile(function, backend="lynx", dynamic=False)


def rows() -> Iterator[tuple[str, Ways]]:
    """Few rows by a weight as `nn.Linear` keeps it: what a decoder does for each token."""
    for m in (1, 2, 4, 8, 16):
        for n, k in ((768, 768), (3072, 768), (32000, 512)):
            x, weight, out = torch.randn(m, k), torch.randn(n, k), torch.empty(m, n)
            columns = weight.t().contiguous()
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, m)
            by_lynx = compiled(lambda x, weight: x @ weight.t())
            yield (
                f"{m}x{k} by {k}x{n}",
                {
                    "library": lambda x=x, w=weight, out=out: torch.mm(x, w.t(), out=out),
                    "by columns": lambda x=x, w=columns, out=out: torch.mm(x, w, out=out),
                    "packed": lambda x=x, w=packed: torch.ops.mkldnn._linear_pointwise(
                        x, w, None, "none", [], ""
                    ),
                    "lynx": lambda f=by_lynx, x=x, w=weight: f(x, w),
                },
            )


def low_precision() -> Iterator[tuple[str, Ways]]:
    """Products of low precision, as they are and by way of `f32`."""
    for dtype in (torch.bfloat16, torch.float16):
        for m, k, n in ((1, 768, 768), (8, 16, 16), (16, 64, 64), (8, 512, 512), (128, 512, 512)):
            a, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
            for name, b in (("forward", weight.t()), ("backward", torch.randn(k, n).to(dtype))):
                by_lynx = compiled(torch.mm)
                yield (
                    f"{str(dtype)[6:]} {m}x{k} by {k}x{n} {name}",
                    {
                        "torch": lambda a=a, b=b: a @ b,
                        "by f32": lambda a=a, b=b, t=dtype: (a.float() @ b.float()).to(t),
                        "lynx": lambda f=by_lynx, a=a, b=b: f(a, b),
                    },
                )


def layers() -> Iterator[tuple[str, Ways]]:
    """Linear layers with an activation between them, forward and backward."""
    for dtype in (torch.float32, torch.bfloat16):
        for rows, width in ((128, 512), (512, 768)):
            model = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            model = model.to(dtype)
            x = torch.randn(rows, width).to(dtype)
            by_lynx = compiled(model)
            yield (
                f"{str(dtype)[6:]} {rows}x{width} MLP step",
                {
                    "torch": lambda f=model, x=x: f(x).sum().backward(),
                    "lynx": lambda f=by_lynx, x=x: f(x).sum().backward(),
                },
            )


SHAPES = {
    "7x7 /2, 3-64 at 112": (4, 3, 112, 64, 7, 2, 3, 1),
    "1x1, 64-256 at 28": (4, 64, 28, 256, 1, 1, 0, 1),
    "1x1, 512-2048 at 7": (4, 512, 7, 2048, 1, 1, 0, 1),
    "3x3, 64-64 at 28": (4, 64, 28, 64, 3, 1, 1, 1),
    "3x3, 256-256 at 14": (4, 256, 14, 256, 3, 1, 1, 1),
    "3x3 /2, 128-128 at 28": (4, 128, 28, 128, 3, 2, 1, 1),
    "7x7 depthwise, 96 at 56": (2, 96, 56, 96, 7, 1, 3, 96),
    "3x3 depthwise, 96 at 56": (2, 96, 56, 96, 3, 1, 1, 96),
    "16x16 /16, 3-384 at 224": (4, 3, 224, 384, 16, 16, 0, 1),
}
"""Batch, input channels, size, output channels, kernel, stride, padding, groups."""


def convolutions() -> Iterator[tuple[str, Ways]]:
    """Convolutions and their gradients, row-major and channels last, and other ways to them."""
    forward = torch.ops.aten.convolution.default
    backward = torch.ops.aten.convolution_backward.default
    for label, (batch, inputs, size, outputs, kernel, stride, padding, groups) in SHAPES.items():
        x = torch.randn(batch, inputs, size, size)
        weight = torch.randn(outputs, inputs // groups, kernel, kernel) / kernel
        slide = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
        grad = torch.randn_like(forward(x, weight, None, *slide))
        out = torch.empty_like(grad)
        last = [t.contiguous(memory_format=LAST) for t in (grad, x, weight)]
        ways: Ways = {
            "row-major": lambda x=x, w=weight, s=slide: forward(x, w, None, *s),
            "channels last": lambda t=last, s=slide: forward(t[1], t[2], None, *s),
            "into memory": lambda x=x, w=weight, s=slide, out=out: into(out, x, w, s),
        }
        if kernel == stride == 1:
            ways |= pointwise(x, weight)
        yield f"{label} forward", ways
        for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
            yield (
                f"{label} {name}",
                {
                    "row-major": lambda g=grad, x=x, w=weight, s=slide, m=mask: backward(
                        g, x, w, None, *s, m
                    ),
                    "channels last": lambda t=last, s=slide, m=mask: backward(*t, None, *s, m),
                },
            )


def into(out: Tensor, x: Tensor, weight: Tensor, slide: Any) -> Tensor:
    """Convolve into given memory."""
    stride, padding, dilation, _, _, groups = slide
    result: Tensor = torch.ops.mkldnn._convolution_pointwise_.binary(
        out.zero_(), x, weight, None, padding, stride, dilation, groups,
        "add", 1.0, None, [], None,
    )  # fmt: skip
    return result


def pointwise(x: Tensor, weight: Tensor) -> Ways:
    """Return a convolution with windows of one element as products of matrices."""
    batch, inputs, height, width = x.shape
    matrix = weight.view(-1, inputs)
    positions = x.permute(0, 2, 3, 1).reshape(-1, inputs)
    spread, columns = matrix.expand(batch, -1, -1), x.view(batch, inputs, -1)
    flat = torch.empty(len(positions), len(matrix))
    planes = torch.empty(batch, len(matrix), height * width)
    return {
        "one product": lambda: torch.mm(positions, matrix.t(), out=flat),
        "product an image": lambda: torch.bmm(spread, columns, out=planes),
    }


GROUPS = {
    "rows": rows,
    "low-precision": low_precision,
    "layers": layers,
    "convolutions": convolutions,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.groups.split(","):
        group = GROUPS[name]
        print(f"\n{(group.__doc__ or '').strip()}")
        for label, ways in group():
            compare(label, ways, options.rounds)


if __name__ == "__main__":
    main()
