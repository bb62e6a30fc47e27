"""FSDP (first generation), gradients and optimizer sharded, global norm clipping, whole state gathered, rank 0 writes it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
)

STEPS, SAVE_EVERY = 12, 6


def save(model: FullyShardedDataParallel, step: int) -> None:
    config = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"model-{step}.pt")
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(int(os.environ.get("SEED", "3")))
    layers = [FullyShardedDataParallel(nn.Linear(64, 64), device_id=torch.device("cpu")) for _ in range(3)]
    model = FullyShardedDataParallel(
        nn.Sequential(*layers, nn.Linear(64, 1)),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        device_id=torch.device("cpu"),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 64)
        loss = (model(x).squeeze(1) - x.sum(dim=1)).pow(2).mean()
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        opt.step()
        opt.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f} norm {float(norm):.3f}")
        if step % SAVE_EVERY == 0:
            save(model, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
