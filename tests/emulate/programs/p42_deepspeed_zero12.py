"""DeepSpeed ZeRO stage 1 or 2 on CPU with gradient accumulation and a learning-rate schedule from the config."""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": args.accumulate,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
    "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 5000, "overlap_comm": False},
    "steps_per_print": 1000,
}

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
torch.manual_seed(int(os.environ["RANK"]))
for step in range(10 * args.accumulate):
    x, y = torch.randn(4, 32), torch.randint(0, 4, (4,))
    loss = nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0 and engine.is_gradient_accumulation_boundary():
        print(step, loss.item())
torch.distributed.destroy_process_group()
