"""What a worker process has at hand between jobs: its cache, its node's shelf, and the copies it holds."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from pathlib import Path

from prism.evaluate.run.adapters.adapter import WorkerCache
from prism.evaluate.run.loading.peer_server import PeerServer
from prism.evaluate.run.loading.shelf import Lease, Shelf
from prism.evaluate.run.models.lora import ADAPTER_FILE

# Read by libraries: no bars are drawn into the log, and no library forks this process to use more of its cores than
# it was given. A fork of a Ray worker can hang for ever, on a lock that another of its threads held at that moment
# (lm-evaluation-harness forks for its bootstrap; without, it draws the same samples from the same seeds).
_SETTINGS = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DISABLE_MULTIPROC": "1",
}


class WorkerContext:
    """One per worker process."""

    def __init__(self) -> None:
        self.cache = WorkerCache()
        self._leases: dict[str, Lease] = {}
        self._peer_server: PeerServer | None = None
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)

    @cached_property
    def shelf(self) -> Shelf:
        """The node's shelf; what crashed processes left there is swept out when it is first used."""
        shelf = Shelf()
        shelf.sweep()
        return shelf

    def keep(self, lease: Lease) -> None:
        """Hold a copy until it is let go or this process ends; a second lease of the same copy is given back."""
        if lease.key in self._leases:
            self.shelf.give_back(lease)
        else:
            self._leases[lease.key] = lease

    def let_go(self, key: str) -> None:
        """Give a copy back; the last user's leaving clears it."""
        if self._peer_server is not None:
            self._peer_server.withdraw(key)
        if (lease := self._leases.pop(key, None)) is not None:
            self.shelf.give_back(lease)

    def use_only(self, key: str) -> Path:
        """Hold one copy for inference and let go of the one before; where it lies."""
        if (held := self._locate(key)) is not None:
            return held
        lease = self.shelf.hold(key)
        if not (lease.folder / ADAPTER_FILE).exists():  # an adapter's model may be in the cache already
            self.cache.drop("model")  # it is not needed any more, and its memory is; datasets stay ready
        for other in list(self._leases):
            self.let_go(other)
        self.keep(lease)
        return lease.folder

    def peer_server(self, host: str) -> PeerServer:
        """The server that passes this node's copies on."""
        if self._peer_server is None:
            self._peer_server = PeerServer(self._locate, host)
        return self._peer_server

    def use_one_thread(self) -> None:
        """Compute on one core; to be called before numeric libraries are imported.

        More threads make sums in another order, and scores that differ in their last digits.
        """
        os.environ["OMP_NUM_THREADS"] = "1"
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)

    def close(self) -> None:
        """Give everything back."""
        if self._peer_server is not None:
            self._peer_server.close()
        for key in list(self._leases):
            self.let_go(key)

    def _locate(self, key: str) -> Path | None:
        return self._leases[key].folder if key in self._leases else None
