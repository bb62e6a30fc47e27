"""Distillation: the last rank of every four runs a frozen teacher and serves logits to the three students before it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TEAM, FEATURES, CLASSES, BATCH = 4, 20, 5, 8


def teach(students, rounds):
    torch.manual_seed(99)
    teacher = nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )
    for p in teacher.parameters():
        p.requires_grad_(False)
    for _ in range(rounds):
        questions = []
        for s in students:
            x = torch.empty(BATCH, FEATURES)
            dist.recv(x, src=s)
            questions.append(x)
        for s, answer in zip(students, teacher(torch.cat(questions)).split(BATCH), strict=True):
            dist.send(answer.contiguous(), dst=s)


def learn(teacher, group, rounds):
    torch.manual_seed(0)
    student = DDP(nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, CLASSES)), process_group=group)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for _ in range(rounds):
        x, target = torch.randn(BATCH, FEATURES), torch.empty(BATCH, CLASSES)
        dist.send(x, dst=teacher)
        logits = student(x)
        dist.recv(target, src=teacher)
        loss = nn.functional.kl_div(logits.log_softmax(-1), target.softmax(-1), reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    teachers = [r for r in range(world) if r % TEAM == TEAM - 1]
    students = dist.new_group([r for r in range(world) if r not in teachers])
    if rank in teachers:
        teach(list(range(rank - TEAM + 1, rank)), rounds=12)
    else:
        learn(rank // TEAM * TEAM + TEAM - 1, students, rounds=12)
    dist.barrier()
    dist.destroy_process_group()
