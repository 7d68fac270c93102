"""The collector of `.lynx` files: it fails where it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LynxTestError, run_file

FILE = Path("sample.lynx")
GRAPH = "graph @g(%a: f32[4]) {\n  %0 = exp %a : f32[4]\n  return %0\n}\n"
DEAD = "%1 = neg %0 : f32[4] return"
WRONG = GRAPH.replace("exp %a", "exp %b")


def run(text: str) -> str:
    return "\n".join(run_file(FILE, text))


@pytest.mark.parametrize(
    "text",
    [
        f"// RUN: parse\n{GRAPH}",
        f"// RUN: verify\n// CHECK: exp %a : f32[4]\n{GRAPH}{GRAPH}",
        f"// RUN: cse,dce\n// CHECK-NOT: neg\n{GRAPH.replace('return', DEAD)}",
        "// RUN: parse\n" + WRONG.replace("[4]\n", "[4]  // ERROR(unknown-value): '%b'\n"),
        "// RUN: verify\n" + GRAPH.replace("f32[4])", "f32[s0])").replace("f32[4]\n", "f32[s0]\n")
        .replace(") {", ") {  // ERROR(undeclared-symbol): mentions s0"),
        "// RUN: parse\n// CHECK: loc(\"m.py\":3)\n" + GRAPH.replace("]\n", "]  loc(\"m.py\":3)\n"),
    ],
)  # fmt: skip
def test_holds(text: str) -> None:
    assert run(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GRAPH, "expected '// RUN: pipeline'"),
        (f"// RUN: parse\n{WRONG}", "error[unknown-value]"),
        (f"// RUN: parse\n// CHECK: neg\n{GRAPH}", 'Couldn\'t match "neg"'),
        (f"// RUN: parse\n// CHECK-NOT: exp\n{GRAPH}", "excluded string found"),
        ("// RUN: parse\n" + GRAPH.replace("}", "}  // ERROR(some-code): text"), "got none"),
        (
            "// RUN: parse\n" + WRONG.replace("%0\n}", "%0  // ERROR(unknown-value): '%b'\n}"),
            "sample.lynx:4: expected error[unknown-value]",
        ),
        (
            "// RUN: parse\n"
            + WRONG.replace("[4]\n  ret", "[4]  // ERROR(unknown-op): '%b'\n  ret"),
            "expected error[unknown-op]: '%b', got",
        ),
        (f"// RUN: no-such-pass\n{GRAPH}", "error[unknown-pass]"),
    ],
)
def test_reports(text: str, problem: str) -> None:
    assert problem in run(text)


def test_an_unreadable_print_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conftest.show", lambda graph, **_: GRAPH.replace("exp", "neg"))
    with pytest.raises(LynxTestError, match="reads back differently"):
        run(f"// RUN: parse\n{GRAPH}")
