"""A loop of torch.distributed alone: a wait for a kernel, then one sum of all gradients, a few times, and a norm."""

import os

import torch
import torch.distributed as dist
from parts import FORWARD_S, Truth, run_kernels

dist.init_process_group("gloo")
torch.set_num_threads(1)
buckets = [torch.ones(int(os.environ.get("BUCKET", "200000"))) for _ in range(int(os.environ.get("BUCKETS", "3")))]
norm = torch.zeros(1)
truth = Truth()
for _ in range(int(os.environ["STEPS"])):
    truth.begin()
    for bucket in buckets:
        run_kernels(3 * FORWARD_S)
        dist.all_reduce(bucket)
    dist.all_reduce(norm)
    truth.end()
dist.barrier()
os._exit(0)
