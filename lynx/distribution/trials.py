"""Whether an operator may be cut along a factor: results of pieces against those of the whole.

A cut is right if the results for pieces, put together, are the results for the whole tensors. That
is tried on values of many kinds (`trial_values`), in several sizes and partitions, even ones and
uneven ones, down to single rows. Results are compared in double precision, where the operator has
it, and in its own; if it has no other, they must be the same bit for bit. EasyDist (2024) finds its
rules by such trials too.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence

import torch

from .trial_forms import Factor, Form, GivingUpError, Outcome, Tensors
from .trial_values import FLOATS

Partition = Sequence[int]
Cut = tuple[Factor, Partition]
_SIZES = (5, 2, 7, 3, 8)
_FEW = ("ordinary", "definite", "between -1 and 1", "between 0 and 1")
_CONFIRMING = ("ordinary", "definite", "with a large first row")
_TOLERANCES = {
    torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5,
    torch.bfloat16: 3e-2, torch.float16: 5e-3,
}  # fmt: skip


class Said(enum.Enum):
    """What a trial says of a cut: nothing, that it is wrong, or that nothing speaks against it.

    It is telling where results were not all alike.
    """

    NOTHING = "nothing"
    WRONG = "wrong"
    RIGHT = "right"
    TELLING = "telling"


class Trials:
    """Tries an operator in one form; the random numbers are the same in all processes."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.generator = torch.Generator(device="cpu").manual_seed(20)

    @functools.cached_property
    def wide(self) -> Form | None:
        """The form in double precision, None where the operator has none."""
        wide = self.form.wide()
        return None if wide is None or self.shapes(wide) is None else wide

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether results must be the same bit for bit: nothing tells what is only rounding."""
        return self.wide is None and self.form.wide() is not None

    def outcome(
        self, form: Form, kind: str, factor: Factor | None = None
    ) -> tuple[Tensors, Outcome] | None:
        """Return operands and results of a form; None where the operator refuses them."""
        tensors = form.draw(kind, factor, self.generator)
        try:
            return tensors, form.run(tensors)
        except GivingUpError:
            raise
        except Exception:  # whatever an operator says of such operands
            return None

    def shapes(self, form: Form) -> list[tuple[int, ...]] | None:
        """Return the shapes of results; None where the operator takes no such operands."""
        for kind in _FEW:
            found = self.outcome(form, kind)
            if found is not None:
                return [tuple(result.shape) for result in found[1]]
        return None

    def repeats(self) -> bool:
        """Whether the operator gives the same when it runs again."""
        for kind in _FEW:
            found = self.outcome(self.form, kind)
            if found is not None:
                again = self.form.run(found[0])
                return all(map(_is_same, found[1], again))
        return False

    def holds(self, factor: Factor) -> bool:
        """Whether the operator may be cut along a factor."""
        if factor.is_sum and self.is_exact:
            return False  # only in double precision a sum can be told from what is nearly one
        forms = [self.form] if self.wide is None else [self.wide, self.form]
        return all(self._holds_in(form, factor) for form in forms)

    def _holds_in(self, form: Form, factor: Factor) -> bool:
        found: list[Said] = []
        for number, kind in enumerate(FLOATS):
            size = _SIZES[number % len(_SIZES)]
            said = self.trial(form.resized(factor, size), factor, kind, _partitions(size))
            if said is Said.WRONG:
                return False
            found.append(said)
        tried = len(found) - found.count(Said.NOTHING)
        return tried >= len(_FEW) and found.count(Said.TELLING) >= 2

    def confirms(self, own: Form, factor: Factor, size: int) -> bool:
        """Whether the factor may be cut in the sizes that the program has."""
        partitions = list(dict.fromkeys((_even(size, 2), _even(size, 3))))
        said = [self.trial(own, factor, kind, partitions) for kind in _CONFIRMING]
        return Said.WRONG not in said and any(one is not Said.NOTHING for one in said)

    def agree(self, first: tuple[Factor, int], second: tuple[Factor, int]) -> bool:
        """Whether two factors may be cut at once."""
        form = self.form.resized(*first).resized(*second)
        cuts = [(factor, _even(size, 2)) for factor, size in (first, second)]
        for kind in _FEW:
            found = self.outcome(form, kind)
            if found is not None:
                return self._said(form, cuts, *found) is not Said.WRONG
        return False

    def trial(self, form: Form, factor: Factor, kind: str, partitions: Sequence[Partition]) -> Said:
        """Return what values of one kind say of ways to cut a factor."""
        found = self.outcome(form, kind, factor)
        said = Said.NOTHING
        for partition in partitions if found is not None else ():
            assert found is not None
            said = self._said(form, [(factor, partition)], *found)
            if said in (Said.WRONG, Said.NOTHING):
                return said
        return said

    def _said(self, form: Form, cuts: Sequence[Cut], tensors: Tensors, wanted: Outcome) -> Said:
        """Compare what pieces give with the results of the whole; sums of numbers alone tell."""
        if any(factor.is_sum for factor, _ in cuts) and not all(map(_is_finite, wanted)):
            return Said.NOTHING
        try:
            found, sizes = computed(form, tensors, cuts)
        except GivingUpError:
            raise
        except Exception:  # although the whole went well
            return Said.WRONG
        for one, other, dim, size in zip(found, wanted, cuts[0][0].results, sizes, strict=True):
            if not _agrees(one, other, dim, size, self.is_exact):
                return Said.WRONG
        return Said.TELLING if any(map(_tells, wanted)) else Said.RIGHT


def computed(
    form: Form, tensors: Tensors, cuts: Sequence[Cut], numbers: Mapping[str, int] | None = None
) -> tuple[Outcome, list[torch.Tensor | None]]:
    """Return what results of pieces come to, and of sums how large their terms were."""
    if not cuts:
        results = form.run(tensors, numbers)
        return results, [None] * len(results)
    (factor, partition), *rest = cuts
    parts: list[Outcome] = []
    start = 0
    for size in partition:
        given = [
            tensor if dim is None else tensor.narrow(dim, start, size).contiguous()
            for tensor, dim in zip(tensors, factor.operands, strict=True)
        ]
        own = dict(numbers or {}) | dict.fromkeys(factor.places, size)
        parts.append(computed(form, given, rest, own)[0])
        start += size
    joined: list[torch.Tensor] = []
    sizes: list[torch.Tensor | None] = []
    for pieces, dim in zip(zip(*parts, strict=True), factor.results, strict=True):
        if dim is not None:
            joined.append(torch.cat(pieces, dim))
            sizes.append(None)
        else:
            joined.append(torch.stack(pieces).sum(0).to(pieces[0].dtype))
            sizes.append(torch.stack([piece.abs() for piece in pieces]).sum(0))
    return tuple(joined), sizes


def _partitions(size: int) -> list[Partition]:
    """Return ways to cut a dimension, for two and three devices, by rows, and very unevenly."""
    found = [_even(size, 2), _even(size, 3), (1,) * size, (1, size - 1), (size - 1, 1)]
    return list(dict.fromkeys(found))


def _even(size: int, count: int) -> tuple[int, ...]:
    """Return pieces of ceil-division size, those left out that are empty: they run nowhere."""
    part = -(-size // count)
    return tuple(min(part, size - start) for start in range(0, size, part))


def _agrees(
    found: torch.Tensor, wanted: torch.Tensor, dim: int | None, size: torch.Tensor | None,
    exact: bool,
) -> bool:  # fmt: skip
    """Whether a result is right, to within rounding in comparison with its own row."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    tolerance = _TOLERANCES.get(wanted.dtype, 0.0)
    if _is_same(found, wanted):
        return True
    if exact or not tolerance:
        return False
    if wanted.is_complex():
        found, wanted = torch.view_as_real(found), torch.view_as_real(wanted)
    finite = wanted.isfinite()
    if not _is_same(found[~finite], wanted[~finite]):
        return False
    known = torch.where(finite, wanted, 0).double()
    scale = known.abs()
    if dim is not None:
        others = [n for n in range(known.dim()) if n != dim]
        scale = scale.amax(others, keepdim=True) if others and known.numel() else scale
    elif size is not None:
        scale = (size.unsqueeze(-1) if size.dim() < known.dim() else size).double()
    difference = (torch.where(finite, found, 0).double() - known).abs()
    return bool((difference <= tolerance * scale).all())


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _is_finite(x: torch.Tensor) -> bool:
    return bool(x.isfinite().all())


def _tells(x: torch.Tensor) -> bool:
    """Whether elements differ, and most of them are numbers: what is all alike proves nothing."""
    finite = x[x.isfinite()]
    return finite.numel() * 2 > x.numel() and bool((finite != finite.reshape(-1)[0]).any())
