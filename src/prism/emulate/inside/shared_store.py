# mypy: disable-error-code="override,misc"
"""The key-value store of the job: one for all live ranks, kept by the launcher."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from prism.emulate.inside.exchange import Exchange
from prism.emulate.inside.recorder import find_source


class SharedStore(dist.Store):  # type: ignore[name-defined]
    """What c10d and scripts ask of a store, answered by the exchange; `prefix` keeps stores of a script apart."""

    def __init__(self, exchange: Exchange, prefix: str = "") -> None:
        super().__init__()
        self._exchange = exchange
        self._prefix = prefix

    def set(self, key: str, value: Any) -> None:
        """Write a key."""
        self._exchange.ask("set", self._prefix + key, _to_bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key and read it."""
        value: bytes = self._exchange.ask("key", self._prefix + key, find_source())
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and read it."""
        total: int = self._exchange.ask("add", self._prefix + key, amount)
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        found: bool = self._exchange.ask("check", [self._prefix + key for key in keys])
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys."""
        for key in keys:
            self._exchange.ask("key", self._prefix + key, find_source())

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        found: bool = self._exchange.ask("delete", self._prefix + key)
        return found

    deleteKey = delete_key  # the name C++ asks for

    def num_keys(self) -> int:
        """Keys written so far."""
        count: int = self._exchange.ask("count", self._prefix)
        return count

    getNumKeys = num_keys

    def clone(self) -> SharedStore:
        """Every thread has its own connection already."""
        return self

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Write a key if it has the expected value, or is absent and nothing is expected; return its value then."""
        found: bytes = self._exchange.ask("compare", self._prefix + key, _to_bytes(expected), _to_bytes(desired))
        return found

    def append(self, key: str, value: Any) -> None:
        """Write after what a key holds."""
        self._exchange.ask("append", self._prefix + key, _to_bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Write several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Append and the like are there."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """A wait for a key ends when no rank can write it any more, whatever the timeout."""

    @property
    def timeout(self) -> timedelta:
        """What c10d expects of a store."""
        return timedelta(minutes=30)


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
