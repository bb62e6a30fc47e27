"""Exporters whose clocks are far off: detected by when their records arrive, and corrected by whole seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

_AHEAD_NS = 2 * 10**9  # Records from the future by more than this show a clock that is wrong.
_BEHIND_NS = 300 * 10**9  # Records older than any active timeout in use (nfdump and Cisco: up to 5 minutes) do too.
_MAX_EXPORTERS = 4_096


@dataclass(slots=True)
class ExporterClocks:
    """Shifts the flows of exporters whose clock is minutes off; small offsets are left to the analysis."""

    shifts_ns: dict[str, int] = field(default_factory=dict)

    def correct(self, flows: pl.DataFrame, now_ns: int) -> pl.DataFrame:
        """Flows with `exporter`, received at `now_ns`, on our clock."""
        if "exporter" not in flows.columns or not flows.height:
            return flows
        newest = flows.group_by("exporter").agg(pl.coalesce("end_ns", "start_ns").max().alias("newest"))
        for exporter, last in newest.iter_rows():
            lag = now_ns - last - self.shifts_ns.get(exporter, 0)
            if (lag < -_AHEAD_NS or lag > _BEHIND_NS) and len(self.shifts_ns) < _MAX_EXPORTERS:
                self.shifts_ns[exporter] = now_ns - last
        wrong = [e for e in newest["exporter"] if self.shifts_ns.get(e)]
        if not wrong:
            return flows
        shift = pl.col("exporter").replace_strict(
            wrong, [self.shifts_ns[e] for e in wrong], default=0, return_dtype=pl.Int64
        )
        return flows.with_columns(pl.col("start_ns") + shift, pl.col("end_ns") + shift)
