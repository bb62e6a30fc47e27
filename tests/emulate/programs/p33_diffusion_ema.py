"""Diffusion model with an exponential moving average, random self-conditioning agreed by a broadcast, samples every five steps."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIZE, STEPS_T = 24, 50


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS_T, 32)
        self.net = nn.Sequential(
            nn.Linear(2 * SIZE + 32, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, SIZE)
        )

    def forward(self, x, t, guess):
        return self.net(torch.cat([x, guess, self.time(t)], dim=-1))


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    for e, p in zip(ema.parameters(), model.parameters(), strict=True):
        e.lerp_(p, 1 - decay)


@torch.no_grad()
def sample(ema, alphas, n=4):
    x, guess = torch.randn(n, SIZE), torch.zeros(n, SIZE)
    for t in range(STEPS_T - 1, 0, -10):
        noise = ema(x, torch.full((n,), t), guess)
        guess = (x - (1 - alphas[t]).sqrt() * noise) / alphas[t].sqrt()
        x = alphas[t - 1].sqrt() * guess + (1 - alphas[t - 1]).sqrt() * torch.randn_like(x)
    return x


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(Denoiser())
    ema = copy.deepcopy(model.module).eval()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS_T), 0)
    torch.manual_seed(rank)
    for step in range(15):
        clean, t = torch.randn(16, SIZE), torch.randint(0, STEPS_T, (16,))
        noise = torch.randn_like(clean)
        noisy = alphas[t, None].sqrt() * clean + (1 - alphas[t, None]).sqrt() * noise
        coin = torch.rand(1)
        dist.broadcast(coin, src=0)
        guess = torch.zeros_like(clean)
        if coin.item() < 0.5:
            with torch.no_grad():
                guess = ema(noisy, t, guess)
        loss = (model(noisy, t, guess) - noise).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model.module)
        if step % 5 == 4:
            drawn = sample(ema, alphas)
            everyone = [torch.empty_like(drawn) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, drawn)
            if rank == 0:
                print(step, loss.item(), torch.cat(everyone).std().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
