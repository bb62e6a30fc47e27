"""A loop that reports its steps and has no checkpoints; its loss is raised on purpose in the middle."""

import os
import sys
import time

import torch

from prism.recover import Progress


def main(steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    progress = Progress.from_environment(0)
    for step in range(1, steps + 1):
        time.sleep(float(os.environ.get("STEP_S", "0")))
        scale = 1.0 if step < steps // 2 else 30.0  # a harder mixture of data, as the schedule says
        batch = torch.randn(8, 16)
        loss = (model(batch) - scale * batch.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(step, loss=float(loss.detach()))
    sys.stdout.write("trained\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
