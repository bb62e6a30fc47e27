"""The text of a small data-parallel trainer over gloo, with a place for a fault and several styles of logging."""

from __future__ import annotations

import hashlib
import textwrap

STEPS, FAULT_STEP = 30, 20
_STYLES = (
    """
def say(message):
    print(message, flush=True)
""",
    """
logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stdout)
say = logging.getLogger("trainer").info
""",
    """
def say(message):
    print(f"[rank{rank}] {datetime.datetime.now():%Y-%m-%d %H:%M:%S} {message}", flush=True)
""",
    """
def say(message):
    print(f"{datetime.datetime.now(datetime.timezone.utc).isoformat()} | INFO | rank {rank} | {message}", flush=True)
""",
)
_TRAINER = """\
import datetime
import logging
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
{style}
{head}

def build():
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))


def train():
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    say(f"starting on {{world}} ranks with torch {{torch.__version__}}")
{setup}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout_s}))
    model = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, {steps} + 1):
        batch = torch.randn(4, 32)
{at}
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"step {{step}}/{steps} loss {{loss.item():.4f}} lr 1.0e-03")
    del model, optimizer
    dist.destroy_process_group()
    say("training finished")


if __name__ == "__main__":
    train()
"""


def trainer(
    name: str, *, head: str = "", setup: str = "", at: str = "", rank: int | None = 1, timeout_s: float = 12
) -> str:
    """The program of a way: `at` runs at one step in the faulty rank, or in every rank if that is None."""
    where = "" if rank is None else f" and rank == {rank}"
    fault = f"        if step == {FAULT_STEP}{where}:\n" + _indented(at, 12) if at else ""
    return _TRAINER.format(style=_STYLES[hashlib.sha256(name.encode()).digest()[1] % len(_STYLES)], steps=STEPS,
                           head=textwrap.dedent(head), setup=_indented(setup, 4), at=fault,
                           timeout_s=timeout_s)  # fmt: skip


def _indented(text: str, spaces: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * spaces)
