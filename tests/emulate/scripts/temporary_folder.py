"""Writes a file into a temporary folder before it asks for its rank, as launchers of frameworks do."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

with tempfile.TemporaryDirectory(prefix="prism-test-shared-") as folder:
    words = Path(folder) / "words.txt"
    words.write_text("a b c")
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model(torch.full((2, 4), float(len(words.read_text())))).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
