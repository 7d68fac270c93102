"""Every operator that the counted model families use has an import rule.

`tests/data/aten_census.tsv` counts operators over forward and backward graphs of 26 families.
"""

from __future__ import annotations

import operator
from pathlib import Path

import pytest

from lynx.importer import RULES
from lynx.importer.targets import name_of_target
from lynx.ir.errors import CompileError

CENSUS = Path(__file__).parents[1] / "data" / "aten_census.tsv"

NO_TORCH_OPERATORS = {
    "<built-in": "operator.getitem, which picks a result; the importer resolves it",
    "transformers.grouped_mm_fallback.default": "a custom operator; it runs through torch",
    "transformers.grouped_mm_fallback_backward.default": "a custom operator; it runs through torch",
}


def operators() -> list[str]:
    lines = CENSUS.read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[2] for line in lines[1:]]


@pytest.mark.parametrize("name", [name for name in operators() if name not in NO_TORCH_OPERATORS])
def test_has_an_import_rule(name: str) -> None:
    assert name in RULES


def test_exceptions_are_counted_and_have_no_rule() -> None:
    assert set(NO_TORCH_OPERATORS) <= set(operators())
    assert not set(NO_TORCH_OPERATORS) & set(RULES)


def test_functions_without_a_name_are_refused() -> None:
    assert name_of_target(operator.mul) == "python.operator.mul"
    with pytest.raises(CompileError, match="no name to find it by"):
        name_of_target(lambda x: x)
