"""Sampling: one packet in how many an exporter looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prism.collect.elements import Role

Words = NDArray[np.uint64]

_MOST = 2**24  # Rates beyond this are damage; switches sample at most 1 in some million.
_MAX_SELECTORS = 256


@dataclass(slots=True)
class Sampling:
    """The rates an exporter has announced: its own, and those of its numbered samplers."""

    rate: int = 1
    selectors: dict[int, int] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether any rate was announced."""
        return self.rate != 1 or bool(self.selectors)

    def learn(self, columns: dict[Role, Words]) -> None:
        """Take the rates from the records of an options template."""
        rates = rates_in(columns)
        if rates is None:
            return
        if "selector" in columns:
            for selector, rate in zip(columns["selector"].tolist(), rates.tolist(), strict=True):
                if selector in self.selectors or len(self.selectors) < _MAX_SELECTORS:
                    self.selectors[selector] = rate
        # Records often do not name their sampler; where the exporter has just one rate, it is theirs.
        known = set(self.selectors.values()) | set(rates.tolist())
        if "selector" not in columns or len(known) == 1:
            self.rate = int(rates[-1])


def rates_in(columns: dict[Role, Words]) -> NDArray[np.int64] | None:
    """N of "one packet in N", from the elements that state it; None where none does."""
    if "packet_interval" in columns:
        taken = np.maximum(columns["packet_interval"], 1).astype(np.float64)
        skipped = columns["packet_space"].astype(np.float64) if "packet_space" in columns else None
        # With a space the interval counts packets taken; alone it is used as "one in".
        rate = taken if skipped is None else (taken + skipped) / taken
    elif "sample_population" in columns and "sample_size" in columns:
        size = np.maximum(columns["sample_size"], 1).astype(np.float64)
        rate = columns["sample_population"].astype(np.float64) / size
    elif "probability" in columns:
        share = columns["probability"].view(np.float64)
        rate = 1 / np.where((share > 0) & (share <= 1), share, 1.0)
    elif "interval" in columns:
        rate = columns["interval"].astype(np.float64)
    else:
        return None
    return np.clip(np.rint(rate), 1, _MOST).astype(np.int64)
