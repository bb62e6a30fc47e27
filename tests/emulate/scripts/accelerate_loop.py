"""A loop of accelerate's on CPU ranks, with a metric gathered every fourth step."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
layer = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 32)), batch_size=4)
layer, optimizer, data = accelerator.prepare(layer, optimizer, data)
for step, (batch,) in enumerate(data):
    loss = layer(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        assert accelerator.gather(loss.detach().view(1)).numel() == accelerator.num_processes
    if step == 20:
        break
