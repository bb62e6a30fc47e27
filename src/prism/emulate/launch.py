"""Start the live ranks of a script as torchrun would, and gather what each recorded."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prism.emulate.booting import Boot, Process
from prism.emulate.capture import Capture, read_capture
from prism.emulate.comparing import name_ranks
from prism.emulate.exchange_server import ExchangeServer, StepLimit, Timekeeper
from prism.emulate.inside.plan import RunPlan
from prism.emulate.journal import Journals
from prism.emulate.mailbox import Mailbox, Recording
from prism.emulate.problems import CallsDifferError, read_problem
from prism.emulate.sleepers import SleepWatch
from prism.errors import BadConfigError, ScriptError
from prism.machine.processes import read_cpu_s

_SCARCE_MEMORY = 0.12  # share of this machine's memory; with less of it free a survey of all ranks is stopped
_LOOK_EVERY_S = 1.0
# A compiler or a download of one rank is busy now and then; a rank that polls for a file is asleep at every look.
_MOST_SLEEP_S = 120.0
_QUIET_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What to run, and how much of this machine to use for it."""

    script: tuple[str, ...]
    world_size: int
    gpus_per_node: int = 8
    timeout_s: float = 1800.0
    max_live: int = 64
    pin: bool = False  # one core per live rank
    one_by_one: bool = False  # ranks of one GPU take turns
    folder: Path | None = None  # keeps logs and plans of the live ranks
    note: Callable[[str], None] = lambda message: None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise BadConfigError(f"--world-size is {self.world_size}, expected 1 or more")
        if self.gpus_per_node < 1:
            raise BadConfigError(f"--gpus-per-node is {self.gpus_per_node}, expected 1 or more")
        if not self.script:
            raise BadConfigError("no script given; write it after --, as in: prism emulate --world-size 8 -- train.py")
        if self.script[0] != "-m" and not Path(self.script[0]).is_file():
            raise BadConfigError(f"{self.script[0]}: no such script")


