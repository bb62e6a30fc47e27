"""What a history of faults would have cost a job: the supervisor's own decisions, driven by a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prism.recover.interval import choose_interval_s
from prism.recover.risks import Risks
from prism.recover.supervise import events
from prism.recover.supervise.actions import Action, Kill, Launch
from prism.recover.supervise.config import ExamineSettings, SuperviseConfig
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.state import JobState, Phase

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A host failed, and was repaired after a while."""

    at_s: float
    host: str
    repair_s: float = _DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasted:
    """A forecast, valid from a moment on: failures per day of each host, and the mean over all hosts."""

    at_s: float
    per_day: Mapping[str, float]
    mean_per_day: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The job, and what saves and restarts cost it."""

    hosts: tuple[str, ...]  # of the fleet, in the order in which a scheduler would take them
    num_hosts: int  # in the job; the others are spares
    end_s: float
    gpus_per_host: int = 8
    save_s: float = 60.0  # for which a save stops the training
    restart_s: float = 600.0  # from the start of an attempt to the first new step
    same_time_s: float = 60.0  # hosts that fail within this time count as one failure
    person_s: float = 3_600.0  # until a person restarts a job that the supervisor stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """How the job saves, and whether it uses the predicted risks of hosts."""

    name: str
    interval_s: float | None = None  # None: chosen from the forecast rate of failures
    place: bool = False  # start on the hosts of least risk; the interval follows the risk of the job's own hosts
    most_risk_per_day: float = 0.0  # above it a host is swapped at the next save


@dataclass(slots=True, kw_only=True)
class Losses:
    """GPU-hours that the job held without progress."""

    policy: str
    total_gpu_h: float = 0.0
    rework_gpu_h: float = 0.0
    saving_gpu_h: float = 0.0
    restart_gpu_h: float = 0.0
    drained_gpu_h: float = 0.0
    failures: int = 0
    swaps: int = 0
    false_swaps: int = 0  # hosts left out that had no fault while they were out
    given_up: int = 0  # times that the supervisor stopped and a person had to start the job again

    @property
    def lost_gpu_h(self) -> float:
        """All GPU-hours lost, including those of hosts while they were left out."""
        return self.rework_gpu_h + self.saving_gpu_h + self.restart_gpu_h + self.drained_gpu_h

    def to_json(self) -> dict[str, Any]:
        """The document form."""
        return {
            "policy": self.policy,
            "goodput": 1.0 - self.lost_gpu_h / self.total_gpu_h if self.total_gpu_h else 1.0,
            "lost_gpu_h": self.lost_gpu_h,
            "rework_gpu_h": self.rework_gpu_h,
            "saving_gpu_h": self.saving_gpu_h,
            "restart_gpu_h": self.restart_gpu_h,
            "drained_gpu_h": self.drained_gpu_h,
            "failures": self.failures,
            "swaps": self.swaps,
            "false_swaps": self.false_swaps,
            "given_up": self.given_up,
        }


def replay(
    faults: Sequence[Fault], forecasts: Sequence[Forecasted], config: ReplayConfig, policy: ReplayPolicy
) -> Losses:
    """Run a job that never ends through a trace of faults; faults and forecasts are in order of time."""
    return _Replay(faults, forecasts, config, policy).run()


class _Replay:
    """One job, its supervisor's state, and the faults that happen to it."""

    def __init__(
        self, faults: Sequence[Fault], forecasts: Sequence[Forecasted], config: ReplayConfig, policy: ReplayPolicy
    ) -> None:
        self.faults, self.forecasts, self.config, self.policy = faults, forecasts, config, policy
        self.settings = SuperviseConfig(
            hosts=HostPolicy(
                hosts=config.hosts, num_hosts=config.num_hosts, most_risk_per_day=policy.most_risk_per_day
            ),
            examine=ExamineSettings(enabled=False),
        )
        self.state = JobState(config=self.settings)
        self.hosts: frozenset[str] = frozenset()
        self.down: dict[str, float] = {}  # hosts that are being repaired, and until when
        self.now_s = self.trained_s = self.since_save_s = 0.0
        self.interval_s = policy.interval_s or 3_600.0
        self.belief: Forecasted | None = None
        self.lost = Losses(policy=policy.name)
        self.gpus = config.num_hosts * config.gpus_per_host

    def run(self) -> Losses:
        moments = sorted(
            [(f.at_s, 0, n) for n, f in enumerate(self.forecasts)] + [(f.at_s, 1, n) for n, f in enumerate(self.faults)]
        )
        begun = False
        for at_s, kind, number in moments:
            if at_s >= self.config.end_s:
                break
            if not begun and at_s > 0.0:
                begun = True
                self._begin()
            if begun:
                self._train_until(at_s)
            if kind == 0:
                self._believe(self.forecasts[number])
            else:
                self._hurt(number)
        if not begun:
            self._begin()
        self._train_until(self.config.end_s)
        self.lost.total_gpu_h = self.config.end_s * self.gpus / 3_600.0
        return self.lost

    def _begin(self) -> None:
        self._follow(self.state.handle(events.Tick(now_s=self.now_s)))

    def _believe(self, forecast: Forecasted) -> None:
        self.belief = forecast
        if self.policy.place:
            self.state.handle(events.RisksRead(now_s=self.now_s, per_day=dict(forecast.per_day)))
        self._set_interval()

    def _set_interval(self) -> None:
        if self.policy.interval_s is not None or self.belief is None:
            return
        per_day = self.belief.mean_per_day * self.config.num_hosts
        if self.policy.place and self.hosts:
            risks = Risks(per_day=dict(self.belief.per_day))
            per_day = sum(risks.of(host) for host in self.hosts)
        mtbf_s = _DAY_S / max(per_day, 1e-9)
        self.interval_s = choose_interval_s(self.config.save_s, mtbf_s)

    def _train_until(self, end_s: float) -> None:
        """Train and save; a save may make the supervisor swap a host, which costs a restart."""
        while self.now_s < end_s and self.state.phase is Phase.RUNNING:
            left_s = self.interval_s + self.config.save_s - self.since_save_s
            if self.now_s + left_s > end_s:
                self.since_save_s += end_s - self.now_s
                self.now_s = end_s
                return
            self.now_s += max(left_s, 0.0)
            self.trained_s += self.interval_s
            self.since_save_s = 0.0
            self.lost.saving_gpu_h += self.config.save_s * self.gpus / 3_600.0
            if not self._may_swap():
                self._skip_saves(end_s)
                continue
            step = int(self.trained_s)
            self.state.handle(events.StepDone(now_s=self.now_s, step=step))
            decided = self.state.handle(events.Saved(now_s=self.now_s, step=step, healthy=True))
            if any(isinstance(action, Kill) for action in decided):
                self._count_swap()
                self._follow(self.state.handle(events.Exited(now_s=self.now_s, code=0, host=None, lost=False)))

    def _may_swap(self) -> bool:
        return bool(self.policy.most_risk_per_day and self.state.per_day)

    def _skip_saves(self, end_s: float) -> None:
        """Count at once the saves at which nothing can be decided."""
        cycle_s = self.interval_s + self.config.save_s
        number = int((end_s - self.now_s) // cycle_s)
        self.now_s += number * cycle_s
        self.trained_s += number * self.interval_s
        self.lost.saving_gpu_h += number * self.config.save_s * self.gpus / 3_600.0
        step = int(self.trained_s)
        self.state.handle(events.StepDone(now_s=self.now_s, step=step))
        self.state.handle(events.Saved(now_s=self.now_s, step=step, healthy=True))

    def _count_swap(self) -> None:
        self.lost.swaps += 1
        host, until_s = max(
            (
                (h, r.cordoned_until_s or 0.0)
                for h, r in self.state.book.records.items()
                if r.own_choice and h in self.hosts
            ),
            key=lambda pair: pair[1],
        )
        self.lost.drained_gpu_h += (until_s - self.now_s) * self.config.gpus_per_host / 3_600.0
        self.lost.false_swaps += not any(f.host == host and self.now_s <= f.at_s <= until_s for f in self.faults)

    def _hurt(self, number: int) -> None:
        """A host fails, with all hosts that fail at about the same time. A job that holds one of them is restarted."""
        fault = self.faults[number]
        if self.down.get(fault.host, 0.0) >= fault.at_s + fault.repair_s:
            return  # already counted with the hosts that failed at the same time
        for other in self.faults[number:]:
            if other.at_s > max(fault.at_s, self.now_s) + self.config.same_time_s:
                break
            self._take_down(other.host, other.at_s + other.repair_s)
        if fault.host in self.hosts and self.state.phase is Phase.RUNNING:
            self._fail(fault.host)

    def _take_down(self, host: str, until_s: float) -> None:
        """The scheduler offers a host to nobody until it is repaired."""
        self.down[host] = max(until_s, self.down.get(host, 0.0))
        record = self.state.book.record(host)
        record.cordoned_until_s = max(record.cordoned_until_s or 0.0, self.down[host])

    def _fail(self, host: str) -> None:
        self.lost.failures += 1
        self.lost.rework_gpu_h += self.since_save_s * self.gpus / 3_600.0
        self.state.handle(events.StepDone(now_s=self.now_s, step=int(self.trained_s + self.since_save_s)))
        self.since_save_s = 0.0
        self._follow(self.state.handle(events.Exited(now_s=self.now_s, code=1, host=host, lost=True)))

    def _follow(self, decided: list[Action]) -> None:
        """Let time pass until the supervisor has launched the job again, on hosts that are up."""
        while True:
            launch = next((action for action in decided if isinstance(action, Launch)), None)
            if launch is None:
                if self.state.over:
                    self.lost.given_up += 1
                    self._lose(self.config.person_s)
                    self.state = JobState(config=self.settings, book=self.state.book, per_day=self.state.per_day)
                    decided = self.state.handle(events.Tick(now_s=self.now_s))
                    continue
                wait_s = max(self.state.due_s - self.now_s, 1.0)
                self._lose(wait_s)
                decided = self.state.handle(events.Tick(now_s=self.now_s))
                continue
            self.hosts = frozenset(launch.hosts)
            self._set_interval()
            self._lose(self.config.restart_s)
            for host, until_s in self.down.items():  # the supervisor's own cordon may be shorter than the repair
                if until_s > self.now_s:
                    self._take_down(host, until_s)
            return

    def _lose(self, seconds: float) -> None:
        self.now_s += seconds
        self.lost.restart_gpu_h += seconds * self.gpus / 3_600.0
