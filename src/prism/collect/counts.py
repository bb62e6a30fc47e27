"""What a source has seen, kept and lost, counted so that nothing goes missing in silence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SourceCounts:
    """Totals since the source was opened; they only grow."""

    received: int = 0  # datagrams, packets or files, as the source takes them
    received_bytes: int = 0
    flows: int = 0  # handed on
    lost: int = 0  # records, or datagrams for NetFlow v9, that sequence numbers show never arrived
    waiting: int = 0  # data sets that came before their template
    dropped: Counter[str] = field(default_factory=Counter)  # whole and readable, but let go: why -> how many
    malformed: Counter[str] = field(default_factory=Counter)  # what was wrong -> how many
    events: Counter[str] = field(default_factory=Counter)  # neither: template changes, retransmissions, restarts

    @property
    def num_dropped(self) -> int:
        """Everything let go."""
        return self.dropped.total()

    @property
    def num_malformed(self) -> int:
        """Everything unreadable."""
        return self.malformed.total()
