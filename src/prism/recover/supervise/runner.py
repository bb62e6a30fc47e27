"""The loop of the supervisor: collects events, hands them to the state, saves its decisions and performs them."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prism.errors import InputError, PrismError
from prism.machine.requests import Receiver, check_url
from prism.machine.sender import Sender
from prism.recover.catalog import Catalog
from prism.recover.isolate.report import IsolationReport
from prism.recover.progress import MEMORY_PREFIX, RunOrders, attempt_dir
from prism.recover.risks import NODE_MTBF, Risks, read_risks
from prism.recover.supervise import actions, events
from prism.recover.supervise.clock import RunClock
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.explainer import Explainer, explain_logs
from prism.recover.supervise.journal import Journal, Snapshot, describe
from prism.recover.supervise.launchers import Launcher, LaunchPlan, Look, is_killed, no_hurry
from prism.recover.supervise.launchers.node import find_ranks, send
from prism.recover.supervise.recorder import ask_for_dumps, recorder_variables
from prism.recover.supervise.saved_files import find_saved
from prism.recover.supervise.stacks import take_stacks
from prism.recover.supervise.standstill import Standstill, look_twice
from prism.recover.supervise.state import Cause, JobState, Phase
from prism.recover.supervise.watch import Watch, find_frozen_host

# Saved although they lead to no action: `prism supervise status` shows them.
_MILESTONES = (events.Launched, events.Saved, events.Restored)
Examiner = Callable[[tuple[str, ...], Launcher], IsolationReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the runner acts with; tests replace it."""

    launcher: Launcher
    explainer: Explainer = field(default=explain_logs)
    investigate: Callable[[Path], object] = field(default=lambda folder: None)
    examiner: Examiner | None = None
    look: Callable[[Callable[[], list[int]]], Standstill] = field(default=look_twice)
    stop_asked: Callable[[], bool] = field(default=lambda: False)  # True once per request
    hurry: Callable[[], bool] = field(default=no_hurry)  # a further request while the job saves
    say: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


