"""Start the live ranks of a script as torchrun would, and gather what each recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prism.emulate.capture import Capture, read_capture
from prism.emulate.exchange_server import ExchangeServer, Posts, Timekeeper
from prism.emulate.inside.plan import PLAN_VARIABLE, RunPlan
from prism.errors import BadConfigError, PrismError


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

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise BadConfigError(f"--world-size is {self.world_size}, expected 1 or more")
        if self.gpus_per_node < 1:
            raise BadConfigError(f"--gpus-per-node is {self.gpus_per_node}, expected 1 or more")
        if not self.script:
            raise BadConfigError("no script given; write it after --, as in: prism emulate --world-size 8 -- train.py")
        if self.script[0] != "-m" and not Path(self.script[0]).is_file():
            raise BadConfigError(f"{self.script[0]}: no such script")


class ScriptError(PrismError):
    """The user's script failed; its own output was shown before."""


@dataclass(slots=True)
class _Live:
    process: subprocess.Popen[bytes]
    output: Path
    log: Path


class Launcher:
    """Runs live ranks until all of them have left their logs."""

    def __init__(
        self, config: LaunchConfig, base: RunPlan, folder: Path, posts: Posts | None, peers: Timekeeper | None = None
    ) -> None:
        self._config = config
        self._base = base
        self._folder = folder
        self._lock = threading.Lock()
        self._live: dict[int, _Live] = {}
        self._server = ExchangeServer(self._start_on_demand, base.exchange_timeout_s, posts, peers)
        self._refused: int | None = None

    def run(self, ranks: Sequence[int]) -> dict[int, Capture]:
        """Start these ranks, and those they turn out to need; returns what each recorded."""
        try:
            for rank in ranks:
                self._start(rank)
                if self._config.one_by_one:
                    self._wait_for_all()
            self._wait_for_all()
        finally:
            self._stop_all()
            self._server.close()
        if self._refused is not None:
            raise BadConfigError(
                f"rank {self._refused} is needed too, which makes more than {self._config.max_live} live ranks; "
                "raise --max-live or name representatives with --ranks"
            )
        return {rank: read_capture(live.output) for rank, live in sorted(self._live.items()) if live.output.exists()}

    @property
    def posts(self) -> Posts:
        """What passed between live ranks."""
        return self._server.posts

    @property
    def started(self) -> dict[int, int | None]:
        """The ranks that ran, and the exit code of each."""
        return {rank: live.process.returncode for rank, live in self._live.items()}

    def fork_of(self, rank: int) -> str:
        """Why a fork of the rank failed; empty where none did."""
        note = Path(f"{self._live[rank].output}.fork")
        return note.read_text() if note.exists() else ""

    def log_of(self, rank: int) -> str:
        """What a rank printed."""
        return self._live[rank].log.read_text(errors="replace")

    def _start_on_demand(self, rank: int) -> bool:
        if not 0 <= rank < self._config.world_size:
            return False
        with self._lock:
            if rank in self._live:
                return True
            if len(self._live) >= self._config.max_live or not self._base.discover:
                self._refused = rank if self._base.discover else None
                return False
        self._start(rank)
        return True

    def _start(self, rank: int) -> None:
        with self._lock:
            if rank in self._live:
                return
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
            self._server.started(rank)
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-m", "prism.emulate.inside.entry", *self._config.script],
                    env=_environment(path),
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            if self._config.pin:
                at_once = min(self._config.world_size, self._config.gpus_per_node)
                os.sched_setaffinity(process.pid, {choose_core(len(self._live), at_once)})
            self._live[rank] = _Live(process, Path(plan.output), log)

    def _wait_for_all(self) -> None:
        until = time.monotonic() + self._config.timeout_s
        ended: set[int] = set()
        while True:
            with self._lock:
                running = {r: live.process for r, live in self._live.items() if live.process.poll() is None}
                over = set(self._live) - set(running) - ended
            for rank in over:
                self._server.ended(rank)
            ended |= over
            if not running:
                return
            if self._refused is not None:
                return
            if time.monotonic() > until:
                slow = min(running)
                sys.stderr.write(self.log_of(slow))
                raise ScriptError(
                    f"rank {slow} did not finish in {self._config.timeout_s:g} s; the script hangs or needs a longer "
                    "--timeout"
                )
            time.sleep(0.02)

    def _stop_all(self) -> None:
        for live in self._live.values():
            if live.process.poll() is None:
                live.process.kill()
                live.process.wait()


@dataclass(frozen=True, slots=True)
class Run:
    """What the live ranks of one run recorded, and the messages that passed between them."""

    captures: dict[int, Capture]
    posts: Posts


def choose_core(number: int, at_once: int) -> int:
    """The core of the n-th of several pinned processes: spread out, since neighbours are often one core's threads."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[number * max(len(cores) // at_once, 1) % len(cores)]


def run_ranks(config: LaunchConfig, base: RunPlan, ranks: Sequence[int], posts: Posts | None = None) -> Run:
    """Run live ranks and return what they recorded; a failure shows the user's own words first.

    With the `posts` of an earlier run, ranks that are not there are answered for from that recording.
    """
    for rank in ranks:
        if not 0 <= rank < config.world_size:
            raise BadConfigError(f"rank {rank} does not exist; the ranks are 0 to {config.world_size - 1}")
    with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
        folder = config.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        launcher = Launcher(config, base, folder, posts)
        captures = launcher.run(ranks)
        _check(launcher, captures)
        return Run(captures, launcher.posts)


def _check(launcher: Launcher, captures: dict[int, Capture]) -> None:
    missing = sorted(set(launcher.started) - set(captures))
    bad = sorted((c for c in captures.values() if c.status not in ("done", "ended")), key=lambda c: c.rank)
    # A rank that waits in vain is the victim of another that failed: the cause is shown, not the victim.
    bad.sort(key=lambda c: c.status == "hung")
    if missing and not [c for c in bad if c.status != "hung"]:
        rank = missing[0]
        code = launcher.started[rank]
        sys.stderr.write(launcher.log_of(rank))
        raise ScriptError(f"rank {rank} was ended from outside or by itself (exit code {code}) before it left its log")
    if bad:
        sys.stderr.write(launcher.log_of(bad[0].rank))
        raise ScriptError(_explain(bad[0]))
    for rank in launcher.started:
        failed = launcher.fork_of(rank)
        if failed:
            sys.stderr.write(launcher.log_of(rank))
            raise ScriptError(failed)


def _explain(capture: Capture) -> str:
    told = {
        "crashed": f"rank {capture.rank} failed in the script: {capture.reason}",
        "exited": f"rank {capture.rank} left the script with {capture.reason}",
        "out_of_memory": f"rank {capture.rank} needs more memory than this GPU has: {capture.reason}",
        "unsupported": capture.reason,
        "hung": f"this would hang on a cluster: {capture.reason}",
    }
    return told[capture.status]


def _environment(plan: Path) -> dict[str, str]:
    environment = {**os.environ, PLAN_VARIABLE: str(plan)}
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return environment
