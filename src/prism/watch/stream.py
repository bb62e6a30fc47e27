"""`prism watch`: flows in, findings out, for as long as it runs and over restarts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect import Source
from prism.watch.alerts import WebhookAlerts
from prism.watch.analysis import Analyst, InlineAnalyst, ProcessAnalyst
from prism.watch.exporter_clocks import ExporterClocks
from prism.watch.metrics import WatchStatus
from prism.watch.state import WatchState, WindowReport, load_state
from prism.watch.window import FlowWindow, fit_length

_POLL_S = 0.25
_SILENCE = 2.0  # times the longest pause between arrivals so far that counts as silence
_LEAST_SILENCE_S = 2.0
_LATE_S = 10.0  # Two looks that take longer miss the 15 s within which findings should be told.


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """How to watch."""

    window_s: float = 60.0
    every_s: float = 3.0  # between looks; two must agree, so a finding is told within 15 s of its onset
    settle_s: float = 1.0  # live: exporters differ in when they send, so the last moment is not looked at yet
    max_rows: int = 4_000_000  # about 250 MB; at 200,000 flows/s the last 20 s
    state: Path | None = None


class Watch:
    """Reads a source, looks at the latest window every few seconds, and tells each finding once."""

    def __init__(
        self,
        source: Source,
        topology: pl.DataFrame | None,
        config: WatchConfig,
        emit: Callable[[dict[str, Any]], None],
        *,
        alerts: WebhookAlerts | None = None,
        analyst: Analyst | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._source = source
        self._topology = topology
        self._config = config
        self._emit = emit
        self._say = say
        self._alerts = alerts
        self._analyst: Analyst = analyst or (ProcessAnalyst() if source.is_live else InlineAnalyst())
        self._clocks = ExporterClocks()
        folder = config.state
        self._state = load_state(folder / "state.json") if folder else WatchState()
        self._window = FlowWindow(int(config.window_s * 1e9), config.max_rows, folder / "window" if folder else None)
        self._length_ns = self._window.length_ns  # that the next look goes back; files wait for as long as it takes
        self._look: Future[WindowReport] | None = None
        self._piece = 0  # files: which stretch of their time is being read
        self._looked_at = time.monotonic()
        self._arrived_at = time.monotonic()
        self._longest_pause_s = 0.0
        self._fresh = False  # flows have come since the last look
        self._findings: Counter[str] = Counter()
        self._said: set[str] = set()
        self._said_late = False
        self._looks = self._failed = 0
        self._look_seconds = 0.0
        self._jobs: dict[str, tuple[int, float | None]] = {}

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Watch until told to stop or the source ends; everything is saved on the way out."""
        self._resume()
        try:
            while not should_stop() and not self._source.is_finished:
                self._take(self._source.poll(_POLL_S))
                self._collect_look()
                if self._source.is_live and self._is_due():
                    self._begin_look()
                self._say_new(self._source.notes)
            self._finish()
        finally:
            self._source.close()
            self._analyst.close()

    def status(self) -> WatchStatus:
        """How the watch stands, for metrics."""
        counts = self._source.counts
        lag = time.time() - self._window.newest_ns / 1e9 if self._source.is_live and self._window.newest_ns else None
        return WatchStatus(
            received=counts.received,
            received_bytes=counts.received_bytes,
            flows=counts.flows,
            lost=counts.lost,
            waiting=counts.waiting,
            dropped=counts.dropped + self._window.dropped,
            malformed=counts.malformed.copy(),
            events=counts.events.copy(),
            window_flows=self._window.num_rows,
            jobs=self._jobs,
            findings=self._findings.copy(),
            alerts=self._alerts.outcomes.copy() if self._alerts else Counter(),
            looks=self._looks,
            failed_looks=self._failed,
            look_seconds=self._look_seconds,
            lag_seconds=lag,
        )

    def _resume(self) -> None:
        """Take up where an earlier run stopped; what it had decided but perhaps not printed is printed."""
        self._window.restore()
        for document in self._state.outbox:
            self._emit(document)
        self._state.outbox = []

    def _take(self, flows: pl.DataFrame) -> None:
        if not flows.height:
            return
        now = time.monotonic()
        if self._source.is_live:
            flows = self._clocks.correct(flows, time.time_ns())
            if self._fresh or self._looks:
                self._longest_pause_s = max(self._longest_pause_s, now - self._arrived_at)
            self._arrived_at = now
            self._fresh |= self._window.add(flows) > 0
            return
        # What waits to be read is looked at as if it came live: one look for every few seconds of its own time.
        for piece, part in slice_by_time(flows, int(self._config.every_s * 1e9)):
            if piece > self._piece and self._fresh:
                self._begin_look()
                self._collect_look(wait=True)
            self._piece = max(self._piece, piece)
            self._fresh |= self._window.add(part) > 0

    def _is_due(self) -> bool:
        if self._look is not None or not self._window.newest_ns:
            return False
        waited = time.monotonic() - self._looked_at
        return waited >= self._config.every_s and (self._fresh or self._silent_s() > 0)

    def _silent_s(self) -> float:
        """Seconds without any flow, 0 while that is nothing unusual for this source."""
        silent = time.monotonic() - self._arrived_at
        return silent if silent > max(_LEAST_SILENCE_S, _SILENCE * self._longest_pause_s) else 0.0

    def _begin_look(self) -> None:
        self._window.seal()
        until = self._window.newest_ns
        silent_s = self._silent_s() if self._source.is_live else 0.0
        if silent_s:
            until += int(silent_s * 1e9)
        elif self._source.is_live:
            until -= int(self._config.settle_s * 1e9)
        self._looked_at = time.monotonic()
        self._fresh = False
        self._state.position = self._source.save_position()
        self._look = self._analyst.submit(self._window.flows(until, self._length_ns), self._topology, until)

    def _collect_look(self, *, wait: bool = False, final: bool = False) -> None:
        """Take the result of a look that is done, and tell what is new."""
        if self._look is None or not (wait or self._look.done()):
            return
        look, self._look = self._look, None
        try:
            report = look.result()
        except Exception as error:  # The outermost loop: one bad window must not end the watch.
            self._failed += 1
            self._say(f"a look at the window went wrong ({type(error).__name__}: {error}); watching on")
            return
        self._looks += 1
        self._look_seconds = report.seconds
        self._say_new(report.notes)
        if self._source.is_live:
            longest_s = max((job.step_s or 0.0 for job in report.jobs), default=0.0)
            fitting = fit_length(self._length_ns, self._window.held_ns, report.seconds, longest_s)
            self._length_ns = min(fitting, self._window.length_ns)
        if self._source.is_live and report.seconds > _LATE_S and not self._said_late:
            self._said_late = True
            self._say(
                f"a look at {report.num_flows:,} flows takes {report.seconds:.0f} s, so findings come late; "
                "lower --max-flows or --window, or sample at the exporters"
            )
        told = self._state.handle(report, final=final)
        names = {job.endpoints: name for name, job in self._state.jobs.items()}
        self._jobs = {names[j.endpoints]: (len(j.endpoints), j.step_s) for j in report.jobs}
        self._tell([t.to_json() for t in told])

    def _tell(self, documents: list[dict[str, Any]]) -> None:
        """Write down what will be told, tell it, write down that it was told."""
        self._state.outbox = documents
        self._save()
        for document in documents:
            self._emit(document)
            self._findings[document["kind"]] += not document["update"]
            if self._alerts is not None:
                self._alerts.send(document)
        if documents:
            self._state.outbox = []
            self._save()

    def _finish(self) -> None:
        """A last look where the source has ended; a watch that is stopped keeps its doubts for the next run."""
        self._collect_look(wait=True)
        if self._source.is_finished and self._window.newest_ns:
            self._begin_look()
            self._collect_look(wait=True, final=True)
        self._window.seal()
        self._state.position = self._source.save_position()
        self._save()
        self._say_new(self._source.notes)
        self._say_totals()

    def _say_totals(self) -> None:
        """What was taken and what was lost, in a line or two."""
        status = self.status()
        self._say(f"{status.flows:,} flows out of {status.received:,} received, {status.looks:,} looks")
        told = [("lost on the way", status.lost)] if status.lost else []
        told += [*status.dropped.items(), *status.malformed.items()]
        if told:
            self._say("left out: " + ", ".join(f"{num:,} {why}" for why, num in told))

    def _save(self) -> None:
        if self._config.state is not None:
            self._config.state.mkdir(parents=True, exist_ok=True)
            self._state.save(self._config.state / "state.json")

    def _say_new(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            if line not in self._said and len(self._said) < 1_000:
                self._said.add(line)
                self._say(line)


def slice_by_time(flows: pl.DataFrame, step_ns: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Flows by the stretch of time they ended in, with the number of the stretch, counted from the epoch."""
    moment = pl.coalesce("end_ns", "start_ns")
    cut = flows.with_columns((moment // step_ns).alias("_piece")).sort("_piece", maintain_order=True)
    for part in cut.partition_by("_piece", maintain_order=True):
        yield int(part["_piece"][0]), part.drop("_piece")
