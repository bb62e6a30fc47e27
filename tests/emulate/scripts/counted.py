"""Two steps of the small GPT among fake peers: what Prism counts beside what torch's own allocator reports."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from prism.emulate.inside import memory

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "gpt"))
import train

memory._ROUND = 1  # the allocator of a CPU hands out what it is asked for
dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
args = train.parse()
counter = memory.StorageCounter()
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, counter:
    config = train.sized(args)
    parts = train.build(args, config, torch.device("cpu"))
    optimizer = torch.optim.AdamW([p for m in parts.modules for p in m.parameters()])
    for _ in range(2):
        train._step(parts, torch.randint(0, config.vocab, (args.batch, config.length)))
        optimizer.step()
        optimizer.zero_grad()
changes = [event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
peak = held = 0
for change in changes:
    held += change
    peak = max(peak, held)
print(json.dumps({"counted": counter.peak, "allocated": peak}))
