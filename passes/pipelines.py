"""The named pipelines, one pass a line."""

from __future__ import annotations

from .accumulate_writes import AccumulateWrites
from .attention import ChooseAttention
from .canonicalize import Canonicalize
from .cse import MergeCommonSubexpressions
from .dce import RemoveDeadCode
from .decompose import Decompose
from .distribution.buckets import BucketCollectives
from .distribution.overlap import ScheduleOverlap
from .distribution.prefetch import PrefetchGathers
from .distribution.split import SplitCollectives
from .distribution.start_buckets import StartBuckets
from .expand_products import ExpandProducts
from .fold_constants import FoldConstants
from .fuse import Fuse
from .fuse_products import FuseProducts
from .layout_convolutions import LayoutConvolutions
from .lower import Lower
from .mark_writes import MarkWrites
from .offsets import DEFAULT_BUDGET
from .pipeline import NAMED_PIPELINES, Pipeline
from .plan_memory import PlanMemory
from .reinplace import Reinplace
from .share_heads import ShareHeads
from .widen_products import WidenProducts

DEFAULT = Pipeline(
    (
        StartBuckets(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        FoldConstants(),
        # Literals make rules apply, and equal ones merge.
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        # Late on the graph: whole ops are what rules and people read best.
        ChooseAttention(),
        Decompose(),
        LayoutConvolutions(),
        ExpandProducts(),
        WidenProducts(),
        ShareHeads(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        AccumulateWrites(),
        RemoveDeadCode(),
        MarkWrites(),
        Fuse(),
        SplitCollectives(),
        ScheduleOverlap(),
        Lower(),
        Reinplace(),
        PlanMemory(),
    )
)

# Every op that is computed ahead saves its overhead in each call, so larger constants are kept.
REDUCE_OVERHEAD = Pipeline(
    (
        StartBuckets(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        FoldConstants(max_bytes=1 << 20),
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        ChooseAttention(),
        Decompose(),
        LayoutConvolutions(),
        ExpandProducts(),
        WidenProducts(),
        ShareHeads(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        AccumulateWrites(),
        RemoveDeadCode(),
        MarkWrites(),
        Fuse(),
        SplitCollectives(),
        ScheduleOverlap(),
        Lower(),
        Reinplace(),
        PlanMemory(),
    )
)

# Compile time does not count: large constants, products to be measured against the library, and a
# longer search for a tight packing.
MAX_AUTOTUNE = Pipeline(
    (
        StartBuckets(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        FoldConstants(max_bytes=1 << 24),
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        ChooseAttention(),
        Decompose(),
        LayoutConvolutions(),
        ExpandProducts(),
        WidenProducts(),
        ShareHeads(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        AccumulateWrites(),
        RemoveDeadCode(),
        MarkWrites(),
        Fuse(),
        FuseProducts(),
        SplitCollectives(),
        ScheduleOverlap(),
        Lower(),
        Reinplace(),
        PlanMemory(budget=10 * DEFAULT_BUDGET),
    )
)

# The same passes: the difference is in how the finished program is launched on a GPU.
MAX_AUTOTUNE_NO_CUDAGRAPHS = MAX_AUTOTUNE

# Each op of the model stays recognisable, and no memory is used twice by writing in place.
DEBUG = Pipeline(
    (
        RemoveDeadCode(),
        Decompose(),
        Lower(),
        PlanMemory(),
    )
)

# Collectives change their order too: for where that is compared among ranks before a step.
OVERLAP = Pipeline(
    (
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        FoldConstants(),
        # Literals make rules apply, and equal ones merge.
        Canonicalize(),
        MergeCommonSubexpressions(),
        RemoveDeadCode(),
        # Late on the graph: whole ops are what rules and people read best.
        ChooseAttention(),
        Decompose(),
        LayoutConvolutions(),
        ExpandProducts(),
        WidenProducts(),
        ShareHeads(),
        Canonicalize(),
        MergeCommonSubexpressions(),
        AccumulateWrites(),
        RemoveDeadCode(),
        MarkWrites(),
        Fuse(),
        SplitCollectives(),
        BucketCollectives(),
        PrefetchGathers(),
        ScheduleOverlap(),
        Lower(),
        Reinplace(),
        PlanMemory(),
    )
)

NAMED_PIPELINES |= {
    "default": DEFAULT,
    "reduce-overhead": REDUCE_OVERHEAD,
    "max-autotune": MAX_AUTOTUNE,
    "max-autotune-no-cudagraphs": MAX_AUTOTUNE_NO_CUDAGRAPHS,
    "overlap": OVERLAP,
    "debug": DEBUG,
}
