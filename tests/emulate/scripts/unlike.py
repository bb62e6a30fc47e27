"""Collectives of small tensors whose values differ between ranks; every rank writes what it got."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
got: dict[str, object] = {}

for dtype in (torch.float32, torch.int64, torch.uint8, torch.bool):
    for name in ("SUM", "PRODUCT", "MAX", "MIN", "AVG", "BAND", "BOR", "BXOR"):
        tensor = torch.tensor([1 + rank % 2, 2, rank % 2 == 0]).to(dtype)
        try:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            got[f"{name} {dtype}"] = tensor.tolist()
        except RuntimeError:
            got[f"{name} {dtype}"] = "refused"
dist.all_reduce(large := torch.tensor([2**60 + rank]))
got["a sum that no float holds"] = large.tolist()
dist.all_reduce_coalesced(pair := [torch.full((1,), float(rank)), torch.full((2,), 2.0 * rank)])
got["all_reduce_coalesced"] = [tensor.tolist() for tensor in pair]
dist.all_reduce(weight := torch.nn.Parameter(torch.full((2,), float(rank))))
got["a parameter"] = weight.tolist()
dist.reduce_scatter_tensor(out := torch.empty(2), torch.arange(2.0 * size) + rank)
got["reduce_scatter_tensor"] = out.tolist()
dist.reduce_scatter(out := torch.empty(2), [torch.full((2,), float(rank + other)) for other in range(size)])
got["reduce_scatter"] = out.tolist()
dist.all_to_all_single(out := torch.empty(size), torch.arange(float(size)) + 10 * rank)
got["all_to_all_single"] = out.tolist()
Path(f"{sys.argv[1]}-{rank}.json").write_text(json.dumps(got))
dist.barrier()
dist.destroy_process_group()
