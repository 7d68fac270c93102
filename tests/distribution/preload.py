"""What processes of tests need, imported once before they are forked."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["LYNX_CACHE"] = "0"

import torch._dynamo
import torch._inductor.config
import torch.distributed.checkpoint
import torch.distributed.tensor

import lynx.backend

torch.set_num_threads(1)

__all__ = ["lynx"]
