"""IterableDataset read by loader workers and split by rank; batches differ in shape from step to step and rank to rank."""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STEPS = 10


class Stream(IterableDataset):
    def __init__(self, rank: int, world: int):
        self.rank, self.world = rank, world

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        for i in itertools.count(self.rank * workers + worker, self.world * workers):
            generator = torch.Generator().manual_seed(i)
            length = int(torch.randint(3, 20, (1,), generator=generator))
            yield torch.randn(length, 8, generator=generator), i % 2


def collate(samples):
    sequences, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(s) for s in sequences])
    return pad_sequence(list(sequences), batch_first=True), lengths, torch.tensor(labels)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.rnn(packed)
        return self.head(h[-1])


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loader = DataLoader(Stream(rank, world), batch_size=6, num_workers=2, collate_fn=collate)
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, lengths, labels in itertools.islice(loader, STEPS):
        loss = nn.functional.cross_entropy(model(x, lengths), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
