"""What a worker process has at hand between jobs: its bench, its node's shelf, and the copies it holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prism.evaluate.run.adapters.adapter import Bench
from prism.evaluate.run.loading.neighbour import Neighbour
from prism.evaluate.run.loading.shelf import Lease, Shelf, ShelfConfig
from prism.evaluate.run.models.adapted import ADAPTER_FILE

# Read by libraries: no bars are drawn into the log, and no library forks this process to use more of its cores than
# it was given. A fork of a Ray worker can hang for ever, on a lock that another of its threads held at that moment
# (lm-evaluation-harness forks for its bootstrap; without, it draws the same samples from the same seeds).
_SETTINGS = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DISABLE_MULTIPROC": "1",
}


class Workplace:
    """One per worker process."""

    def __init__(self) -> None:
        self.bench = Bench()
        self._shelves: dict[tuple[Path, ...], Shelf] = {}
        self._leases: dict[str, tuple[Shelf, Lease]] = {}
        self._neighbour: Neighbour | None = None
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)

    def shelf(self, roots: tuple[Path, ...]) -> Shelf:
        """The node's shelf; what crashed processes left there is swept out when it is first used."""
        if roots not in self._shelves:
            self._shelves[roots] = Shelf(ShelfConfig(roots=roots) if roots else None)
            self._shelves[roots].sweep()
        return self._shelves[roots]

    def keep(self, shelf: Shelf, lease: Lease) -> None:
        """Hold a copy until it is let go or this process ends; a second lease of the same copy is given back."""
        if lease.key in self._leases:
            shelf.give_back(lease)
        else:
            self._leases[lease.key] = (shelf, lease)

    def held(self, key: str) -> Lease | None:
        """The lease of a copy that this process holds."""
        found = self._leases.get(key)
        return found[1] if found else None

    def let_go(self, key: str) -> None:
        """Give a copy back; the last user's leaving clears it."""
        if self._neighbour is not None:
            self._neighbour.withdraw(key)
        if (found := self._leases.pop(key, None)) is not None:
            found[0].give_back(found[1])

    def use_only(self, key: str, roots: tuple[Path, ...]) -> Path:
        """Hold one copy for inference and let go of the one before; where it lies."""
        if (held := self.held(key)) is not None:
            return held.folder
        shelf = self.shelf(roots)
        lease = shelf.hold(key)
        if not (lease.folder / ADAPTER_FILE).exists():  # an adapter's model may be on the bench already
            self.bench.drop("model")  # it is not needed any more, and its memory is; datasets stay ready
        for other in list(self._leases):
            self.let_go(other)
        self.keep(shelf, lease)
        return lease.folder

    def neighbour(self, host: str) -> Neighbour:
        """The server that passes this node's copies on."""
        if self._neighbour is None:
            self._neighbour = Neighbour(self._locate, host)
        return self._neighbour

    def use_threads(self, count: int) -> None:
        """How many cores this process computes on; told before numeric libraries are imported."""
        os.environ["OMP_NUM_THREADS"] = str(count)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(count)

    def close(self) -> None:
        """Give everything back."""
        if self._neighbour is not None:
            self._neighbour.close()
        for key in list(self._leases):
            self.let_go(key)

    def _locate(self, key: str) -> Path | None:
        held = self.held(key)
        return held.folder if held else None
