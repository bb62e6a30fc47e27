"""`prism watch`: flows in, findings out, for as long as it runs and over restarts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prism.collect import Source
from prism.collect.port_counters import PortCounters
from prism.errors import BadConfigError
from prism.machine.files import write_durably
from prism.machine.locks import FolderLock
from prism.observe.watch.alerts import AlertSink
from prism.observe.watch.analysis import Analyst, InlineAnalyst, ProcessAnalyst
from prism.observe.watch.exporter_clocks import ExporterClocks
from prism.observe.watch.given_source import GivenSource
from prism.observe.watch.metrics import WatchStatus
from prism.observe.watch.state import WatchState, WindowReport, load_state
from prism.observe.watch.window import FlowWindow, fit_length

_POLL_S = 0.25
_SILENCE = 2.0  # times the longest pause between arrivals so far that counts as silence
_LEAST_SILENCE_S = 2.0
_CURRENT_S = 900.0  # Files whose newest flow is older are an archive: their end is no silence.
_STILL_HERE_S = 10.0  # between saves of a watch that sees nothing new
_LATE_S = 10.0  # If two looks take longer, findings are not reported within the 15 s that are promised.


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """How to watch."""

    window_s: float = 60.0
    every_s: float = 3.0  # between looks; two must agree, so a finding is reported within 15 s of its onset
    settle_s: float = 1.0  # live: exporters send at different times, so the last moments are not analysed yet
    max_rows: int = 4_000_000  # about 250 MB; at 200,000 flows/s the last 20 s
    state: Path | None = None


class Watch:
    """Reads a source, looks at the latest window every few seconds, and reports each finding once."""

    def __init__(
        self,
        source: Source,
        topology: pl.DataFrame | None,
        config: WatchConfig,
        emit: Callable[[dict[str, Any]], None],
        *,
        alerts: Sequence[AlertSink] = (),
        analyst: Analyst | None = None,
        given: GivenSource | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._source = source
        self._topology = topology
        self._config = config
        self._emit = emit
        self._say = say
        self._given = given
        self._alerts = alerts
        self._analyst: Analyst = analyst or (ProcessAnalyst() if source.is_live else InlineAnalyst())
        self._clocks = ExporterClocks()
        self._ports = PortCounters()
        folder = config.state
        self._state = load_state(folder / "state.json") if folder else WatchState()
        self._window = FlowWindow(int(config.window_s * 1e9), config.max_rows, folder / "window" if folder else None)
        self._length_ns = self._window.length_ns  # length of the next window; files wait for as long as a look takes
        self._look: Future[WindowReport] | None = None
        self._piece = 0  # files: the stretch of time that is being read
        self._looked_at = time.monotonic()
        self._looked_until_ns = 0
        self._arrived_at = time.monotonic()
        self._longest_pause_s = 0.0
        self._fresh = False  # flows have arrived since the last look
        # Files: how far the source had been read, and the first segment not written, before what is being read now.
        self._before: tuple[dict[str, Any], int | None] = {}, None
        self._current = False  # the waiting flows are current
        self._findings: Counter[str] = Counter()
        self._said: set[str] = set()
        self._said_late = False
        self._looks = self._failed = 0
        self._look_seconds = 0.0
        self._jobs: dict[str, tuple[int, float | None]] = {}
        self._saved_at = time.monotonic()
        self._trouble = ""  # why the state is kept in memory only

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Watch until `stop` is set or the source ends; the state is saved before it returns."""
        lock, how = self._take_folder(), ""
        try:
            self._resume()
            while not should_stop() and not self._source.is_finished:
                if not self._source.is_live:
                    self._before = self._source.save_position(), None
                self._take(self._source.poll(_POLL_S))
                self._collect_look()
                if self._is_due():
                    self._begin_look()
                self._say_new(self._source.notes)
                if time.monotonic() - self._saved_at > _STILL_HERE_S:
                    self._save()  # a state that is not written for long is one that nobody watches for
            self._finish()
            how = "finished" if self._source.is_finished else "stopped"
        finally:
            if lock is not None:
                lock.close(how)
            self._source.close()
            self._analyst.close()

    def status(self) -> WatchStatus:
        """The state of the watch, for metrics."""
        counts = self._source.counts
        follows = self._source.is_live or self._current
        lag = time.time() - self._window.newest_ns / 1e9 if follows and self._window.newest_ns else None
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
            state_trouble=bool(self._trouble),
            firing=tuple(t.to_json() for t in self._state.firing()),
            alerts=sum((sink.outcomes for sink in self._alerts), Counter()),
            ports=self._ports.status(),
            looks=self._looks,
            failed_looks=self._failed,
            look_seconds=self._look_seconds,
            lag_seconds=lag,
        )

    def _resume(self) -> None:
        """Continue where an earlier run stopped; findings that it decided on but may not have printed are printed."""
        if self._source.is_live:
            self._window.restore()
            if self._window.newest_ns:
                # Nothing was observed between the runs: silence there means nothing, and jobs are studied again.
                self._window.begin_ns = time.time_ns()
                self._state.judge_from_ns = self._window.begin_ns + self._state.warm_up_ns
        else:
            self._window.restore(0 if self._source.starts_over else self._state.segment)
        for document in self._state.outbox:
            self._emit(document)
        self._state.outbox = []
        for sink in self._alerts:
            sink.resume([told.to_json() for told in self._state.firing()])

    def _take(self, flows: pl.DataFrame) -> None:
        if not flows.height:
            return
        now = time.monotonic()
        if self._source.is_live:
            flows = self._clocks.correct(flows, time.time_ns())
            if hasattr(self._source, "take_counters"):
                self._ports.take(self._source.take_counters())
            if self._fresh or self._looks:
                self._longest_pause_s = max(self._longest_pause_s, now - self._arrived_at)
            self._arrived_at = now
            self._fresh |= self._window.add(flows) > 0
            return
        self._note_arrival(flows, now)
        # Waiting files are analysed as if they came live: one look for every few seconds of their own time.
        pieces = list(slice_by_time(flows, int(self._config.every_s * 1e9)))
        if pieces[-1][0] > self._piece:
            # A look in the middle of these flows saves their beginning as position: after a kill they are read again.
            self._window.seal()
            self._before = self._before[0], self._window.next_segment
        for piece, part in pieces:
            if piece > self._piece and self._fresh and self._window.newest_ns > self._state.looked_until_ns:
                self._begin_look()
                self._collect_look(wait=True)
            self._piece = max(self._piece, piece)
            self._fresh |= self._window.add(part) > 0
        self._before = self._source.save_position(), None

    def _note_arrival(self, flows: pl.DataFrame, now: float) -> None:
        """Files: how often they usually arrive, by the clock and in their own time."""
        newest = int(flows.select(pl.coalesce("end_ns", "start_ns").max()).item())
        usual = self._state.arrivals
        if self._current:
            usual.longest_pause_s = max(usual.longest_pause_s, now - self._arrived_at)
        before = self._window.newest_ns or int(flows.select(pl.col("start_ns").min()).item())
        usual.longest_batch_s = max(usual.longest_batch_s, (newest - before) / 1e9)
        usual.num += 1
        self._current = abs(time.time() - newest / 1e9) < max(_CURRENT_S, 5 * usual.longest_batch_s)
        self._arrived_at = now

    def _is_due(self) -> bool:
        if self._look is not None or not self._window.newest_ns:
            return False
        waited = time.monotonic() - self._looked_at
        if not self._source.is_live:
            return waited >= self._config.every_s and self._silent_s() > 0
        return waited >= self._config.every_s and (self._fresh or self._silent_s() > 0)

    def _silent_s(self) -> float:
        """Seconds without any flow; 0 while such a pause is usual for this source."""
        silent = time.monotonic() - self._arrived_at
        if not self._source.is_live:
            if not self._current or self._source.is_finished:
                return 0.0
            # A file holds the flows before it, so the next one is due after the longest interval so far.
            due = self._state.arrivals.due_s(self._config.every_s)
            return silent - due if due is not None and silent > _SILENCE * due + _LEAST_SILENCE_S else 0.0
        return silent if silent > max(_LEAST_SILENCE_S, _SILENCE * self._longest_pause_s) else 0.0

    def _begin_look(self) -> None:
        self._window.seal()
        until = self._window.newest_ns
        silent_s = self._silent_s()
        if silent_s:
            until += int(silent_s * 1e9)
        elif self._source.is_live:
            until -= int(self._config.settle_s * 1e9)
        self._looked_at = time.monotonic()
        self._looked_until_ns = self._window.newest_ns
        self._fresh = False
        self._note_position()
        given = self._given.list_jobs() if self._given is not None else ()
        self._look = self._analyst.submit(self._window.flows(until, self._length_ns), self._topology, until, given)
        self._say_new(self._given.notes if self._given is not None else ())

    def _note_position(self) -> None:
        """The position in the source at this moment, and the segments that hold the flows up to it."""
        position, segment = (self._source.save_position(), None) if self._source.is_live else self._before
        self._state.position = position
        self._state.segment = self._window.next_segment if segment is None else segment

    def _collect_look(self, *, wait: bool = False, final: bool = False) -> None:
        """Take the result of a finished look, and report what is new."""
        if self._look is None or not (wait or self._look.done()):
            return
        look, self._look = self._look, None
        try:
            report = look.result()
        except Exception as error:  # The outermost loop: an error in one window must not end the watch.
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
        self._state.looked_until_ns = max(self._state.looked_until_ns, self._looked_until_ns)
        self._jobs = {self._state.names[j.id]: (len(j.endpoints), j.step_s) for j in report.jobs}
        self._tell([t.to_json() for t in told])

    def _tell(self, documents: list[dict[str, Any]]) -> None:
        """Save what will be reported, report it, save that it was reported."""
        self._state.outbox = documents
        self._save()
        for document in documents:
            self._emit(document)
            self._findings[document["kind"]] += not document["update"]
            for sink in self._alerts:
                sink.send(document)
        for sink in self._alerts:
            sink.keep_up()
        if documents:
            self._state.outbox = []
            self._save()

    def _finish(self) -> None:
        """A last look if the source has ended; a watch that is stopped keeps unconfirmed findings for its next run."""
        self._collect_look(wait=True)
        if self._source.is_finished and self._window.newest_ns:
            self._begin_look()
            self._collect_look(wait=True, final=True)
        self._window.seal()
        self._note_position()
        self._save()
        self._say_new(self._source.notes)
        self._say_totals()

    def _say_totals(self) -> None:
        """What was received and what was lost, in one or two lines."""
        status = self.status()
        self._say(f"{status.flows:,} flows out of {status.received:,} received, {status.looks:,} looks")
        told = [("lost on the way", status.lost)] if status.lost else []
        told += [*status.dropped.items(), *status.malformed.items()]
        if told:
            self._say("left out: " + ", ".join(f"{num:,} {why}" for why, num in told))

    def _save(self) -> None:
        """Save the state; on a full disk the watch goes on in memory and says so."""
        self._saved_at = time.monotonic()
        if self._config.state is None:
            return
        try:
            self._config.state.mkdir(parents=True, exist_ok=True)
            self._state.save(self._config.state / "state.json")
        except OSError as error:
            if not self._trouble:
                self._say(f"the state is kept in memory only ({error.strerror}); free space in {self._config.state}")
            self._trouble = f"the state is kept in memory only ({error.strerror})"
        else:
            self._trouble = ""

    def _take_folder(self) -> FolderLock | None:
        """Two watches in one folder would overwrite each other's state."""
        folder = self._config.state
        if folder is None:
            return None
        try:
            lock = FolderLock(folder)
        except BlockingIOError:
            raise BadConfigError(f"--state {folder}: another prism watch works there; name another folder") from None
        except OSError as error:
            raise BadConfigError(f"--state {folder}: cannot be written ({error.strerror}); name another") from None
        if self._topology is not None:
            with suppress(OSError):
                write_durably(folder / "topology.csv", self._topology.write_csv())
        return lock

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
