"""The benchmark of attention measures, adds to what is there, and draws memory over lengths."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.attention import Case, main, summary, table, write
from benchmarks.attention_memory import measured, plot
from benchmarks.lines import line_chart

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "x86-64-2-threads"


def test_a_run_writes_its_results(tmp_path: Path) -> None:
    given = ["--lengths", "4x9", "--depths", "8", "--types", "float32", "--rounds", "2"]
    main([*given, "--threads", "1", "--results", str(tmp_path)])
    results = json.loads((tmp_path / "attention.json").read_text())
    assert list(results) == [
        "float32 64x4x9x8", "float32 64x4x9x8 and gradients",
        "float32 64x4x9x8 causal", "float32 64x4x9x8 causal and gradients",
    ]  # fmt: skip
    assert list(results["float32 64x4x9x8 causal"]) == ["lynx ms", "sdpa", "dense mask", "eager"]
    assert "float32 64x4x9x8 causal and gradients |" in (tmp_path / "attention.md").read_text()


def test_results_are_added_to_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, {"a": {"lynx ms": 1.0, "sdpa": 2.0}}, "a machine")
    write(tmp_path, {"a": {"lynx ms": 3.0, "inductor": 4.0}, "b": {"lynx ms": 5.0}}, "a machine")
    results = json.loads((tmp_path / "attention.json").read_text())
    assert results == {"a": {"lynx ms": 3.0, "sdpa": 2.0, "inductor": 4.0}, "b": {"lynx ms": 5.0}}


def test_ratios_are_medians_over_rounds() -> None:
    assert summary({"lynx": [1.0, 2.0, 1.0], "sdpa": [2.0, 2.0, 3.0]}) == {
        "lynx ms": 1000.0, "sdpa": 2.0,
    }  # fmt: skip


def test_labels() -> None:
    case = Case(1024, 1024, 64, "float32", True, True)
    assert case.label == "float32 8x1024x64 causal and gradients"
    assert Case(8, 300, 64, "bfloat16", False, False).label == "bfloat16 64x8x300x64"


def test_the_page_is_that_of_the_numbers() -> None:
    results = json.loads((RESULTS / "attention.json").read_text())
    page = (RESULTS / "attention.md").read_text()
    assert page == table(results, page.splitlines()[2])


def test_memory_of_a_way_is_measured_in_a_process() -> None:
    peaks = measured(["sdpa"], [128, 1024])
    # What a step needs at least: seven tensors of 8 heads of 64.
    assert peaks["sdpa"]["1024"] > 7 * 8 * 1024 * 64 * 4 > peaks["sdpa"]["128"]


def test_memory_is_drawn(tmp_path: Path) -> None:
    numbers = json.loads((RESULTS / "attention-memory.json").read_text())["bytes"]
    assert (RESULTS / "attention-memory.svg").read_text() == plot(numbers)
    peaks = {int(length): nbytes for length, nbytes in numbers["lynx"].items()}
    assert peaks[8192] < 2.6 * peaks[4096] < 2.6 * 2.6 * peaks[2048]


def test_a_line_chart_is_well_formed() -> None:
    text = line_chart({"a": [(1, 2.0), (4, 8.0)], "b": [(1, 3.0)]}, "title & more", "x", "y")
    root = ElementTree.fromstring(text)
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [line.get("points") for line in lines] == ["70.0,384.0 530.0,64.0", "70.0,290.4"]
