"""Which job starts where: events in, decisions out; without clock, files or access to clusters."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from prism.datacenter.place.clusters import Cluster, Job, run_s, transfer_s
from prism.datacenter.place.events import ClusterBack, ClusterLost, Decision, Event, Finished, Move, Start, Submitted
from prism.datacenter.place.policies import Policy
from prism.datacenter.place.queues import Kind, Queue, Waiting
from prism.datacenter.place.run_times import Expected, RunTimes
from prism.datacenter.place.sites import Running, Site, open_site
from prism.errors import BadConfigError


class Scheduler:
    """Clusters with their waiting and running jobs."""

    def __init__(self, clusters: Sequence[Cluster], policy: Policy) -> None:
        if policy.reach == "pool":
            clusters = [Cluster(name="pool", gpus=sum(c.gpus for c in clusters))]
        self.policy = policy
        self.times = RunTimes()
        self.num_waiting = 0
        self.free_gpus = sum(c.gpus for c in clusters)
        self.waiting_sizes: dict[int, int] = {}  # jobs that wait, by GPUs
        self.sites = {c.name: open_site(c) for c in clusters}
        self._weights = {c.name: c.weight for c in clusters}
        # If clusters are equal and data is everywhere, all clusters with room are equally good.
        self._alike = len({(c.speed, c.failures_per_gpu_day, c.bytes_per_s > 0) for c in clusters}) <= 1 and not any(
            c.bytes_per_s for c in clusters
        )
        self._by_owner = policy.fair or any(c.quotas for c in clusters)
        self._everyone = Queue()
        self._running: dict[str, Running] = {}
        self._expected: dict[str, Expected] = {}
        self._due: list[tuple[float, str]] = []  # the expected end of each running job
        self._usage: dict[str, float] = {}  # GPU seconds by home, grown by the half-life so that all decay alike
        self._number = 0

    def handle(self, event: Event) -> list[Decision]:
        """The decisions that follow from an event."""
        self._count_overdue(event.now_s)
        match event:
            case Submitted():
                return self._submit(event.job, event.now_s)
            case Finished():
                return self._finish(event.job_id, event.now_s)
            case ClusterLost() | ClusterBack():
                self.sites[event.cluster].up = isinstance(event, ClusterBack)
        return [found for site in self.sites.values() for found in self._fill(site, event.now_s)]

    def fits(self, job: Job) -> bool:
        """Whether a job can ever start under this policy."""
        if self.policy.reach == "home":
            return job.home in self.sites and self.sites[job.home].can_hold(job)
        return any(site.can_hold(job) for site in self.sites.values())

    def adopt(self, job: Job, cluster: str, now_s: float, *, elapsed_s: float, left_s: float | None) -> None:
        """Add a job that already runs; if its remaining time is unknown, it is estimated from similar jobs."""
        expected = self.times.expect(job)
        end_s = now_s + max(0.0, expected.seconds - elapsed_s if left_s is None else left_s)
        self._expected[job.id] = expected
        site = self.sites[cluster]
        if job.gpus <= site.free:
            self._occupy(job, site, now_s, now_s - elapsed_s, end_s)

    def adopt_waiting(self, job: Job, cluster: str, now_s: float) -> None:
        """Add a job that waits in a cluster's own queue; this scheduler does not start it."""
        site, expected = self.sites[cluster], self.times.expect(job)
        site.own += 1
        site.waiting_gpu_s += expected.seconds * job.gpus

    def expected_start_s(self, site: Site, job: Job, now_s: float) -> float:
        """When a job submitted now would start on a cluster, after the jobs that wait there."""
        if site.has_room(job) and not site.own:
            return now_s
        start_s, _ = site.promise(job.gpus, now_s)
        return start_s + site.waiting_gpu_s / site.cluster.gpus

    def _submit(self, job: Job, now_s: float) -> list[Decision]:
        if not self.fits(job):
            raise BadConfigError(explain_misfit(job, [site.cluster for site in self.sites.values()]))
        waiting = self._enqueue(job, now_s)
        site = self.sites[waiting.site]
        decided = self._fill(site, now_s)
        if waiting.started or not self.policy.shares:
            return decided
        for other in self._with_room(job, now_s):
            decided += self._fill(other, now_s)
            if waiting.started:
                break
        return decided

    def _enqueue(self, job: Job, now_s: float) -> Waiting:
        expected, site = self.times.expect(job), self._choose_queue(job)
        key = now_s + min(self.policy.short_first_s, expected.seconds)
        if job.deadline_s is not None:
            key = min(key, job.deadline_s - expected.seconds)
        waiting = Waiting(
            job=job,
            number=self._number,
            expected=expected,
            since_s=now_s,
            site=site.cluster.name,
            order=(-job.priority, key, self._number),
        )
        self._number += 1
        owner = (job.home if self.policy.fair else job.user) if self._by_owner else ""
        if job.deadline_s is not None:
            owner = f"{owner} {waiting.number}"  # ordered by its deadline, not by its arrival
        length = int(expected.seconds).bit_length() if self.policy.backfill else 0
        kind: Kind = (-job.priority, job.gpus, length, job.kind, job.one_leaf, owner)
        site.queue.push(waiting, kind)
        site.own += 1
        site.waiting_gpu_s += expected.seconds * job.gpus
        self.num_waiting += 1
        self.waiting_sizes[job.gpus] = self.waiting_sizes.get(job.gpus, 0) + 1
        if self.policy.shares:
            self._everyone.push(waiting, kind)
        return waiting

    def _with_room(self, job: Job, now_s: float) -> list[Site]:
        """Clusters where a job could start now: the one where it would end first, or else the one with most room."""
        able = [site for site in self.sites.values() if site.free >= job.gpus and site.has_room(job)]
        if self._alike:
            return sorted(able, key=lambda site: -site.free)
        return sorted(able, key=lambda site: (self._end_s(site, job, now_s), -site.free))

    def _end_s(self, site: Site, job: Job, start_s: float) -> float:
        return start_s + transfer_s(job, site.cluster) + run_s(job, site.cluster, self.times.expect(job).seconds)

    def _choose_queue(self, job: Job) -> Site:
        home = self.sites.get(job.home)
        if self.policy.reach == "pool":
            return self.sites["pool"]
        if home is not None and self.policy.reach != "chosen" and home.can_hold(job):
            return home
        able = [site for site in self.sites.values() if site.can_hold(job)]
        return min(able, key=lambda s: (s.waiting_gpu_s / s.cluster.gpus, -s.free / s.cluster.gpus))

    def _finish(self, job_id: str, now_s: float) -> list[Decision]:
        running = self._running.pop(job_id, None)
        if running is None:
            return []  # reported twice, or started by another program
        site = self.sites[running.site]
        site.give(running)
        self.free_gpus += running.job.gpus
        expected, seconds = self._expected.pop(job_id), now_s - running.started_s
        if not running.learned:
            self.times.learn(running.job, expected, seconds * site.cluster.speed)
        if self.policy.fair:
            self._use(running.job, seconds - expected.seconds, now_s)
        return self._fill(site, now_s)

    def _count_overdue(self, now_s: float) -> None:
        """Learn from jobs that exceed their expected run time at that moment, not when they end."""
        while self._due and self._due[0][0] < now_s:
            end_s, job_id = heapq.heappop(self._due)
            running = self._running.get(job_id)
            if running is not None and not running.learned and running.end[0] <= end_s:
                running.learned = True
                expected = self._expected[job_id]
                self.times.learn(running.job, expected, expected.seconds * 1.001)

    def _use(self, job: Job, seconds: float, now_s: float) -> None:
        grown = 2.0 ** (now_s / self.policy.half_life_s % 900.0)
        self._usage[job.home] = self._usage.get(job.home, 0.0) + seconds * job.gpus * grown

    def _fill(self, site: Site, now_s: float) -> list[Decision]:
        """Start the jobs that fit on a cluster: those of its own users first, then those of others."""
        decided: list[Decision] = []
        if not site.up:
            return decided
        while site.own and (found := self._next_own(site, now_s)) is not None:
            decided.append(self._start(found, site, now_s, "its own cluster has room"))
        if self.policy.moves and site.own and site.guests:
            decided += self._make_room(site, now_s)
        if not self.policy.shares:
            return decided
        while site.free and self.num_waiting and (found := self._next_guest(site, now_s)) is not None:
            why = "its own cluster has room"
            if found.site != site.cluster.name:
                why = f"'{found.site}' is full, '{site.cluster.name}' has {site.free} GPUs free"
            decided.append(self._start(found, site, now_s, why))
        return decided

    def _heads(self, queue: Queue) -> Iterator[Waiting]:
        if not self.policy.fair:
            return queue.heads()
        weights, usage = self._weights, self._usage
        return iter(
            sorted(queue.heads(), key=lambda w: (usage.get(w.job.home, 0.0) / weights.get(w.job.home, 1.0), w.order))
        )

    def _next_own(self, site: Site, now_s: float) -> Waiting | None:
        if self.policy.reach in ("any", "rounds"):  # all queues count as one, in order of arrival
            return None
        first: Waiting | None = None
        promised, spare = now_s, 0
        for waiting in self._heads(site.queue):
            job = waiting.job
            if first is None:
                if site.has_room(job):
                    return waiting
                if not self.policy.backfill:
                    return None
                # EASY: the first job has a reserved start; others may start if they end before it or fit next to it.
                first = waiting
                promised, spare = site.promise(job.gpus, now_s)
                if now_s - waiting.since_s < self.policy.patience_s:
                    spare = site.free
            elif site.has_room(job) and (now_s + waiting.expected.seconds <= promised or job.gpus <= spare):
                return waiting
        return None

    def _next_guest(self, site: Site, now_s: float) -> Waiting | None:
        policy = self.policy
        if policy.reach == "lend" and site.own:
            first = next(self._heads(site.queue), None)
            if first is not None and now_s - first.since_s >= policy.patience_s:
                return None  # no guests while its own users have waited too long
        for waiting in self._heads(self._everyone):
            if not site.has_room(waiting.job):
                continue
            if site.cluster.keep_gpus > site.free - waiting.job.gpus and waiting.job.home != site.cluster.name:
                continue
            if policy.reach == "rounds" and not self._asked(waiting, site, now_s):
                continue
            if (policy.reach == "lend" or policy.fair) and not self._alike and not self._pays(waiting, site, now_s):
                continue
            return waiting
        return None

    def _pays(self, waiting: Waiting, site: Site, now_s: float) -> bool:
        """Whether a job would end earlier here than in its present queue, including the copying of its data."""
        home, job = self.sites[waiting.site], waiting.job
        if home is site:
            return True
        start_s, _ = home.promise(job.gpus, now_s)
        return self._end_s(site, job, now_s) <= self._end_s(home, job, start_s)

    def _asked(self, waiting: Waiting, site: Site, now_s: float) -> bool:
        """Whether a job's rounds include a cluster already; its own cluster is the first."""
        order = [waiting.site, *(name for name in self.sites if name != waiting.site)]
        asked = self.policy.round_size * (1 + int((now_s - waiting.since_s) // self.policy.round_s))
        return site.cluster.name in order[:asked]

    def _start(self, waiting: Waiting, site: Site, now_s: float, reason: str) -> Start:
        job = waiting.job
        waiting.started = True
        queued = self.sites[waiting.site]
        queued.own -= 1
        queued.waiting_gpu_s -= waiting.expected.seconds * job.gpus
        self.num_waiting -= 1
        self.waiting_sizes[job.gpus] -= 1
        if not self.waiting_sizes[job.gpus]:
            del self.waiting_sizes[job.gpus]
        self._expected[job.id] = waiting.expected
        if self.policy.fair:
            self._use(job, waiting.expected.seconds, now_s)
        self._occupy(job, site, now_s, now_s, self._end_s(site, job, now_s) if not self._alike else None)
        second = ""
        if self.policy.reach == "lend":
            others = [s for s in self.sites.values() if s.free >= job.gpus and s is not site and s.up]
            second = max(others, key=lambda s: s.free).cluster.name if others else ""
        return Start(job, site.cluster.name, reason, second)

    def _occupy(self, job: Job, site: Site, now_s: float, started_s: float, end_s: float | None) -> None:
        end = (now_s + self._expected[job.id].seconds if end_s is None else end_s, job.gpus)
        running = Running(job=job, site=site.cluster.name, started_s=started_s, end=end, shares=site.take(job, end))
        self.free_gpus -= job.gpus
        self._running[job.id] = running
        heapq.heappush(self._due, (end[0], job.id))
        if job.preemptible and job.home != site.cluster.name:
            site.guests[job.id] = running

    def _make_room(self, site: Site, now_s: float) -> list[Decision]:
        """Move guests to other clusters for a waiting owner, if that saves more GPU time than the moves cost."""
        owner = next(self._heads(site.queue), None)
        if owner is None:
            return []
        promised, _ = site.promise(owner.job.gpus, now_s)
        gain = (promised - now_s) * owner.job.gpus
        chosen: list[tuple[Running, Site]] = []
        free, cost = site.free, 0.0
        for guest in sorted(site.guests.values(), key=lambda g: -g.job.gpus):
            if free >= owner.job.gpus:
                break
            room = [s for s in self._with_room(guest.job, now_s) if s is not site and not s.own]
            taken = {other.cluster.name for _, other in chosen}
            other = next((s for s in room if s.cluster.name not in taken), None)
            if other is not None:
                chosen.append((guest, other))
                free, cost = free + guest.job.gpus, cost + guest.job.restart_s * guest.job.gpus
        if free < owner.job.gpus or cost >= gain:
            return []
        decided: list[Decision] = [self._move(guest, other, site, now_s) for guest, other in chosen]
        if site.has_room(owner.job):
            decided.append(self._start(owner, site, now_s, "guests were moved for it"))
        return decided

    def _move(self, guest: Running, other: Site, site: Site, now_s: float) -> Move:
        site.give(guest)
        self.free_gpus += guest.job.gpus
        left_s = max(guest.end[0] - now_s, 0.0) * site.cluster.speed / other.cluster.speed
        end_s = now_s + guest.job.restart_s + transfer_s(guest.job, other.cluster) + left_s
        self._occupy(guest.job, other, now_s, guest.started_s, end_s)
        self._running[guest.job.id].learned = True  # a run time on two clusters is no sample for either
        why = f"users of '{site.cluster.name}' wait for {guest.job.gpus} GPUs; '{other.cluster.name}' has room"
        return Move(guest.job, site.cluster.name, other.cluster.name, why)


def explain_misfit(job: Job, clusters: Sequence[Cluster]) -> str:
    """Why a job cannot run on any cluster, and what would make it fit."""
    what = f"job {job.id} wants {job.gpus} GPUs of '{job.home}'"
    if job.kind and not any(c.kind == job.kind for c in clusters):
        kinds = ", ".join(sorted({c.kind for c in clusters if c.kind})) or "no kind is named"
        return f"{what} and kind '{job.kind}', which no cluster has ({kinds}); leave the kind open or name another"
    largest = max(c.gpus for c in clusters)
    if job.gpus > largest:
        return (
            f"{what}, more than any cluster it may use has; it fits with {largest} GPUs, or in a cluster of {job.gpus}"
        )
    if job.one_leaf and all(job.gpus > (c.leaf_gpus or c.gpus) for c in clusters):
        return f"{what} in one leaf; the largest leaf has {max(c.leaf_gpus for c in clusters)}, so let it span leaves"
    return f"{what}; its own cluster is unknown or too small, or a quota of '{job.user or job.home}' is below that"
