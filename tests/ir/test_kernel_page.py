"""The page about kernels says what is so."""

from __future__ import annotations

import re

import pytest

from lynx.ir import parse_kernel, print_kernel, verify_kernel
from tests.tools.kernel_page import PAGE, updated

TEXT = PAGE.read_text(encoding="utf-8")
INSTRUCTIONS = re.findall(r"^\| `([^`]+)` \| [A-Z]", TEXT, re.MULTILINE)
GIVEN = {
    "load %x[i] :": "", "constant": "", "position": "",
    "if %0 else": "%0 = constant true : bool",
    "add %0": "%0 = load %x[i] : f32\n%1 = load %x[i] : f32",
    "convert": "%0 = load %x[i] : f32",
    "argmax": "%0 = load %x[i] : f32",
    "%y[i] %0": "%0 = load %x[i] : f32\n%1 = constant true : bool",
    "store last": "%0 = position [i] : i64\n%1 = load %x[i] : f32",
    "store add": "%0 = position [i] : i64\n%1 = load %x[i] : f32",
    "check": "%0 = constant true : bool",
}  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_page_is_up_to_date() -> None:
    assert updated(TEXT) == TEXT, "run python -m tests.tools.kernel_page"


def test_example_is_valid_and_used() -> None:
    (text,) = blocks("lynx")
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    assert print_kernel(kernel) == text.replace("s0*256", "256*s0")
    (code,) = blocks("python")
    exec(code, {})


def test_the_table_has_all_instructions() -> None:
    assert len(INSTRUCTIONS) == 12


@pytest.mark.parametrize("line", INSTRUCTIONS)
def test_instructions_of_the_table(line: str) -> None:
    before = next(text for part, text in GIVEN.items() if part in line)
    head = "kernel k(%x: f32[16], %y: f32[16] write) over i: 4, j: 4"
    verify_kernel(parse_kernel(f"{head} {{\n{before}\n{line}\n}}"))
