"""How likely each host is to fail, as `prism predict` wrote it; used by the supervisor and the host test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.errors import BadFileError

NODE_MTBF = "PRISM_NODE_MTBF_S"  # tells a trainer the mean time between failures of one of its nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Risks:
    """Failures per day of every host that is known."""

    per_day: dict[str, float] = field(default_factory=dict)

    def of(self, host: str) -> float:
        """The risk of a host; that of an unknown host is the median of the known ones."""
        found = self.per_day.get(host)
        if found is not None:
            return found
        known = sorted(self.per_day.values())
        return known[len(known) // 2] if known else 0.0

    def node_mtbf_s(self, hosts: Iterable[str]) -> float | None:
        """Mean time between failures of one of these hosts, so that their number divided by it is the job's rate."""
        rates = [self.of(host) for host in hosts]
        total = sum(rates)
        return 86_400.0 * len(rates) / total if self.per_day and total > 0 else None


def read_risks(path: Path) -> Risks:
    """Hosts and risks from what `prism predict`, `advise` or `watch` wrote as JSON."""
    try:
        document = json.loads(path.read_bytes())
        days = float(document["horizon_days"])
        rows = document["nodes"] if "nodes" in document else document["risks"]
        per_day = {str(row["id"]): _per_day(row["risk"], days) for row in rows}
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError(
            f"{path}: no risks of hosts ({error!r:.80}); write it with `prism predict advise --json`"
        ) from None
    return Risks(per_day=per_day)


def _per_day(risk: Any, days: float) -> float:
    if isinstance(risk, bool) or not 0.0 <= float(risk) <= 1.0 or not 0.0 < days < 1e5:
        raise ValueError(f"risk {risk!r} within {days!r} days")
    return -math.log1p(-min(float(risk), 0.999_999)) / days
