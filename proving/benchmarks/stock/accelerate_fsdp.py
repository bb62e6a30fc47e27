"""Accelerate with FSDP2 over transformer layers, and a clipped gradient norm."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from parts import Truth, Words, build_model

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["GPT2Block"],
    reshard_after_forward=True,
)  # fmt: skip
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
model = build_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
loader = accelerator.prepare(torch.utils.data.DataLoader(Words(), batch_size=2))
truth = Truth()
for _, batch in zip(range(int(os.environ["STEPS"])), loader, strict=False):
    truth.begin()
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    truth.end()
