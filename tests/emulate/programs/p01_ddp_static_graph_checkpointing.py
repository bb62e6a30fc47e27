"""DDP with a static graph; the transformer blocks are recomputed in the backward pass and share one embedding."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, LAYERS, SEQ, BATCH = 64, 32, 4, 16, 4


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True) for _ in range(LAYERS)]
        )
        self.norm = nn.LayerNorm(DIM)

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=(i % 2 == 1))
        return self.norm(x) @ self.embed.weight.T


dist.init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = DDP(TinyLM(), static_graph=True, bucket_cap_mb=0.02)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
torch.manual_seed(100 + rank)

for _step in range(12):
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)

if rank == 0:
    print("final loss", loss.item())
dist.destroy_process_group()