@dataclass(slots=True)
class _Live:
    process: Process
    output: Path
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How much of this machine a run may use; the defaults are without limits."""

    at_once: int = 1 << 30  # ranks that run and do not wait for another
    cpu_s: float = 1e9  # processor time of all ranks, after which the run is stopped
    budget_s: float = 1e9  # wall-clock time, since other programs may keep the processor busy
    most_iterations: int = 0  # 0: as many as the plan asks for
    extra_s: float = 60.0  # for iterations beyond those asked for, to see the repeating unit
    most_live: int = 0  # ranks that others need are started too, up to this many in all; 0: they are not
    lone: bool = False  # a rank that needs another ends
    alike: Callable[[str], str | None] = lambda channel: None  # whose recorded messages answer for a rank not run


class Launcher:
    """Runs live ranks until all of them have left their logs."""

    def __init__(
        self,
        boot: Boot,
        config: LaunchConfig,
        base: RunPlan,
        folder: Path,
        *,
        recording: Recording | None = None,
        peers: Timekeeper | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        self._boot = boot
        self._config = config
        self._base = base
        self._folder = folder
        self._limits = limits or RunLimits()
        self._live: dict[int, _Live] = {}
        self._ended: set[int] = set()
        self._waiting: deque[int] = deque()
        self.gave_up = False
        self.refused: int | None = None  # a rank that was needed beyond the most that may run
        self._cpu_s: dict[int, float] = {}
        self._looked = 0.0
        self._sleep = SleepWatch()
        together = () if config.one_by_one else base.live_ranks
        # Extra iterations are for iterations that are not alike; a run that must end sooner asks for fewer.
        steps = StepLimit(
            base.warmup, base.iterations, self._limits.most_iterations or 4 * base.iterations, self._limits.extra_s
        )
        self._server = ExchangeServer(
            Mailbox(
                together,
                recording,
                lone=self._limits.lone,
                grows=self._limits.most_live > 0,
                alike=self._limits.alike,
            ),
            lambda: not self._waiting,
            peers=peers,
            steps=steps,
            at_once=self._limits.at_once,
        )

    def run(self, ranks: Sequence[int]) -> dict[int, Capture]:
        """Start these ranks and return what each recorded."""
        with self._boot.journals.open() as journal:
            self._base = replace(self._base, journal=journal)
            try:
                if self._config.one_by_one:
                    for rank in ranks:
                        self._start(rank)
                        self._wait_for_all()
                else:
                    self._waiting.extend(ranks)
                    self._wait_for_all()
            finally:
                self._stop_all()
                self._server.close()
        return {rank: read_capture(live.output) for rank, live in sorted(self._live.items()) if live.output.exists()}

    @property
    def recording(self) -> Recording:
        """What passed between live ranks."""
        return self._server.mailbox.recording

    @property
    def started(self) -> dict[int, int | None]:
        """The ranks that ran, and the exit code of each."""
        return {rank: live.process.returncode for rank, live in self._live.items()}

    def fork_of(self, rank: int) -> str:
        """Why a process that the rank forked failed; empty if none did."""
        note = Path(f"{self._live[rank].output}.fork")
        return note.read_text() if note.exists() else ""

    def log_of(self, rank: int) -> str:
        """What a rank printed; empty if it has not begun."""
        log = self._live[rank].log
        return log.read_text(errors="replace") if log.exists() else ""

    def _start(self, rank: int) -> None:
        plan = replace(
            self._base,
            rank=rank,
            output=str(self._folder / f"rank-{rank}.json"),
            address=self._server.address,
            token=self._server.token,
            snapshot=str(self._folder / f"rank-{rank}.snapshot.pickle") if self._base.snapshot else "",
        )
        path = self._folder / f"rank-{rank}.plan.json"
        path.write_text(plan.to_json())
        log = self._folder / f"rank-{rank}.log"
        for old in (log, Path(plan.output)):
            old.unlink(missing_ok=True)
        self._server.started(rank)
        process = self._boot.start(path, log)
        if self._config.pin:
            at_once = min(self._config.world_size, self._config.gpus_per_node)
            os.sched_setaffinity(process.pid, {choose_core(len(self._live), at_once)})
        self._live[rank] = _Live(process, Path(plan.output), log)

    def _start_more(self) -> None:
        """Start waiting ranks while cores are free, those first that others wait for."""
        if self._limits.most_live:
            new = [r for r in self._server.wanted() if r not in self._live and r not in self._waiting]
            if new and len(self._live) + len(self._waiting) + len(new) > self._limits.most_live:
                self.refused = new[0]
            self._waiting.extend(new)
        while self._waiting and self._server.num_moving() < self._limits.at_once:
            wanted = next((r for r in self._server.wanted() if r in self._waiting), None)
            if wanted is None:
                wanted = self._waiting[0]
            self._waiting.remove(wanted)
            self._start(wanted)

    def _wait_for_all(self) -> None:
        began = time.monotonic()
        while True:
            self._start_more()
            running = {r: live.process for r, live in self._live.items() if live.process.poll() is None}
            for rank in set(self._live) - set(running) - self._ended:
                self._ended.add(rank)
                self._server.ended(rank)
            if (not running and not self._waiting) or self.refused is not None:
                return
            if time.monotonic() > self._looked + _LOOK_EVERY_S:
                self._looked = time.monotonic()
                self._check_sleep(self._looked, running)
                if self._is_over_budget(began, running):
                    self.gave_up = True
                    return
            if time.monotonic() - began > self._config.timeout_s:
                slow = min(running)
                raise ScriptError(
                    f"rank {slow} did not finish in {self._config.timeout_s:g} s; the script hangs or needs a longer "
                    "--timeout",
                    self.log_of(slow),
                )
            time.sleep(0.02)

    def _check_sleep(self, now: float, running: dict[int, Process]) -> None:
        """Raise ScriptError if nothing has happened for long and some ranks sleep outside torch.distributed."""
        if self._server.quiet_s() < _QUIET_S:
            self._sleep = SleepWatch()
            return
        self._sleep.look(now, {rank: process.pid for rank, process in running.items()})
        if not self._sleep.all_slept(now, _MOST_SLEEP_S, running):
            return
        asleep = sorted(set(running) - self._server.standing())
        if asleep:
            others = f"; meanwhile {waits}" if (waits := self._server.describe_waits()) else ""
            raise ScriptError(
                f"{name_ranks(asleep)} did nothing for {_MOST_SLEEP_S:g} s and waited for something that is not a call "
                f"of torch.distributed, such as a file, a lock or another process{others}",
                self.log_of(asleep[0]),
            )

    def _is_over_budget(self, began: float, running: dict[int, Process]) -> bool:
        """Whether a run that has a budget used it up, or most of the memory."""
        limits = self._limits
        if limits.budget_s > 1e8:
            return False
        self._cpu_s.update({rank: read_cpu_s(process.pid) for rank, process in running.items()})
        return (
            time.monotonic() - began > limits.budget_s
            or sum(self._cpu_s.values()) > limits.cpu_s
            or _memory_is_scarce()
        )

    def _stop_all(self) -> None:
        for live in self._live.values():
            if live.process.poll() is None:
                live.process.kill()
                live.process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the live ranks of one run recorded, and what passed between them."""

    captures: dict[int, Capture]
    recording: Recording


