"""A DDP loop whose loss falls, with faults of its own at the steps that PLAN names; the last rank writes what came out.

Saves by itself (`own`: torch.save by rank 0) or with Prism's TrainingLoop (`loop`); both resume under any launcher.
PLAN is JSON: {"steps": 120, "save_every": 40, "faults": [{"step": 75, "rank": 1, "kind": "SIGKILL"}]}. Each fault
happens once: its mark is made before it.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

kind, plan = sys.argv[1], json.loads(Path("plan.json").read_text())
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
words = 512
successors = torch.randint(0, words, (words, 2), generator=torch.Generator().manual_seed(7))
net = nn.Sequential(nn.Embedding(words, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, words))
# Without this DDP rebuilds its buckets after the first step of every attempt. That moves parameters between the chunks
# of a ring, and with more than two ranks the order of sums and so the last bits change with every restart.
model = DDP(net, find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def read_batch(number: int) -> torch.Tensor:
    """The batch of this rank: text of a grammar that is learned, so that the loss falls from 6 to 1."""
    generator = torch.Generator().manual_seed(number * 1_000 + rank)
    tokens = [torch.randint(0, words, (16,), generator=generator)]
    for _ in range(16):
        tokens.append(successors[tokens[-1], torch.randint(0, 2, (16,), generator=generator)])
    return torch.stack(tokens, 1)


def train(number: int) -> float:
    """One step."""
    tokens = read_batch(number)
    loss = F.cross_entropy(model(tokens[:, :-1]).reshape(-1, words), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    time.sleep(0.02)
    return loss.item()


def meet_faults(step: int) -> None:
    """What the plan has for this step and rank, unless it happened before."""
    for number, fault in enumerate(plan["faults"]):
        mark = Path(f"fault-{number}")
        if fault["step"] != step or fault["rank"] != rank or mark.exists():
            continue
        mark.touch()
        if fault["kind"] == "exit":
            os._exit(3)
        if fault["kind"].startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault["kind"]])
            time.sleep(60)
        raise {"TypeError": TypeError, "OSError": OSError, "RuntimeError": RuntimeError}[fault["kind"]]("once")


if kind == "loop":
    from prism.recover.checkpoint import TrainingLoop

    training = TrainingLoop(Path("checkpoints"), model, optimizer)
    for step in training.steps(plan["steps"]):
        loss = train(training.batch)
        training.report(loss=loss)
        meet_faults(step)
else:
    step, saved = 0, Path("saved.pt")
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < plan["steps"]:
        loss = train(step)
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if rank == 0 and step % plan["save_every"] == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, "saved.new")
            Path("saved.new").replace(saved)
        meet_faults(step)
if rank == 0:
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    Path("result").write_text(digest)
dist.barrier()  # all ranks end at the same moment
dist.destroy_process_group()
