"""torch.distributed.pipelining: 1F1B language model whose first stage embeds tokens and last stage predicts them; DDP-like replicas."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCAB, DIM, SEQ, BATCH, MICRO = 50, 24, 8, 8, 8
PP = 4


class Stage(nn.Module):
    def __init__(self, index: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM) if index == 0 else None
        self.layer = nn.TransformerEncoderLayer(DIM, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(DIM, VOCAB) if index == PP - 1 else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        x = self.layer(x)
        return self.head(x) if self.head is not None else x


def token_loss(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def average_gradients(module, group, size):
    works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in module.parameters()]
    for work, p in zip(works, module.parameters(), strict=True):
        work.wait()
        p.grad.div_(size)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (PP, world // PP), mesh_dim_names=("pp", "dp"))
    index = mesh.get_local_rank("pp")
    module = Stage(index)
    stage = PipelineStage(module, index, PP, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=token_loss)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    torch.manual_seed(mesh.get_local_rank("dp"))
    for _ in range(10):
        tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
        args = (tokens[:, :-1],) if index == 0 else ()
        target = tokens[:, 1:] if index == PP - 1 else None
        schedule.step(*args, target=target)
        average_gradients(module, mesh["dp"].get_group(), world // PP)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()
