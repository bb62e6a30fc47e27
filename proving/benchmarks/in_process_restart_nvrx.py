"""One rank of the training of `in_process_restart.py` under NVIDIA's in-process restart; started by that benchmark."""

# ruff: noqa: E402 (the extension reads variables when it is imported, and annotations that are no text)
import datetime
import importlib.util
import os
import sys
from pathlib import Path

RANK = int(sys.argv[1])
RANKS = int(os.environ["BENCH_RANKS"])
os.environ |= {"RANK": str(RANK), "WORLD_SIZE": str(RANKS + 1), "LOCAL_RANK": str(RANK)}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["BENCH_PORT"]}

import nvidia_resiliency_ext.inprocess as inprocess
import torch.distributed as dist

from prism.recover.checkpoint.checkpointer import abandon_checkpointers
from prism.recover.checkpoint.inplace import Place

spec = importlib.util.spec_from_file_location("in_place", Path(__file__).parents[2] / "examples/recover/in_place.py")
assert spec is not None and spec.loader is not None
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


@inprocess.Wrapper(
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(RANKS), inprocess.rank_assignment.ShiftRanks()
    ),
    monitor_process_logfile=f"{os.environ['BENCH_DIR']}/monitor-{{rank}}.log",
)
def train(call_wrapper: inprocess.CallWrapper | None = None) -> None:
    abandon_checkpointers()
    assert call_wrapper is not None
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["BENCH_PORT"]) + 1 + call_wrapper.iteration  # the store of the last one may still be there
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, timeout=datetime.timedelta(seconds=60))
    store = dist.PrefixStore(str(call_wrapper.iteration), store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    example.train(Place(rank=rank, world_size=world_size, generation=call_wrapper.iteration + 1))


train()
