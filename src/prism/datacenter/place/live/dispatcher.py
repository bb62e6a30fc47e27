"""Submit jobs to clusters: query, write the intent, submit, write the result; check before anything is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.datacenter.place.choices import Choice, consider
from prism.datacenter.place.clusters import Cluster, Job
from prism.datacenter.place.live.forms import JobFile
from prism.datacenter.place.live.journal import DispatchJournal, Entry
from prism.datacenter.place.live.slurm import SlurmCluster, Unit
from prism.datacenter.place.live.snapshot import LiveCluster, SeenJob, Snapshot, SubmitError, build_scheduler
from prism.datacenter.place.run_times import RunTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The answer for one job: clusters, best first, and the state that each reported."""

    job: Job
    choices: tuple[Choice, ...]
    errors: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Places scripts on live clusters; does nothing if the state is uncertain."""

    clusters: Mapping[str, LiveCluster]
    traits: dict[str, Cluster]
    times: RunTimes = field(default_factory=RunTimes)
    memory_s: float = 240.0  # for which a controller certainly keeps a job that has ended; Slurm's MinJobAge is 300 s
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time
    tell: Callable[[str], None] = lambda text: None
    look_s: float = 2.0  # for which the answers of clusters are reused, plus the jobs placed since
    _seen: list[Snapshot] = field(default_factory=list)
    _seen_s: float = float("-inf")

    def ask(self, file: JobFile, home: str = "", user: str = "") -> Asked:
        """Where a job would run, from the present state of all clusters."""
        units: list[Unit] = [c.unit for c in self.clusters.values() if isinstance(c, SlurmCluster)]
        gpus, seconds = file.read_needs(units[0] if units else "gpu")
        return self.weigh(Job(id=file.name, submit_s=self.clock(), gpus=gpus, home=home, user=user), seconds, file)

    def weigh(self, job: Job, seconds: float | None, file: JobFile | None = None) -> Asked:
        """Where a job would run; with its files, only clusters that can take one of them."""
        snapshots = [seen if file is None else self._refuse(seen, file) for seen in self._look()]
        now_s = self.clock()
        scheduler = build_scheduler(snapshots, self.traits, self.times, now_s)
        choices = consider(scheduler, job, now_s, seconds)
        return Asked(job=job, choices=tuple(choices), errors={s.cluster: s.error for s in snapshots if s.error})

    def _refuse(self, seen: Snapshot, file: JobFile) -> Snapshot:
        """Drop clusters that cannot run any of the job's files."""
        form = self.clusters[seen.cluster].form
        if file.path(form) is not None:
            return seen
        return Snapshot(cluster=seen.cluster, error=f"it takes a {form}, and {file.name} has none")

    def _look(self) -> list[Snapshot]:
        if self.clock() - self._seen_s > self.look_s or not self._seen:
            self._seen = [cluster.look() for cluster in self.clusters.values()]
            self._seen_s = self.clock()
        return self._seen

    def note_placed(self, job: Job, entry: Entry) -> None:
        """Count a job that was placed after the clusters were queried."""
        taken = SeenJob(id=entry.job, user=job.user, gpus=job.gpus, running=False)
        self._seen = [replace(s, jobs=(*s.jobs, taken)) if s.cluster == entry.cluster else s for s in self._seen]

    def place(self, file: JobFile, journal: DispatchJournal, home: str = "") -> Entry | None:
        """Submit a job exactly once; None if it cannot be decided now whether it was submitted."""
        known = journal.entries.get(file.mark)
        if known is not None and known.state == "intent":
            known = self._settle(file, known, journal)
            if known.state == "intent":
                return None
        if known is not None and known.state == "placed":
            return known
        asked = self.ask(file, home)
        choice = next((choice for choice in asked.choices if choice.fits), None)
        placed = None if choice is None else self._submit(file, choice, journal)
        if placed is not None:
            self.note_placed(asked.job, placed)
        return placed

    def find_missing(self, files: Sequence[JobFile], journal: DispatchJournal) -> list[Entry]:
        """Jobs that a cluster accepted recently and no longer knows; they are only reported.

        A controller that crashes loses unsaved jobs, which may be running, so they are not submitted again.
        """
        missing = []
        for file in files:
            entry = journal.entries.get(file.mark)
            if entry is None or entry.state != "placed" or self.clock() - entry.at_s > self.memory_s:
                continue
            try:
                cluster = self.clusters[entry.cluster]
                if cluster.find(str(file.path(cluster.form)), entry.mark) is None:
                    missing.append(entry)
            except (SubmitError, KeyError):
                continue  # it does not answer, so its jobs are unknown
        return missing

    def _submit(self, file: JobFile, choice: Choice, journal: DispatchJournal) -> Entry | None:
        mark = file.mark
        intent = Entry(mark=mark, state="intent", cluster=choice.cluster, at_s=self.clock(), why=choice.why)
        journal.write(intent)
        cluster = self.clusters[choice.cluster]
        try:
            number = cluster.submit(str(file.path(cluster.form)), mark)
        except SubmitError as error:
            self.tell(f"{mark}: {choice.cluster}: {error}")
            self._seen_s = float("-inf")  # its earlier answer is out of date
            if error.refused:
                journal.write(Entry(mark=mark, state="void", cluster=choice.cluster, at_s=self.clock(), why=str(error)))
                return None
            # The call may have succeeded although its answer was lost, so its effect is checked later.
            settled = self._settle(file, intent, journal)
            return settled if settled.state == "placed" else None
        placed = Entry(mark=mark, state="placed", cluster=choice.cluster, job=number, at_s=self.clock(), why=choice.why)
        journal.write(placed)
        return placed

    def _settle(self, file: JobFile, intent: Entry, journal: DispatchJournal) -> Entry:
        """Find out whether an intended submission happened; unchanged if that is uncertain."""
        try:
            cluster = self.clusters[intent.cluster]
            path = str(file.path(cluster.form))
            number = cluster.find(path, intent.mark)
            if number is None and cluster.repeatable and self.clock() - intent.at_s <= self.memory_s:
                number = cluster.submit(path, intent.mark)  # the cluster accepts it only once
            elif number is None:
                if self.clock() - intent.at_s < cluster.arrival_s:
                    return intent  # it may still arrive
                # Calls that a cluster received before an outage take effect only after it.
                self.sleep(cluster.settle_s)
                number = cluster.find(path, intent.mark)
        except (SubmitError, KeyError) as error:
            self.tell(f"{intent.mark}: whether {intent.cluster} has it is not known ({error}); left alone")
            return intent
        if number is not None:
            found = Entry(mark=intent.mark, state="placed", cluster=intent.cluster, job=number, at_s=self.clock())
        elif self.clock() - intent.at_s > self.memory_s:
            self.tell(
                f"{intent.mark}: {intent.cluster} does not know it, but would have forgotten a job that has ended; "
                f"left alone: look there, then delete its line or submit it by hand"
            )
            return intent
        else:
            found = Entry(
                mark=intent.mark, state="void", cluster=intent.cluster, at_s=self.clock(), why="never arrived"
            )
        journal.write(found)
        return found
