"""Libraries that compute attention: flash-attn 4, flash-attn 2, and torch's own kernels.

Each takes some attentions only: what a library computes is compared with what is wanted, in numbers
where sizes are known late. All give, and take, the logarithms of denominators, so that one may
compute the gradients of what another has computed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx.ir.dims import Dim, evaluate
from lynx.ir.native import AttentionBackwardCall, AttentionCall, Strided
from lynx.ir.types import DType
from lynx.passes.attention.standard import StandardForm, standard_form

from .attention import AttentionOptions
from .attention_memory import shapes_of

Arguments = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Band:
    """Which keys queries see, counted from the end: `left` before the own one, `right` after it.

    None is all of them.
    """

    left: int | None
    right: int | None

    @property
    def is_causal(self) -> bool:
        """Whether queries see all keys up to their own."""
        return self.left is None and self.right == 0

    @property
    def is_full(self) -> bool:
        """Whether queries see all keys."""
        return self.left is None and self.right is None


@dataclass(frozen=True, eq=False)
class Task:
    """An attention for a library: tensors by name, in the layouts that the call describes."""

    tensors: Arguments
    scale: float
    softcap: float
    band: Band
    is_deterministic: bool

    def heads_inside(self, name: str) -> torch.Tensor:
        """Return a tensor with positions before heads, as flash-attn has them."""
        return self.tensors[name].transpose(1, 2)


@dataclass(frozen=True)
class Library:
    """What computes attentions: `forward` gives output and logarithms, `backward` gradients.

    `refuses` says why an attention is none for it, empty if it is one.
    """

    name: str
    is_there: Callable[[torch.device], bool]
    refuses: Callable[[Task], str]
    forward: Callable[[Task], tuple[torch.Tensor, torch.Tensor]]
    backward: Callable[[Task], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, eq=False)
class Attended:
    """A call of attention as a task for a library."""

    library: Library
    call: AttentionCall | AttentionBackwardCall
    form: StandardForm
    symbols: tuple[str, ...]
    is_deterministic: bool

    def takes_values(self, tensors: Sequence[torch.Tensor], values: Sequence[int]) -> bool:
        """Whether the library computes the attention for these tensors and sizes."""
        task = self.task(tensors, dict(zip(self.symbols, values, strict=True)))
        return task is not None and not self.library.refuses(task)

    def task(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Task | None:
        """Return what a library is asked for, None if a query sees no key."""
        forward = self.call if isinstance(self.call, AttentionCall) else self.call.forward
        queries, keys = (
            evaluate(dim, sizes) for dim in (forward.sizes.queries, forward.sizes.keys)
        )
        band = _band(self.form, sizes, queries, keys)
        if band is None:
            return None
        named = {
            name: _strided(tensors, tensor, shape, sizes)
            for name, tensor, shape in shapes_of(self.call)
            if tensor is not None
        }
        form = self.form
        return Task(named, form.scale, form.softcap, band, self.is_deterministic)

    @torch.no_grad()
    def launch(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Compute, and write the results."""
        task = self.task(tensors, sizes)
        assert task is not None, "a task that is not taken"
        if isinstance(self.call, AttentionCall):
            output, logarithms = self.library.forward(task)
            given = task.tensors["logarithms"]
            task.tensors["output"].copy_(output)
            given.copy_(logarithms.reshape(given.shape))
            return
        for name, found in zip(_GRADIENTS, self.library.backward(task), strict=True):
            if name in task.tensors:
                task.tensors[name].copy_(found)


_GRADIENTS = ("grad_queries", "grad_keys", "grad_values")


def _strided(
    tensors: Sequence[torch.Tensor], tensor: Strided, shape: tuple[Dim, ...], sizes: Any
) -> torch.Tensor:
    given = tensors[tensor.pointer.slot].detach()
    size, strides = (
        [evaluate(dim, sizes) for dim in dims] for dims in (tensor.shape or shape, tensor.strides)
    )
    return given.as_strided(size, strides)


def _band(form: StandardForm, sizes: Mapping[str, int], queries: int, keys: int) -> Band | None:
    """Return the band that is seen, None if some query sees nothing."""
    if queries == 0 or keys == 0:
        return None
    upper, lower = (
        None if dim is None else evaluate(dim, sizes) for dim in (form.upper, form.lower)
    )
    # The first query must see the first key, and the last query the last one.
    if upper is not None and upper < 0:
        return None
    if lower is not None and queries - 1 - lower > keys - 1:
        return None
    if upper is not None and lower is not None and upper + lower < 0:
        return None
    offset = keys - queries
    right = None if upper is None or upper >= keys - 1 else upper - offset
    left = None if lower is None or lower >= queries - 1 else lower + offset
    return Band(left, right)


