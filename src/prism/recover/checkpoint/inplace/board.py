"""Messages between launchers and members: a few keys in torch's TCP store, with JSON values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

STORE = "PRISM_INPLACE_STORE"  # host:port
MEMBER = "PRISM_INPLACE_MEMBER"
_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation: the members that train, by rank."""

    number: int
    members: tuple[str, ...]


class Board:
    """A connection to the store. Lists only grow, so that every reader keeps its own place in them."""

    def __init__(self, address: str, *, host_it: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self.store = TCPStore(host, int(port), is_master=host_it, timeout=_TIMEOUT, wait_for_workers=False)
        self._read: dict[str, int] = {}

    def append(self, name: str, value: Any) -> None:
        """Add to a list."""
        number = self.store.add(f"{name}/reserved", 1)
        self.store.set(f"{name}/{number}", json.dumps(value))
        self.store.add(f"{name}/count", 1)

    def news(self, name: str) -> list[Any]:
        """The entries that were added to a list since this reader's last call."""
        count, seen = self.store.add(f"{name}/count", 0), self._read.get(name, 0)
        self._read[name] = count
        return [json.loads(self.store.get(f"{name}/{number}")) for number in range(seen + 1, count + 1)]

    def count(self, name: str) -> int:
        """How long a list is."""
        return int(self.store.add(f"{name}/count", 0))

    def publish(self, generation: Generation) -> None:
        """Publish a generation."""
        self.store.set(f"generation/{generation.number}", json.dumps(generation.members))
        self.store.add("generation/newest", 1)

    def newest(self) -> int:
        """The number of the newest generation; 0 before the first."""
        return int(self.store.add("generation/newest", 0))

    def generation(self, number: int) -> Generation:
        """A published generation."""
        return Generation(number=number, members=tuple(json.loads(self.store.get(f"generation/{number}"))))

    def end(self, code: int) -> None:
        """Publish that the job is over."""
        self.store.set("over/code", str(code))
        self.store.add("over/flag", 1)

    def ended(self) -> int | None:
        """The exit code of the job, once it is over."""
        if int(self.store.add("over/flag", 0)) == 0:
            return None
        return int(self.store.get("over/code"))
