"""Communication: what one device does with its own parts where the program has a collective.

These ops belong to the program of one device. Their types are local and have no sharding; the
other devices of the group, those that differ along `axes` alone, run the same op at the same time.
A program keeps all of them in their order, used or not: another device may need what it is sent.
"""

from __future__ import annotations

from dataclasses import field

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.sharding import REDUCTIONS
from lynx.ir.types import TensorType


class Communication(Op):
    """Base of communication ops: `axes` are the mesh axes along which devices take part.

    Members of a group are counted in row-major order of their coordinates along `axes`; `index` is
    the device's own number. `sizes` are the lengths of all members' pieces along a dimension.
    `site` is the number of the communication in the program of the mesh, -1 if there is none: all
    devices have the same. So have they the `bucket` in which it travels, -1 if alone.
    """

    x: Value
    axes: tuple[str, ...]
    site: int = field(default=-1, kw_only=True)
    bucket: int = field(default=-1, kw_only=True)

    @property
    def is_removable(self) -> bool:
        """Never: other devices wait for this one."""
        return False

    def _check_axes(self) -> TensorType:
        if not self.axes:
            raise self.error("no-axes", "names no axis of the mesh")
        return self.x.tensor_type

    def _check_reduction(self, reduction: str) -> None:
        if reduction not in REDUCTIONS:
            known = ", ".join(REDUCTIONS)
            raise self.error("unknown-reduction", f"combines by '{reduction}', expected {known}")

    def _check_piece(
        self, shape: tuple[Dim, ...], dim: int, size: Dim, sizes: tuple[int, ...], index: int
    ) -> None:
        """Raise unless dimension `dim` exists and has the length `size`."""
        if not 0 <= dim < len(shape):
            raise self.error("bad-dim", f"has no dimension {dim}, the rank is {len(shape)}")
        if not 0 <= index < len(sizes) or min(sizes) < 0:
            raise self.error("bad-sizes", f"has number {index} of pieces of {list(sizes)}")
        if shape[dim] != size:
            message = f"has {shape[dim]} along dimension {dim}, expected {size} of {list(sizes)}"
            raise self.error("bad-sizes", message)


def _replaced(shape: tuple[Dim, ...], dim: int, size: int) -> tuple[Dim, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


class LocalAllReduce(Communication, name="local_all_reduce"):
    """Combine the tensors of all members element by element; each gets the result.

    %y = local_all_reduce %x {axes = ["tp"], reduction = "sum"} : f32[4, 8]
    """

    reduction: str = "sum"

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self._check_axes()
        self._check_reduction(self.reduction)
        return x.with_shape(x.shape)


class LocalAllGather(Communication, name="local_all_gather"):
    """Put the pieces of all members one after the other along a dimension.

    %y = local_all_gather %x {axes = ["tp"], dim = 0, sizes = [3, 2], index = 0} : f32[5, 8]
    """

    dim: int
    sizes: tuple[int, ...]
    index: int

    def infer(self) -> TensorType:
        """Return the type of the whole."""
        x = self._check_axes()
        size = self.sizes[self.index] if 0 <= self.index < len(self.sizes) else 0
        self._check_piece(x.shape, self.dim, size, self.sizes, self.index)
        return x.with_shape(_replaced(x.shape, self.dim, sum(self.sizes)))


class LocalReduceScatter(Communication, name="local_reduce_scatter"):
    """Combine the tensors of all members; each gets its piece of the result along a dimension.

        %y = local_reduce_scatter %x {axes = ["tp"], dim = 0, sizes = [3, 2], index = 0} : f32[3, 8]

    `reduction` says how elements are combined.
    """

    dim: int
    sizes: tuple[int, ...]
    index: int
    reduction: str = "sum"

    def infer(self) -> TensorType:
        """Return the type of the piece."""
        x = self._check_axes()
        self._check_reduction(self.reduction)
        self._check_piece(x.shape, self.dim, sum(self.sizes), self.sizes, self.index)
        return x.with_shape(_replaced(x.shape, self.dim, self.sizes[self.index]))


class LocalAllToAll(Communication, name="local_all_to_all"):
    """Send each member its piece along `target`; put those received together along `source`.

        %y = local_all_to_all %x
          {axes = ["t"], source = 0, target = 1, source_sizes = [3], target_sizes = [4]} : f32[3, 4]

    Before, the members hold pieces of `source_sizes` along `source` and all of `target`.
    """

    source: int
    target: int
    source_sizes: tuple[int, ...]
    target_sizes: tuple[int, ...]
    index: int

    def infer(self) -> TensorType:
        """Return the type with the other dimension cut."""
        x = self._check_axes()
        index, sizes = self.index, self.source_sizes
        if self.source == self.target or len(sizes) != len(self.target_sizes):
            raise self.error("bad-dim", "needs two dimensions, cut among the same members")
        size = sizes[index] if 0 <= index < len(sizes) else 0
        self._check_piece(x.shape, self.source, size, sizes, index)
        total = sum(self.target_sizes)
        self._check_piece(x.shape, self.target, total, self.target_sizes, index)
        shape = _replaced(x.shape, self.source, sum(sizes))
        return x.with_shape(_replaced(shape, self.target, self.target_sizes[index]))
