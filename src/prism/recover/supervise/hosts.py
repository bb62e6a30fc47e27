"""Which hosts to use: a host that fails is taken out of use for a time that grows with every failure."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.recover.risks import Risks

_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """Hosts to run on and how they are taken out of use."""

    hosts: tuple[str, ...] = ()  # empty: the launcher chooses
    num_hosts: int | None = None  # hosts in the job; the others are spares. None: all
    min_hosts: int | None = None  # continue with fewer if no spare is left; None: wait
    strikes: int = 2  # failures that began on a host, within the window, after which this run leaves it out
    strike_window_h: float = 24.0
    cordon_h: float = 2.0  # the first time
    # In InfiniteHBD's trace 83.6 % of faults fall on nodes that fail more than once: the time out of use grows.
    repeat_factor: float = 4.0
    max_cordon_h: float = 168.0
    most_risk_per_day: float = 0.0  # with --risk: above it a host is swapped at the next save; 0: never


@dataclass(slots=True, kw_only=True)
class HostRecord:
    """The failures of one host and how long it is out of use."""

    strikes_s: list[float] = field(default_factory=list)
    cordoned_until_s: float | None = None
    num_cordons: int = 0
    reasons: list[str] = field(default_factory=list)
    own_choice: bool = False  # left out by this run only; the scheduler was not notified


@dataclass(slots=True, kw_only=True)
class HostBook:
    """The records of all hosts seen."""

    records: dict[str, HostRecord] = field(default_factory=dict)

    def record(self, host: str) -> HostRecord:
        """The record of a host; created if there is none."""
        return self.records.setdefault(host, HostRecord())

    def strike(self, host: str, now_s: float, policy: HostPolicy) -> bool:
        """Note that a failure began on a host; True if the host is now to be left out."""
        record = self.record(host)
        oldest = now_s - policy.strike_window_h * _HOUR_S
        record.strikes_s = [*(s for s in record.strikes_s if s >= oldest), now_s]
        # A host that was cordoned before is left out after its first new failure.
        return len(record.strikes_s) >= (1 if record.num_cordons else policy.strikes)

    def cordon(self, host: str, now_s: float, reason: str, policy: HostPolicy) -> float:
        """Take a host out of use; returns for how many hours."""
        record = self.record(host)
        hours = min(policy.max_cordon_h, policy.cordon_h * policy.repeat_factor**record.num_cordons)
        record.cordoned_until_s = now_s + hours * _HOUR_S
        record.num_cordons += 1
        record.strikes_s = []
        record.reasons.append(reason)
        return hours

    def exclude(self, host: str, now_s: float, reason: str, policy: HostPolicy) -> float:
        """Leave a host out of this run only; returns for how many hours, 0 if the other hosts do not suffice."""
        others = tuple(h for h in policy.hosts if h != host and h not in self.cordoned())
        if policy.hosts and len(others) < (policy.min_hosts or policy.num_hosts or len(policy.hosts)):
            return 0.0
        hours = self.cordon(host, now_s, reason, policy)
        self.record(host).own_choice = True
        return hours

    def expire(self, now_s: float) -> list[str]:
        """End the time of hosts that is over; returns those that the scheduler must release."""
        back = [h for h, r in self.records.items() if r.cordoned_until_s is not None and r.cordoned_until_s <= now_s]
        told = [host for host in back if not self.records[host].own_choice]
        for host in back:
            self.records[host].cordoned_until_s, self.records[host].own_choice = None, False
        return told

    def cordoned(self) -> tuple[str, ...]:
        """Hosts out of use now."""
        return tuple(h for h, r in self.records.items() if r.cordoned_until_s is not None)

    def next_expiry_s(self) -> float | None:
        """When the next host comes back."""
        times = [r.cordoned_until_s for r in self.records.values() if r.cordoned_until_s is not None]
        return min(times, default=None)

    def choose(
        self, current: tuple[str, ...], policy: HostPolicy, risks: Risks | None = None
    ) -> tuple[str, ...] | None:
        """Hosts for the next attempt: those in use stay, spares with the cleanest record and least risk fill in.

        None: too few are left.
        """
        place = {host: number for number, host in enumerate(policy.hosts)}
        per_day = {host: risks.of(host) for host in policy.hosts} if risks is not None and risks.per_day else {}
        out = set(self.cordoned())
        usable = [h for h in policy.hosts if h not in out]
        wanted = policy.num_hosts or len(policy.hosts)
        kept = [h for h in current if h in place and h not in out]
        running = set(kept)
        spares = sorted(
            (h for h in usable if h not in running),
            key=lambda h: (self._count_marks(h), per_day.get(h, 0.0), place[h]),
        )
        if per_day:
            kept, spares = _swap_risky(kept, spares, per_day)
        chosen = [*kept, *spares][:wanted]
        if len(chosen) < (policy.min_hosts or wanted):
            return None
        return tuple(sorted(chosen, key=lambda host: place[host]))

    def _count_marks(self, host: str) -> tuple[int, int]:
        record = self.records.get(host)
        return (record.num_cordons, len(record.strikes_s)) if record is not None else (0, 0)


def _swap_risky(kept: list[str], spares: list[str], per_day: dict[str, float]) -> tuple[list[str], list[str]]:
    """Replace hosts that are predicted to fail at least twice as often as a spare."""
    worst = sorted(kept, key=lambda host: -per_day[host])
    safest = sorted(spares, key=lambda host: per_day[host])
    pairs = [(a, b) for a, b in zip(worst, safest, strict=False) if per_day[a] > 2.0 * per_day[b]]
    out, into = {a for a, _ in pairs}, [b for _, b in pairs]
    taken = set(into)
    return [*(h for h in kept if h not in out), *into], [*(h for h in spares if h not in taken), *out]
