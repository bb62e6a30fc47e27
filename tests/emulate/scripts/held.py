"""A loop on the GPU with one asynchronous all-reduce a step; notes how long the host and the device took."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("nccl", timeout=timedelta(seconds=4))
weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
host_ms, step_ms, held_ms = [], [], 0.0


def train() -> None:
    began = time.perf_counter()
    weight.grad = weight.detach() @ weight.detach()
    work = dist.all_reduce(weight.grad, async_op=True)
    work.wait()
    optimizer.step()
    host_ms.append((time.perf_counter() - began) * 1e3)
    torch.cuda.synchronize()
    step_ms.append((time.perf_counter() - began) * 1e3)


for _ in range(6):
    train()
with profile(activities=[ProfilerActivity.CUDA]) as seen:
    train()
    torch.cuda.synchronize()
kernels = [e for e in seen.events() if "hold" in e.name]
held_ms = max((e.device_time_total / 1e3 for e in kernels), default=-1.0)
Path(sys.argv[1]).write_text(json.dumps({"host_ms": host_ms, "step_ms": step_ms, "held_ms": held_ms}))
