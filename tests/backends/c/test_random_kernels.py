"""Random kernels give what the interpreter gives."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backends.c.running import compiled
from tests.tools.kernels import KernelCase, compare, kernel_cases


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(kernel_cases(), min_size=8, max_size=8))
def test_random_kernels(cases: list[KernelCase]) -> None:
    runners = compiled([case.kernel for case in cases])
    for case, runner in zip(cases, runners, strict=True):
        compare(case, lambda _, buffers, symbols, runner=runner: runner(buffers, symbols))
