"""Check the kernels of segments before a back end compiles them."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import InternalError, LynxError
from .kernel import Kernel
from .kernel_verifier import verify_kernel
from .native import KernelCall, NativeFunction, Segment, SegmentCompiler


class InvalidKernelError(InternalError):
    """Kernels break an invariant; `kernels` are those."""

    def __init__(self, kernels: tuple[Kernel, ...], first: LynxError) -> None:
        super().__init__("invalid-kernel", str(first))
        self.kernels = kernels


def verified(compiler: SegmentCompiler) -> SegmentCompiler:
    """Return a segment compiler that raises `InvalidKernelError` instead of compiling nonsense.

    Each kernel is looked at once, however often it is called.
    """
    sound: set[Kernel] = set()

    def compile_verified(segments: tuple[Segment, ...]) -> tuple[NativeFunction, ...]:
        faults: dict[Kernel, LynxError] = {}
        for kernel in _kernels(segments):
            if kernel in sound:
                continue
            try:
                verify_kernel(kernel)
            except LynxError as error:
                faults[kernel] = error
            else:
                sound.add(kernel)
        if faults:
            raise InvalidKernelError(tuple(faults), next(iter(faults.values())))
        return compiler(segments)

    return compile_verified


def _kernels(segments: Iterable[Segment]) -> dict[Kernel, None]:
    calls = (call for segment in segments for call in segment.calls)
    return dict.fromkeys(call.kernel for call in calls if isinstance(call, KernelCall))
