"""torch.distributed.pipelining: looped breadth-first schedule, two chunks a rank, an evaluation pass every four steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleLoopedBFS

WIDTH, MICRO, CHUNKS = 24, 4, 2


def pipeline_groups(size):
    """One pipeline per `size` neighbouring ranks, and one group per place in the pipeline."""
    world, rank = dist.get_world_size(), dist.get_rank()
    pipes = [dist.new_group(list(range(i, i + size))) for i in range(0, world, size)]
    places = [dist.new_group(list(range(i, world, size))) for i in range(size)]
    return pipes[rank // size], places[rank % size], rank % size


def main():
    dist.init_process_group("gloo")
    size = 4 if dist.get_world_size() % 4 == 0 else 2
    pipe, replicas, place = pipeline_groups(size)
    modules = [
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(CHUNKS)
    ]
    stages = [
        PipelineStage(m, place + c * size, size * CHUNKS, torch.device("cpu"), group=pipe)
        for c, m in enumerate(modules)
    ]
    schedule = ScheduleLoopedBFS(stages, n_microbatches=MICRO, loss_fn=nn.MSELoss())
    params = [p for m in modules for p in m.parameters()]
    opt = torch.optim.SGD(params, lr=0.02)
    for step in range(12):
        inputs = (torch.randn(8, WIDTH),) if place == 0 else ()
        target = torch.zeros(8, WIDTH) if place == size - 1 else None
        losses = [] if place == size - 1 else None
        schedule.step(*inputs, target=target, losses=losses)
        for p in params:
            dist.all_reduce(p.grad, group=replicas)
        opt.step()
        opt.zero_grad()
        if step % 4 == 3:
            value = torch.stack(losses).mean() if losses else torch.zeros(())
            dist.broadcast(value, group=pipe, group_src=size - 1)
            if dist.get_rank() == 0:
                print(step, value.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
