"""The keys of the job's store, and what every rank was answered, to answer the same where not all ranks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_Reply = TypeVar("_Reply", int, bytes)
_Request = tuple[int, str, str]  # rank, verb, key


@dataclass(slots=True)
class KeyRecording:
    """The keys at the end of a run, who wrote them, and the replies to requests whose answer depends on other ranks."""

    values: dict[str, bytes] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    contended: set[str] = field(default_factory=set)  # changed by `add`, `compare` or `append`
    replies: dict[_Request, list[bytes | int]] = field(default_factory=dict)

    def absorb(self, later: KeyRecording) -> None:
        """Add what another run recorded."""
        self.values.update(later.values)
        self.writers.update(later.writers)
        self.contended.update(later.contended)
        self.replies.update(later.replies)


class SharedKeys:
    """Keys of the ranks that run now; `earlier` answers for ranks that do not run."""

    def __init__(self, earlier: KeyRecording) -> None:
        self.recording = KeyRecording()
        self._earlier = earlier
        self._asked: Counter[_Request] = Counter()

    def set(self, rank: int, key: str, value: bytes) -> None:
        """Write a key."""
        self.recording.values[key] = value
        self.recording.writers[key] = rank

    def add(self, rank: int, key: str, amount: int) -> int:
        """Add to a counter and return its value."""
        total = self._as_before((rank, "add", key), int(self.recording.values.get(key, b"0")) + amount)
        self.set(rank, key, str(total).encode())
        return total

    def compare(self, rank: int, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write a key if it has the expected value, or is absent and nothing is expected; return its value then."""
        if self.recording.values.get(key, b"") == expected:
            self.set(rank, key, desired)
        return self._as_before((rank, "compare", key), self.recording.values.get(key, expected))

    def append(self, rank: int, key: str, value: bytes) -> None:
        """Write after what a key holds."""
        self.recording.contended.add(key)
        self.set(rank, key, self.recording.values.get(key, b"") + value)

    def delete(self, rank: int, key: str) -> bool:
        """Remove a key; whether it existed."""
        return self.recording.values.pop(key, None) is not None

    def check(self, rank: int, keys: Sequence[str]) -> bool:
        """Whether all of these were written, now or earlier."""
        return all(key in self.recording.values or key in self._earlier.values for key in keys)

    def count(self, rank: int, prefix: str) -> int:
        """How many keys begin like this."""
        return sum(key.startswith(prefix) for key in self.recording.values)

    def read(self, rank: int, key: str, may_write: Callable[[int], bool]) -> bytes | None:
        """The value of a key; an earlier one only if the rank that wrote it cannot write it now."""
        value = self.recording.values.get(key)
        if value is None and key in self._earlier.values and not may_write(self._earlier.writers[key]):
            value = self._earlier.values[key]
        if value is None or key not in self.recording.contended | self._earlier.contended:
            return value
        return self._as_before((rank, "read", key), value)

    def _as_before(self, request: _Request, reply: _Reply) -> _Reply:
        """The reply that this request got when more ranks ran, else the given one."""
        self.recording.contended.add(request[2])
        number = self._asked[request]
        self._asked[request] += 1
        before = self._earlier.replies.get(request, [])
        reply = before[number] if number < len(before) else reply  # type: ignore[assignment]
        self.recording.replies.setdefault(request, []).append(reply)
        return reply
