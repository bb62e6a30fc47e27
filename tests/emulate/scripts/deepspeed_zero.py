"""DeepSpeed on CPU ranks; the ZeRO stage is the first argument."""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
config = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=layers, model_parameters=layers.parameters(), config=config)
for _ in range(12):
    engine.backward(engine(torch.randn(4, 32)).square().mean())
    engine.step()
