"""Reinforcement learning with two kinds of rank: odd ranks play episodes, even ranks learn from them in DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

OBS, ACTIONS, LENGTH = 12, 4, 32


def policy_net():
    return nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, ACTIONS))


def play(net):
    with torch.no_grad():
        obs = torch.randn(LENGTH, OBS)
        actions = torch.distributions.Categorical(logits=net(obs)).sample()
        rewards = (actions == obs.argmax(-1) % ACTIONS).float()
    return torch.cat([obs, actions.unsqueeze(1).float(), rewards.unsqueeze(1)], dim=1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    learners = dist.new_group(list(range(0, world, 2)))
    learning, partner = rank % 2 == 0, rank ^ 1
    torch.manual_seed(0)
    net = policy_net()
    torch.manual_seed(rank)
    if learning:
        ddp = DDP(net, process_group=learners)
        opt = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    for update in range(12):
        if learning:
            batch = torch.empty(LENGTH, OBS + 2)
            dist.recv(batch, src=partner)
            obs, actions, rewards = batch[:, :OBS], batch[:, OBS].long(), batch[:, OBS + 1]
            log_prob = torch.distributions.Categorical(logits=ddp(obs)).log_prob(actions)
            loss = -(log_prob * (rewards - rewards.mean())).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        else:
            dist.send(play(net), dst=partner)
        if update % 3 == 2:  # fresh weights for the players
            for p in net.parameters():
                if learning:
                    dist.send(p.detach(), dst=partner)
                else:
                    dist.recv(p.data, src=partner)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
