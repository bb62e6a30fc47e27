"""Every collective with equal inputs on every rank; rank 0 writes what it got."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo")
size, rank = dist.get_world_size(), dist.get_rank()
got: dict[str, object] = {}


def keep(name: str, value: object) -> None:
    got[name] = value.tolist() if isinstance(value, torch.Tensor) else value


def fresh(count: int = 4) -> torch.Tensor:
    return torch.arange(1, count + 1, dtype=torch.float32)


for name in ("SUM", "MAX", "MIN"):
    tensor = fresh()
    dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
    keep(f"all_reduce {name}", tensor)
work = dist.all_reduce(tensor := fresh(), async_op=True)
work.wait()
keep("all_reduce async", tensor)
large = torch.full((4096,), 2.0)
dist.all_reduce(large)
keep("all_reduce large", large[:3])
dist.broadcast(tensor := fresh(), 0)
keep("broadcast", tensor)
dist.reduce(tensor := fresh(), 0)
keep("reduce", tensor if rank == 0 else None)
parts = [torch.zeros(4) for _ in range(size)]
dist.all_gather(parts, fresh())
keep("all_gather", torch.stack(parts))
out = torch.zeros(4 * size)
dist.all_gather_into_tensor(out, fresh())
keep("all_gather_into_tensor", out)
whole = torch.zeros(8192 * size)
dist.all_gather_into_tensor(whole, torch.ones(8192))
keep("all_gather large", whole.sum().item())
out = torch.zeros(2)
dist.reduce_scatter_tensor(out, torch.ones(2 * size))
keep("reduce_scatter_tensor", out)
out = torch.zeros(2)
dist.reduce_scatter(out, [torch.ones(2) for _ in range(size)])
keep("reduce_scatter", out)
out = torch.zeros(2 * size)
dist.all_to_all_single(out, torch.ones(2 * size))
keep("all_to_all_single", out)
gathered = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
dist.gather(fresh(), gathered, 0)
keep("gather", torch.stack(gathered) if gathered else None)
out = torch.zeros(4)
dist.scatter(out, [fresh() for _ in range(size)] if rank == 0 else None, 0)
keep("scatter", out)
dist.barrier()
objects: list[object] = [None] * size
dist.all_gather_object(objects, {"shape": [2, 3]})
keep("all_gather_object", objects)
box = [{"lr": 0.1}] if rank == 0 else [None]
dist.broadcast_object_list(box, 0)
keep("broadcast_object_list", box)
keep("functional all_reduce", functional.all_reduce(fresh(), "sum", dist.group.WORLD) + 0)
keep("functional all_gather", functional.all_gather_tensor(fresh(), 0, dist.group.WORLD) + 0)
keep(
    "functional reduce_scatter", functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, dist.group.WORLD) + 0
)
with dist._coalescing_manager():
    one, two = fresh(), fresh()
    dist.all_reduce(one)
    dist.all_reduce(two)
keep("coalesced", torch.stack([one, two]))
other = (rank + 1) % size
incoming = torch.zeros(4)
ops = [dist.P2POp(dist.isend, fresh(), other), dist.P2POp(dist.irecv, incoming, (rank - 1) % size)]
for request in dist.batch_isend_irecv(ops):
    request.wait()
keep("batch_isend_irecv", incoming)
group = dist.new_group(list(range(size)))
dist.all_reduce(tensor := fresh(), group=group)
keep("new_group", tensor)
keep("backend", dist.get_backend())
if rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(got))
dist.destroy_process_group()
