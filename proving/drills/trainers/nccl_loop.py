"""DDP over NCCL with several ranks on one GPU; rank 1 meets a fault at step 60, once."""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{RANK}"  # or NCCL refuses two ranks on one GPU
os.environ["NCCL_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from prism.recover.checkpoint import CheckpointConfig, TrainingLoop  # noqa: E402

FAULT = sys.argv[1]


def meet_fault(step: int) -> None:
    fired = Path("fired")
    if FAULT == "none" or RANK != 1 or step != 60 or fired.exists():
        return
    fired.write_text(str(time.time()))
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while FAULT == "spin":
        pass
    time.sleep(1e6)


torch.cuda.set_device(0)
torch.use_deterministic_algorithms(True)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.AdamW(model.parameters())
config = CheckpointConfig(folder=Path("checkpoints"), interval_steps=20)
training = TrainingLoop(Path("checkpoints"), model, optimizer, config=config)
for step in training.steps(120):
    generator = torch.Generator().manual_seed(training.batch * 1000 + RANK)
    data = torch.randn(16, 256, generator=generator).cuda()
    meet_fault(step)
    loss = (model(data) - data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    training.report(loss=float(loss.detach()))
    time.sleep(0.04)
if RANK == 0:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    Path("result").write_text(digest.hexdigest())
dist.destroy_process_group()
