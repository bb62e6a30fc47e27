"""DeepSpeed on CPUs: settings, checkpoints, ranks under its own launcher. Needs deepspeed and a C++ compiler."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from dataclasses import dataclass

from launch import PROGRAM, free_port, run_to_file
from way import CannotMake, Place, Way

_HEAD = """import os
import torch, deepspeed
from deepspeed.utils import logger

def model(width=8):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))

SETTINGS = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}}

def engine(net=None, **changes):
    return deepspeed.initialize(model=net or model(), config={**SETTINGS, **changes})[0]

def train(run, steps=12, width=8, at=None):
    for step in range(1, steps + 1):
        if at is not None:
            at(step)
        loss = run(torch.randn(2, width)).pow(2).mean()
        run.backward(loss)
        run.step()
        print(f"step {step}/{steps} loss {loss.item():.4f}", flush=True)
"""
_CUT = """run = engine(); train(run); run.save_checkpoint("saved", tag="last")
path = next(p for p in sorted(__import__("pathlib").Path("saved/last").iterdir()) if "model_states" in p.name)
path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
run.load_checkpoint("saved", tag="last")
"""
_OTHER = """run = engine(); train(run); run.save_checkpoint("s", tag="a")
engine(model(16)).load_checkpoint("s", "a")
"""
_KILLED = """rank = int(os.environ["RANK"])
def at(step):
    if rank == 1 and step == 9:
        os.kill(os.getpid(), 9)
train(engine(), at=at)
"""
_RAISES = """rank = int(os.environ["RANK"])
def at(step):
    if rank == 1 and step == 9:
        {}["labels"]
train(engine(), at=at)
"""
_NAN = """run = engine(); train(run)
for step in range(13, 20):
    loss = run(torch.full((2, 8), float("nan"))).pow(2).mean()
    assert torch.isfinite(loss), f"loss is nan at step {step}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed:
    """A program under DeepSpeed's launcher of one node; all ranks write one log."""

    text: str
    num_ranks: int = 1

    def __call__(self, place: Place) -> None:
        if importlib.util.find_spec("deepspeed") is None:
            raise CannotMake("deepspeed is not installed")
        (place.scratch / PROGRAM).write_text(_HEAD + self.text)
        world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(self.num_ranks))}).encode()).decode()
        command = [
            sys.executable,
            "-m",
            "deepspeed.launcher.launch",
            f"--world_info={world}",
            "--master_addr=127.0.0.1",
        ]
        command += [f"--master_port={free_port()}", PROGRAM]
        run_to_file(command, place, environment={"DS_ACCELERATOR": "cpu"}, limit_s=240.0)


def _way(name: str, reason: str, make: DeepSpeed, proof: str, **truth: object) -> Way:
    return Way(name=name, family="deepspeed", reason=reason, make=make, proof=proof, **truth)  # type: ignore[arg-type]


WAYS = (
    _way("deepspeed-batch-sizes", "AssertionError", DeepSpeed(text="engine(train_batch_size=7)\n"), "train_batch_size",
         also=("ValueError", "RuntimeError")),
    _way("deepspeed-optimizer-unknown", "AttributeError", DeepSpeed(text='engine(optimizer={"type": "Adamish"})\n'),
         "(?i)adamish", also=("AssertionError", "ValueError", "RuntimeError", "KeyError")),
    _way("deepspeed-forward-shape", "RuntimeError", DeepSpeed(text="train(engine(), width=9)\n"), "mat1 and mat2"),
    _way("deepspeed-rank-killed", "NodeFailure", DeepSpeed(text=_KILLED, num_ranks=2), "-9|SIGKILL",
         also=("OutOfMemoryError",), restarts=True, rank=1),
    _way("deepspeed-rank-raises", "KeyError", DeepSpeed(text=_RAISES, num_ranks=2), "KeyError", rank=1),
    _way("deepspeed-checkpoint-cut", "ModelLoadingError", DeepSpeed(text=_CUT), "Traceback", also=("RuntimeError",)),
    _way("deepspeed-no-such-stage", "ValueError", DeepSpeed(text='engine(zero_optimization={"stage": 9})\n'), "stage",
         also=("AssertionError",)),
    _way("deepspeed-model-changed", "ModelLoadingError", DeepSpeed(text=_OTHER), "size mismatch",
         also=("RuntimeError",)),
    _way("deepspeed-loss-nan", "AssertionError", DeepSpeed(text=_NAN), "loss is nan", also=("RuntimeError",),
         restarts=True),
    _way("deepspeed-key-typo", "ValueError", DeepSpeed(text='engine(zero_optimization={"stge": 1})\n'), "stge",
         also=("KeyError", "TypeError")),
    _way("deepspeed-finished", "none", DeepSpeed(text='train(engine()); print("training done")\n'), "training done",
         restarts=None),
)  # fmt: skip