def libraries_of(
    call: AttentionCall | AttentionBackwardCall,
    symbols: tuple[str, ...],
    options: AttentionOptions,
    device: str,
) -> Iterator[tuple[str, Attended]]:
    """Yield the libraries that compute an attention for some sizes, the best first."""
    form = _form(call)
    if not isinstance(form, StandardForm) or not device.startswith("cuda"):
        return
    for library in LIBRARIES:
        if library.is_there(torch.device(device)):
            yield library.name, Attended(library, call, form, symbols, options.is_deterministic)


def _form(call: AttentionCall | AttentionBackwardCall) -> StandardForm | str:
    """Return the attention in the form of libraries, or why it has none."""
    forward = call if isinstance(call, AttentionCall) else call.forward
    if forward.q.dtype not in (DType.BF16, DType.F16):
        return f"libraries attend to no {forward.q.dtype}"
    if forward.sink is not None or forward.keep is not None:
        return "libraries know no sinks, and draw what is dropped themselves"
    if isinstance(call, AttentionBackwardCall) and (call.grad_lse or call.operands):
        return "libraries give no gradient of logarithms, and none to operands"
    return standard_form(forward.score)


# flash-attn 4 and 2


@functools.cache
def _module(name: str) -> Any:
    """Return a module, None if it is not there or does not load."""
    try:
        return importlib.import_module(name)
    except Exception:  # a library that was built for another system raises what it likes
        return None


def _capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip is not None:
        return (0, 0)
    return torch.cuda.get_device_capability(device)


def _depths(task: Task) -> tuple[int, int]:
    return task.tensors["queries"].shape[3], task.tensors["values"].shape[3]


def _flash_refuses(task: Task) -> str:
    inner, outer = _depths(task)
    if inner != outer or inner > 256 or inner % 8:
        return f"depths {inner} and {outer}"
    if task.scale <= 0:
        return "a scale that is not positive"
    if any(side is not None and side < 0 for side in (task.band.left, task.band.right)):
        return "a window that does not reach the own key"
    return ""


def _window(band: Band) -> tuple[int, int]:
    return tuple(-1 if side is None else side for side in (band.left, band.right))  # type: ignore[return-value]


