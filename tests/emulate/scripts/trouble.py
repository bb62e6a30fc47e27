"""Scripts that go wrong in the way their first argument says."""

import os
import sys
import time

import torch
import torch.distributed as dist

what = sys.argv[1]
if what == "silent":
    sys.exit(0)
dist.init_process_group("gloo")
if what == "rejects" and dist.get_world_size() != 6:
    raise ValueError("this job needs 6 ranks")
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(8):
    if what == "crash" and step == 2:
        raise KeyError("learning_rate")
    if what == "early" and step == 2:
        sys.exit(3)
    if what == "hang" and step == 1:
        time.sleep(600)
    if what == "unknown":
        dist.recv(torch.zeros(4))
    if what == "spawn":
        torch.multiprocessing.spawn(print, nprocs=2)
    if what == "fork" and step == 1:
        child = os.fork()
        if child == 0:
            dist.barrier()
        os.waitpid(child, 0)
    if what == "extra" and dist.get_rank() == 0:
        dist.barrier()
    if what == "order" and step % 2:
        dist.broadcast(torch.ones(2000), 0)
    (weight * 2).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