def read_memory() -> tuple[int, int]:
    """Bytes of memory that this machine has, and those that are free."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemTotal"].split()[0]) * 1024, int(lines["MemAvailable"].split()[0]) * 1024


def _memory_is_scarce() -> bool:
    total, free = read_memory()
    return free < _SCARCE_MEMORY * total


def choose_core(number: int, at_once: int) -> int:
    """The core of the n-th of several pinned processes: spread out, since neighbours are often one core's threads."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[number * max(len(cores) // at_once, 1) % len(cores)]


@contextmanager
def boot_script(config: LaunchConfig, base: RunPlan) -> Iterator[tuple[Boot, Path]]:
    """The script, booted once, and the folder for what its ranks write."""
    for rank in base.live_ranks:
        if not 0 <= rank < config.world_size:
            raise BadConfigError(f"rank {rank} does not exist; the ranks are 0 to {config.world_size - 1}")
    with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
        # Absolute: the ranks know files of the run by their whole path, and the script may change its folder.
        folder = (config.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        journals = Journals(config.folder.parent / "files" if config.folder else None)
        try:
            with journals.open() as journal:
                boot = Boot(config.script, replace(base, journal=journal), folder, journals)
                try:
                    yield boot, folder
                finally:
                    boot.close()
        finally:
            journals.describe(config.note)


def run_ranks(config: LaunchConfig, base: RunPlan, ranks: Sequence[int]) -> Run:
    """Boot the script, run live ranks and return what they recorded."""
    plan = replace(base, live_ranks=tuple(ranks))
    with boot_script(config, plan) as (boot, folder):
        launcher = Launcher(boot, config, plan, folder)
        captures = launcher.run(ranks)
        check_ranks(launcher, captures)
        return Run(captures=captures, recording=launcher.recording)


def check_ranks(launcher: Launcher, captures: dict[int, Capture]) -> None:
    """Raise what stopped the ranks, the cause before its consequences, with the failed rank's own output."""
    missing = sorted(set(launcher.started) - set(captures))
    bad = sorted((c for c in captures.values() if c.status not in ("done", "ended", "needs")), key=lambda c: c.rank)
    # A rank that waits for one that failed is not the cause, so it comes last.
    bad.sort(key=lambda c: (c.status == "hung", c.reason.endswith("which has ended")))
    if missing and not [c for c in bad if c.status != "hung"]:
        code = launcher.started[missing[0]]
        raise ScriptError(
            f"rank {missing[0]} was ended from outside or by itself (exit code {code}) before it left its log",
            launcher.log_of(missing[0]),
        )
    if bad and bad[0].status == "hung":
        raise CallsDifferError(read_problem(bad[0].reason))
    if bad:
        raise ScriptError(_explain(bad[0]), launcher.log_of(bad[0].rank))
    for rank in launcher.started:
        failed = launcher.fork_of(rank)
        if failed:
            raise ScriptError(failed, launcher.log_of(rank))


def _explain(capture: Capture) -> str:
    messages = {
        "crashed": f"rank {capture.rank} failed in the script: {capture.reason}",
        "exited": f"rank {capture.rank} left the script with {capture.reason}",
        "out_of_memory": f"rank {capture.rank} needs more memory than this GPU has: {capture.reason}",
        "unsupported": capture.reason,
    }
    return messages[capture.status]