class Supervisor:
    """One run: from the command to its end, over any number of attempts and supervisors."""

    def __init__(self, run_dir: Path, command: tuple[str, ...], config: SuperviseConfig, tools: Tools) -> None:
        self.run_dir = run_dir.resolve()
        self.command = command
        self.config = config
        self.tools = tools
        self.journal = Journal(self.run_dir)
        found = self.journal.load(config)
        self.clock = RunClock(found.clock if found else None)
        self.state = found.state if found else JobState(config=config)
        self._complaint = ""
        self._pages = self._open_pages()
        self._failed_at: tuple[int, float] | None = None  # the attempt, and when we saw its first host fail
        self._risks_ns = -1  # modification time of the file of risks that was read last
        self._pending: list[actions.Action] = found.pending if found else []
        self._watch = Watch(self._folder, found.read_bytes if found else 0, self.state.last_step)
        if found is not None and not self.state.over:
            self.tools.say(f"continuing: attempt {self.state.attempt}, {self.state.phase}, {self.state.place}")

    def take_up(self) -> None:
        """Start another attempt of a run that is over."""
        self._perform()  # actions that its end left undone
        self._take(events.TakenUp(now_s=self.clock.now_s()))

    def run(self) -> JobState:
        """Supervise until the run is over."""
        try:
            self._perform()
            while not self.state.over:
                self.poll()
                if not self.state.over:
                    time.sleep(self.config.poll_s)
        finally:
            self.close()
        return self.state

    def close(self) -> None:
        """End the journal, and wait a little for a receiver that is away; what it does not take waits on disk."""
        self.journal.close()
        if self._pages is not None:
            self._pages.close()
            if self._pages.num_waiting:
                self.tools.say(f"{self._pages.num_waiting} messages wait in {self.run_dir} for the webhook")

    def relay(self, number: int) -> None:
        """Pass a signal on to the ranks on this machine."""
        send(find_ranks(self.tools.launcher.pids(self._folder)), number)

    def poll(self) -> None:
        """Collect and handle all new events once."""
        if self._pending:
            self._perform()  # actions that a full disk delayed
            if self._pending:
                return
        if self.tools.stop_asked():
            self._take(events.StopAsked(now_s=self.clock.now_s()))
        self._read_risks()
        for event in self._seen():
            self._take(event)
        self._take(events.Tick(now_s=self.clock.now_s()))

    def _read_risks(self) -> None:
        """Read the file of risks if it has changed; if it cannot be read, the known risks stay."""
        if not self.config.risk:
            return
        path = Path(self.config.risk)
        try:
            changed_ns = path.stat().st_mtime_ns
            if changed_ns == self._risks_ns:
                return
            self._risks_ns = changed_ns
            self._take(events.RisksRead(now_s=self.clock.now_s(), per_day=read_risks(path).per_day))
        except (OSError, InputError) as error:
            self._complain(f"risks not read ({error}); the known risks stay in use")

    @property
    def _folder(self) -> Path:
        return attempt_dir(self.run_dir, self.state.attempt)

    def _seen(self) -> Iterator[events.Event]:
        if self.state.phase not in (Phase.RUNNING, Phase.STOPPING):
            return
        # The status comes before the reports, so that the last reports of an attempt that ends are not missed.
        look = self.tools.launcher.look(self._folder)
        if look.queued:
            yield events.Queued(now_s=self.clock.now_s())
        if look.hosts and look.hosts != self.state.hosts:
            yield events.Launched(now_s=self.clock.now_s(), hosts=look.hosts)
        attempt = self.state.attempt
        for event in self._watch.poll(self.clock.now_s()):
            yield event
            if self.state.attempt != attempt or self.state.over:
                return
        if not look.running and self.state.phase in (Phase.RUNNING, Phase.STOPPING) and self._has_settled(look):
            # The supervisor itself ended a hung attempt, so the host to blame is the first that fell silent.
            hung = self.state.cause is Cause.HANG
            host = find_frozen_host(self._folder) if hung else look.first_failed
            saved = "" if look.code == 0 or self.state.pace.reports else self._find_saved()
            yield events.Exited(now_s=self.clock.now_s(), code=look.code, host=host, lost=look.lost, saved=saved)

    def _find_saved(self) -> str:
        launched_s = time.time() - (self.clock.now_s() - self.state.launched_s)
        return find_saved(Path.cwd(), launched_s, without=self.run_dir)

    def _has_settled(self, look: Look) -> bool:
        """Whether the other hosts have ended or had time to. The first host to end is often not the cause."""
        if look.lost or look.ended or is_killed(look.code) or self.state.phase is Phase.STOPPING:
            return True
        if look.first_failed not in self.state.hosts or set(self.state.hosts) <= set(look.codes):
            return True
        attempt, now_s = self.state.attempt, self.clock.now_s()
        if self._failed_at is None or self._failed_at[0] != attempt:
            self._failed_at = (attempt, now_s)
        return now_s - self._failed_at[1] >= self.config.launch.settle_s

    def _take(self, event: events.Event) -> None:
        """Decide; write the decision down; only then act."""
        decided = self.state.handle(event)
        if not decided:
            if isinstance(event, _MILESTONES):
                self._commit()
            return
        self._pending = [*self._pending, *decided]
        self._commit()
        with contextlib.suppress(OSError):  # already reported if the state could not be written either
            self.journal.tell(event, decided)
        for action in decided:
            self.tools.say(describe(action))
        self._perform()

    def _perform(self) -> None:
        """Perform the pending actions in order, and save after each that it is done."""
        while self._pending:
            action, *rest = self._pending
            try:
                follow_up = self._act(action)
            except OSError as error:
                # Mostly a full disk. The job runs on, and the action is tried again.
                self._complain(f"cannot {type(action).__name__.lower()} ({error}); trying again")
                return
            self._pending = rest
            if follow_up is None:
                self._commit()
            else:
                # One write marks the action as done and holds what follows from it. With two, a crash in between would
                # lose the answer, and the run would wait for it for ever.
                self._take(follow_up)

    def _commit(self) -> None:
        snapshot = Snapshot(
            state=self.state, pending=self._pending, clock=self.clock.mark(), read_bytes=self._watch.read_bytes
        )
        try:
            self.journal.commit(snapshot)
        except OSError as error:
            self._complain(
                f"{self.run_dir}: state not written ({error.strerror}); the job runs on; check that there is space"
            )
        else:
            self._complaint = ""

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self.tools.say(text)
            self._notify("page", text)

    def _act(self, action: actions.Action) -> events.Event | None:
        launcher = self.tools.launcher
        match action:
            case actions.Launch():
                return self._launch(action)
            case actions.Kill():
                launcher.stop(attempt_dir(self.run_dir, action.attempt), action.grace_s, self.tools.hurry)
            case actions.TakeStacks():
                folder = attempt_dir(self.run_dir, action.attempt)
                ask_for_dumps(folder)
                take_stacks(launcher.pids(folder), folder / "stacks.txt")
            case actions.LookClosely():
                found = self.tools.look(partial(launcher.pids, attempt_dir(self.run_dir, action.attempt)))
                return events.Looked(
                    now_s=self.clock.now_s(),
                    attempt=action.attempt,
                    moved=found.moved,
                    outside=found.outside,
                    text=found.text,
                )
            case actions.Explain():
                folder = attempt_dir(self.run_dir, action.attempt)
                verdict = self.tools.explainer(folder, action.code)
                self.tools.investigate(folder)
                return events.Explained(now_s=self.clock.now_s(), verdict=verdict)
            case actions.Examine():
                return self._examine(action)
            case actions.Cordon():
                launcher.cordon(action.host, action.reason)
            case actions.Uncordon():
                launcher.uncordon(action.host)
            case actions.DiscardAfter():
                Catalog(Path(action.folder)).discard_after(action.step)
            case actions.Notify():
                self._notify(action.level, action.text)
            case actions.Finish():
                self._notify("info" if action.outcome == "done" else "page", f"{action.outcome}: {action.text}")
                if Path(action.memory).name.startswith(MEMORY_PREFIX):  # the path came from the trainer
                    shutil.rmtree(action.memory, ignore_errors=True)
        return None

    def _launch(self, action: actions.Launch) -> events.Event:
        folder = attempt_dir(self.run_dir, action.attempt)
        orders = RunOrders(
            run_dir=self.run_dir,
            attempt=action.attempt,
            resume_step=action.resume_step,
            skip=action.skip,
            num_failures=len(self.state.failures),
            uptime_s=self.clock.now_s(),
        )
        plan = LaunchPlan(
            command=self.command,
            orders=orders,
            folder=folder,
            hosts=action.hosts,
            num_hosts=action.num_hosts,
            excluded=action.excluded,
            variables={
                **recorder_variables(folder),
                **self.config.checkpoint.variables(self.run_dir),
                **self._tell_risk(action.hosts),
            },
        )
        hosts = self.tools.launcher.start(plan)
        self.tools.say(f"{'output':8} {folder}/*.log")
        self._watch = Watch(folder)
        return events.Launched(now_s=self.clock.now_s(), hosts=hosts)

    def _tell_risk(self, hosts: tuple[str, ...]) -> dict[str, str]:
        """The variable by which the trainer's save interval follows the risk of its hosts."""
        node_s = Risks(per_day=self.state.per_day).node_mtbf_s(hosts)
        return {} if node_s is None else {NODE_MTBF: f"{node_s:.0f}"}

    def _examine(self, action: actions.Examine) -> events.Event:
        if self.tools.examiner is None:
            return events.Examined(now_s=self.clock.now_s(), condemned=(), error="no host test is set up")
        try:
            report = self.tools.examiner(action.hosts, self.tools.launcher)
        except PrismError as error:
            return events.Examined(now_s=self.clock.now_s(), condemned=(), error=str(error))
        return events.Examined(
            now_s=self.clock.now_s(),
            condemned=report.condemned,
            slow=report.slow,
            bad_links=tuple((link.first, link.second) for link in report.bad_links),
            num_tests=report.num_tests,
            note=report.advice,
        )

    def _notify(self, level: str, text: str) -> None:
        if self._pages is not None:
            self._pages.send("webhook", {"run": str(self.run_dir), "level": level, "text": text})

    def _open_pages(self) -> Sender | None:
        """What tells people, if they are told; its queue lies in the run folder and outlives the supervisor."""
        if not self.config.webhook:
            return None
        receiver = Receiver(name="webhook", url=check_url(self.config.webhook, "webhook"))
        said: set[str] = set()

        def tell(receiver: str, why: str) -> None:
            if why and why not in said:
                said.add(why)
                self.tools.say(f"webhook {why}; the message waits in {self.run_dir} and is tried again")

        return Sender((receiver,), self.run_dir / "pages.sqlite", on_outcome=tell)
