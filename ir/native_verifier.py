"""Check kernels before a back end compiles them."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import InternalError, LynxError
from .kernel import Kernel
from .kernel_verifier import verify_kernel
from .native import (
    Launch,
    Launcher,
    LaunchRequest,
    NativeFunction,
    Segment,
    SegmentCompiler,
    kernels_in,
)


class InvalidKernelError(InternalError):
    """Kernels break an invariant; `kernels` are those."""

    def __init__(self, kernels: tuple[Kernel, ...], first: LynxError) -> None:
        super().__init__("invalid-kernel", str(first))
        self.kernels = kernels


class KernelChecker:
    """Looks at each kernel once, however often it is called."""

    def __init__(self) -> None:
        self._sound: set[Kernel] = set()

    def check(self, kernels: Iterable[Kernel]) -> None:
        """Raise `InvalidKernelError` if a kernel breaks an invariant."""
        faults: dict[Kernel, LynxError] = {}
        for kernel in dict.fromkeys(kernels):
            if kernel in self._sound:
                continue
            try:
                verify_kernel(kernel)
            except LynxError as error:
                faults[kernel] = error
            else:
                self._sound.add(kernel)
        if faults:
            raise InvalidKernelError(tuple(faults), next(iter(faults.values())))


def verified(compiler: SegmentCompiler) -> SegmentCompiler:
    """Return a segment compiler that raises `InvalidKernelError` instead of compiling nonsense."""
    checker = KernelChecker()

    def compile_verified(segments: tuple[Segment, ...]) -> tuple[NativeFunction, ...]:
        calls = (call for segment in segments for call in segment.calls)
        checker.check(kernel for call in calls for kernel in kernels_in(call))
        return compiler(segments)

    return compile_verified


def verified_launcher(launcher: Launcher) -> Launcher:
    """Return a launcher that raises `InvalidKernelError` instead of compiling nonsense."""
    checker = KernelChecker()

    def compile_verified(requests: tuple[LaunchRequest, ...]) -> tuple[Launch, ...]:
        checker.check(kernel for request in requests for kernel in request.kernels)
        return launcher.compile(requests)

    return Launcher(launcher.device, compile_verified)
