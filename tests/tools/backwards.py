"""Generated programs that run what is not ordered by barriers backwards.

Steps between two barriers, and the chunks of a step, may run in any order. Where a barrier is
missing, a run that takes them from the last to the first gives other numbers, every time; a race of
threads does so only now and then. As a plugin (`pytest -p tests.tools.backwards`) it changes all
that the tests compile.
"""

from __future__ import annotations

from lynx.backends.c import prelude, segment

_FORWARDS = """\
  for (i64 k = 0; k < count; ++k)
    for (i64 chunk = 0; chunk < steps[k].chunks; ++chunk) steps[k].run(&steps[k], chunk, local);
"""

_BACKWARDS = """\
  for (i64 first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && !steps[end].barrier; ) ++end;
    for (i64 k = end - 1; k >= first; --k)
      for (i64 chunk = steps[k].chunks; chunk-- > 0; ) steps[k].run(&steps[k], chunk, local);
  }
"""

_THREADS = "int threads = work < PARALLEL_WORK || most < 2 ? 1 : lynx_threads();"


def backwards() -> str:
    """Return the text of the runtime that runs backwards on one thread."""
    text = prelude.RUNTIME
    for old, new in ((_FORWARDS, _BACKWARDS), (_THREADS, "int threads = 1;")):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def pytest_configure() -> None:
    """Make all that is compiled run backwards."""
    segment.RUNTIME = backwards()
