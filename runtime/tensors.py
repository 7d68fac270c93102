"""What generated programs call to lay tensors into memory, and to keep the contract of outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .torch_internals import storage_use_count


class Memory:
    """Bytes of a device, with a tensor of each element type at their start once that is needed."""

    __slots__ = ("_bases", "size", "start", "storage")

    def __init__(self, size: int, device: str) -> None:
        with torch.inference_mode(False):  # whatever mode the caller is in, write them later
            tensor = torch.empty(size, dtype=torch.uint8, device=device)
        self.size = size
        self.storage = tensor.untyped_storage()
        self.start = self.storage.data_ptr()
        self._bases: dict[torch.dtype, torch.Tensor] = {}

    def base(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the empty tensor of a type at the start, of which `reinterpreted` makes others."""
        base = self._bases.get(dtype)
        if base is None:
            with torch.inference_mode(False), torch.no_grad():
                empty = torch.empty(0, dtype=dtype, device=self.storage.device)
                base = self._bases[dtype] = empty.set_(self.storage, 0, (0,), (1,))
        return base

    @property
    def is_idle(self) -> bool:
        """Whether no tensor that was made here is alive."""
        return storage_use_count(self.storage) == 1 + len(self._bases)


def flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor if its memory holds its elements in row-major order, else a copy.

    A tensor that is only marked as negated or conjugated holds others, and some operators return
    another type than their fake form promised.
    """
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


class OutOfRangeError(IndexError, RuntimeError):
    """An index is out of range; operators of torch raise the one or the other."""


def raise_failure(messages: tuple[str, ...], error: int) -> None:
    """Raise what the check of a native segment found; `error` counts from 1."""
    raise OutOfRangeError(messages[error - 1])


def restrided(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor if it has these strides, otherwise one that has, copied if need be."""
    if tensor.stride() == strides:
        return tensor
    if _same_places(tensor, strides):
        return tensor.as_strided(tensor.shape, strides, tensor.storage_offset()).data
    return copied(tensor, strides)


def _same_places(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the strides differ only where that moves no element."""
    if tensor.numel() == 0:
        return True
    triples = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or given == wanted for size, given, wanted in triples)


def copied(tensor: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return a copy in memory of its own, with these strides if they are given."""
    if strides is None:
        return tensor.clone()
    if not _overlaps(tensor.shape, strides):
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor)
    once = tensor
    for dim, (size, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        if stride == 0 and size > 1:
            once = once.narrow(dim, 0, 1)
    if _overlaps(once.shape, strides):
        return tensor.contiguous().clone()  # windows: no layout of this kind can be written
    copy = torch.empty_strided(once.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(once).as_strided(tensor.shape, strides).data


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may lie in one place: sorted, each stride must span the one below."""
    if 0 in shape:
        return False
    reach = 0
    pairs = sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1)
    for stride, size in pairs:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def unshared(
    tensor: torch.Tensor, strides: tuple[int, ...] | None, others: Sequence[object]
) -> torch.Tensor:
    """Return the tensor, copied if it lies in the memory of another; with strides, if given.

    Among the others may be what is no tensor: a result that torch left out, a generator's state.
    """
    if tensor.layout is torch.strided:
        memory = tensor.untyped_storage().data_ptr()
        for other in others:
            if not isinstance(other, torch.Tensor) or other.layout is not torch.strided:
                continue
            if other.untyped_storage().data_ptr() == memory:
                return copied(tensor, strides)
    return tensor if strides is None else restrided(tensor, strides)
