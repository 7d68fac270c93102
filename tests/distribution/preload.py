"""What processes of tests need, imported once before they are forked."""

import os
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
# Ranks share what they compile, of this version alone.
os.environ["LYNX_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "lynx-tests-of-doors")

import torch._dynamo
import torch._inductor.config
import torch.distributed.checkpoint
import torch.distributed.tensor

import lynx.backend

torch.set_num_threads(1)

__all__ = ["lynx"]