def _flash_2_forward(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    window = (-1, -1) if task.band.is_causal else _window(task.band)
    found = _module("flash_attn").flash_attn_func(
        task.heads_inside("queries"), task.heads_inside("keys"), task.heads_inside("values"),
        dropout_p=0.0, softmax_scale=task.scale, causal=task.band.is_causal, window_size=window,
        return_attn_probs=True, **({"softcap": task.softcap} if task.softcap else {}),
    )  # fmt: skip
    return found[0].transpose(1, 2), found[1]


def _flash_2_backward(task: Task) -> tuple[torch.Tensor, ...]:
    function = _module("flash_attn.flash_attn_interface")._flash_attn_backward
    given = [task.heads_inside(n) for n in ("grad_output", "queries", "keys", "values", "output")]
    given = [x if x.stride(-1) == 1 else x.contiguous() for x in given]
    grads = [torch.empty_like(x) for x in given[1:4]]
    window = (-1, -1) if task.band.is_causal else _window(task.band)
    more: dict[str, Any] = {
        "dropout_p": 0.0, "softmax_scale": task.scale, "causal": task.band.is_causal,
        "softcap": task.softcap, "alibi_slopes": None, "deterministic": task.is_deterministic,
    }  # fmt: skip
    names = _parameters(function)
    if "window_size" in names:
        more["window_size"] = window
    else:
        more |= {"window_size_left": window[0], "window_size_right": window[1]}
    function(*given, task.tensors["logarithms"].contiguous(), *grads, **more)
    return tuple(grad.transpose(1, 2) for grad in grads)


def _parameters(function: Any) -> frozenset[str]:
    """Return the names of a function's parameters, also of one that is an operator of torch."""
    function = getattr(function, "_init_fn", function)
    return frozenset(inspect.signature(function).parameters)


def _flash_4_refuses(task: Task) -> str:
    inner, outer = _depths(task)
    if inner > 128:
        return f"depth {inner}"
    return _flash_refuses(task) if inner == outer else f"depths {inner} and {outer}"


def _flash_4_forward(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    function = _module("flash_attn.cute.interface")._flash_attn_fwd
    output, logarithms = function(
        task.heads_inside("queries"), task.heads_inside("keys"), task.heads_inside("values"),
        return_lse=True, **_flash_4_options(task, function),
    )[:2]  # fmt: skip
    return output.transpose(1, 2), logarithms


def _flash_4_backward(task: Task) -> tuple[torch.Tensor, ...]:
    function = _module("flash_attn.cute.interface")._flash_attn_bwd
    names = ("queries", "keys", "values", "output", "grad_output")
    found = function(
        *map(task.heads_inside, names), task.tensors["logarithms"].contiguous(),
        **_flash_4_options(task, function),
    )  # fmt: skip
    return tuple(grad.transpose(1, 2) for grad in found[:3])


def _flash_4_options(task: Task, function: Any) -> dict[str, Any]:
    """Return what a function is told; `RuntimeError` if this version does not know of it."""
    band = task.band
    options: dict[str, Any] = {"softmax_scale": task.scale, "causal": band.is_causal}
    if not (band.is_causal or band.is_full):
        options |= {"window_size_left": band.left, "window_size_right": band.right}
    if task.softcap:
        options["softcap"] = task.softcap
    if task.is_deterministic and "grad_output" in task.tensors:
        options["deterministic"] = True
    missing = options.keys() - _parameters(function)
    if missing:
        raise RuntimeError(f"this version knows no {', '.join(sorted(missing))}")
    return options


# torch


def _torch_refuses(task: Task) -> str:
    inner, outer = _depths(task)
    queries, keys = task.tensors["queries"].shape[2], task.tensors["keys"].shape[2]
    if task.softcap or task.scale <= 0:
        return "a softcap, or a scale that is not positive"
    if not task.band.is_full and not (task.band.is_causal and queries == keys):
        return "a mask that is not causal over as many queries as keys"
    if inner != outer or inner > 256 or inner % 8:
        return f"depths {inner} and {outer}"
    strides = (task.tensors[name].stride(3) for name in ("queries", "keys", "values"))
    return "" if all(stride == 1 for stride in strides) else "a depth that is not innermost"


def _cudnn_refuses(task: Task) -> str:
    if _depths(task)[0] > 128:
        return f"depth {_depths(task)[0]}"
    if task.is_deterministic and "grad_output" in task.tensors:
        return "gradients that are added in any order"
    return _torch_refuses(task)


def _shared(task: Task) -> list[torch.Tensor]:
    return [task.tensors[name] for name in ("queries", "keys", "values")]


def _torch_flash_forward(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    function = torch.ops.aten._scaled_dot_product_flash_attention
    found = function(*_shared(task), 0.0, task.band.is_causal, False, scale=task.scale)
    return found[0], found[1]


def _torch_flash_backward(task: Task) -> tuple[torch.Tensor, ...]:
    queries, keys, values = _shared(task)
    seed = torch.zeros((), dtype=torch.int64, device=queries.device)
    return tuple(
        torch.ops.aten._scaled_dot_product_flash_attention_backward(
            task.tensors["grad_output"], queries, keys, values, task.tensors["output"],
            task.tensors["logarithms"].contiguous(), None, None, queries.shape[2], keys.shape[2],
            0.0, task.band.is_causal, seed, seed, scale=task.scale,
        )
    )  # fmt: skip


def _cudnn_forward(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    function = torch.ops.aten._scaled_dot_product_cudnn_attention
    found = function(*_shared(task), None, True, 0.0, task.band.is_causal, False, scale=task.scale)
    return found[0], found[1]


def _cudnn_backward(task: Task) -> tuple[torch.Tensor, ...]:
    queries, keys, values = _shared(task)
    seed = torch.zeros((), dtype=torch.int64, device=queries.device)
    logarithms = task.tensors["logarithms"].contiguous().unsqueeze(-1)
    return tuple(
        torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            task.tensors["grad_output"], queries, keys, values, task.tensors["output"], logarithms,
            seed, seed, None, None, None, queries.shape[2], keys.shape[2], 0.0,
            task.band.is_causal, scale=task.scale,
        )
    )  # fmt: skip


FLASH_4 = Library(
    "flash-attn 4",
    lambda device: _capability(device) >= (9, 0)
    and _module("flash_attn.cute.interface") is not None,
    _flash_4_refuses, _flash_4_forward, _flash_4_backward,
)  # fmt: skip
FLASH_2 = Library(
    "flash-attn 2",
    lambda device: _capability(device) >= (8, 0) and _module("flash_attn") is not None
    and hasattr(_module("flash_attn"), "flash_attn_func"),
    _flash_refuses, _flash_2_forward, _flash_2_backward,
)  # fmt: skip
CUDNN = Library(
    "cuDNN by torch",
    lambda device: _capability(device) >= (9, 0) and _torch_allows("cudnn"),
    _cudnn_refuses, _cudnn_forward, _cudnn_backward,
)  # fmt: skip
TORCH_FLASH = Library(
    "flash attention by torch",
    lambda device: _has_torch_flash(device) and _torch_allows("flash"),
    _torch_refuses, _torch_flash_forward, _torch_flash_backward,
)  # fmt: skip
LIBRARIES = (FLASH_4, CUDNN, FLASH_2, TORCH_FLASH)
"""The libraries in the order of how fast they are."""


def _has_torch_flash(device: torch.device) -> bool:
    is_amd = torch.version.hip is not None
    return is_amd or _capability(device) >= (8, 0)


def _torch_allows(kind: str) -> bool:
    """Whether the user lets torch attend by kernels of a kind."""
    return bool(getattr(torch.backends.cuda, f"{kind}_sdp_enabled")())
