"""GAN: generator and discriminator each in DDP with their own optimizer; two discriminator updates per generator update."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LATENT, DATA, BATCH = 16, 32, 16


def generator():
    return nn.Sequential(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, DATA))


def discriminator():
    return nn.Sequential(nn.Linear(DATA, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    gen, disc = DDP(generator()), DDP(discriminator(), broadcast_buffers=False)
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(disc.parameters(), lr=2e-4, betas=(0.5, 0.999))
    torch.manual_seed(rank + 1)
    for step in range(10):
        for _ in range(2):
            real = torch.randn(BATCH, DATA) + 2.0
            with torch.no_grad():
                fake = gen(torch.randn(BATCH, LATENT))
            scores = disc(torch.cat([real, fake]))
            loss_d = F.softplus(-scores[:BATCH]).mean() + F.softplus(scores[BATCH:]).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        set_trainable(disc.module, False)
        loss_g = F.softplus(-disc.module(gen(torch.randn(BATCH, LATENT)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        set_trainable(disc.module, True)
        if rank == 0:
            print(f"[{step}] d={loss_d.item():.3f} g={loss_g.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
