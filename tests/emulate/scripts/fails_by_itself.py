"""A program that fails on rank 1 without any help."""

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("no data for this rank")
dist.barrier()
