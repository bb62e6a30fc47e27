"""Everything known about one job that findings are derived from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.findings.collectives import number_sizes, place_calls
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.message_streams import find_rows
from prism.observe.parallelism.stages import StageMap
from prism.observe.steps.beginnings import Beginning
from prism.observe.steps.life import LifeConfig, StepTemplate, make_template
from prism.observe.steps.spacing import find_step
from prism.observe.steps.work import find_pauses, measure_work
from prism.observe.traffic.numbering import number_places
from prism.records.findings import Culprit, CulpritType, Finding, FindingKind
from prism.records.layout import Layout

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Messages in steps, of streams that are known and not rare; `row` is the row of their stream within the case.

    `src`, `dst`, `kind` (a number) and `like` (a number that sizes which are nearly equal share) are by stream.
    """

    message: Ints  # its row among the messages of the case
    row: Ints
    step: Ints
    place: Ints
    start: Ints
    end: Ints
    src: Ints
    dst: Ints
    kind: Ints
    kinds: tuple[str, ...]  # by number
    like: Ints

    def take(self, kept: NDArray[np.bool_]) -> Calls:
        """Some of the messages."""
        if kept.all():
            return self
        names = ("message", "row", "step", "place", "start", "end")
        rows = np.flatnonzero(kept)
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job as observed: its messages with their kind and step, the location of its endpoints, its layout.

    The step of a message is -1 where it is in none; `place` counts the messages of one stream in a step, `num` is how
    many these are.
    """

    job: ObservedJob
    layout: Layout
    stages: StageMap
    steps: pl.DataFrame
    messages: pl.DataFrame  # pair stream src dst kind role start_ns end_ns bytes step place num
    work: pl.DataFrame
    endpoints: pl.DataFrame
    streams: pl.DataFrame
    observed_until_ns: int  # the last moment of the whole observation, over all jobs
    saves: pl.DataFrame | None = None  # start_ns end_ns of what it writes to storage
    transfers_visible: bool = True  # whether single transfers can be timed
    bursts: bool = False  # whether each message is all that a connection sends in a step
    meets: bool = False  # whether messages may begin only once their receivers are ready too, as over TCP
    runs: bool | None = False  # whether it is known to run when the observation ends; None: it may
    beginning: Beginning | None = None  # of a step that only some hosts began before the job stopped
    regular: bool = False  # whether steps are known to send the same, which else its template tells
    sent_until_ns: Ints | None = None  # by endpoint, when it last sent anything to others of the job

    @cached_property
    def length_s(self) -> Floats:
        """Seconds of each step, without a pause (an evaluation, a checkpoint) that follows its last message."""
        lengths: Floats = (self._until_ns - self.steps["start_ns"].to_numpy()) / 1e9
        return lengths - self.pause_s

    @cached_property
    def _until_ns(self) -> Ints:
        """When the next step begins; a pause longer than a step belongs to no step."""
        end, start = self.steps["end_ns"].to_numpy(), self.steps["start_ns"].to_numpy()
        until: Ints = np.maximum(end, np.append(start[1:], end[-1:]))
        return until

    @cached_property
    def pause_s(self) -> Floats:
        """Seconds of silence after each step beyond what is usual there."""
        if not self.steps.height:
            return np.empty(0)
        last = np.full(self.steps.height, -1, np.int64)
        index = self.messages["step"].to_numpy()
        inside = np.flatnonzero(index >= 0)
        np.maximum.at(last, index[inside], self.messages["end_ns"].to_numpy()[inside])
        end, start = self._until_ns, self.steps["start_ns"].to_numpy()
        last = np.where(last < 0, start, np.minimum(last, end))
        silent: Floats = (end - last) / 1e9
        return find_pauses(silent, float(np.median(end - start)) / 1e9)

    @cached_property
    def saving(self) -> NDArray[np.bool_]:
        """By step, whether the job writes to storage in it, if it does so occasionally."""
        if self.saves is None:
            return np.zeros(self.steps.height, np.bool_)
        begin, end = (self.saves[c].sort().to_numpy() for c in ("start_ns", "end_ns"))
        start, until = self.steps["start_ns"].to_numpy(), self._until_ns
        under_way = np.searchsorted(begin, until) > np.searchsorted(end, start, side="right")
        return np.asarray(under_way & (2 * under_way.sum() <= len(under_way)), np.bool_)

    @cached_property
    def resolution_ns(self) -> int:
        """What the times of messages are rounded to."""
        times = self.messages["start_ns"].head(1000).to_numpy()
        return next(
            (r for r in (10**9, 10**8, 10**7, 10**6) if len(times) and not (times % r).any()),
            0,
        )

    @cached_property
    def template(self) -> StepTemplate | None:
        """What a usual step sends, None where no stream sends in most steps."""
        return make_template(self.messages, self.streams, self.steps, LifeConfig(), bursts=self.bursts)

    @cached_property
    def by_start(self) -> Ints:
        """The rows of the messages in order of start."""
        return np.argsort(self.messages["start_ns"].to_numpy(), kind="stable")

    @property
    def wanders(self) -> bool:
        """Whether step boundaries are uncertain, so that neither lateness nor step lengths are reliable."""
        return not self.regular and self.template is not None and self.template.wanders

    @cached_property
    def calls(self) -> Calls:
        """Messages of streams that are sent in steps, as arrays shared by all measurements."""
        return _list_calls(self)

    @property
    def gpus(self) -> int:
        """Ranks that wait when one is late: by the degrees of the layout, at least one for each endpoint."""
        layout = self.layout
        ranks = math.prod(d.value or 1 for d in (layout.dp, layout.pp, layout.tp, layout.cp))
        return max(len(self.job.endpoints), ranks)

    @cached_property
    def stage_of(self) -> Ints:
        """Stage by endpoint, -1 where it has none."""
        return self.stages.tabulate(len(self.hosts))

    @cached_property
    def addresses(self) -> list[str]:
        """Address by endpoint."""
        return [str(a) for a in self.endpoints["address"].to_list()]

    @cached_property
    def hosts(self) -> list[str]:
        """Host by endpoint."""
        return [str(h) for h in self.endpoints["host"].to_list()]

    @cached_property
    def switches(self) -> list[str | None]:
        """First switch by endpoint, where known."""
        return list(self.endpoints["switch"].to_list())

    @cached_property
    def own_by_host(self) -> dict[str, set[int]]:
        """The job's endpoints on each of its hosts."""
        found: dict[str, set[int]] = {}
        for e in self.job.endpoints.tolist():
            found.setdefault(self.hosts[e], set()).add(int(e))
        return found

    def address(self, endpoint: int) -> str:
        """An endpoint's address."""
        return self.addresses[endpoint]

    def host(self, endpoint: int) -> str:
        """An endpoint's host."""
        return self.hosts[endpoint]

    def name_worker(self, members: list[int]) -> Culprit:
        """The culprit for one or more endpoints: their host, if they are most of the job's endpoints there."""
        hosts = {self.hosts[e] for e in members}
        if len(hosts) == 1:
            host = hosts.pop()
            own = self.own_by_host.get(host, set()) - set(self.stages.through)  # represented by who enters
            if len(members) >= 0.75 * len(own) and host != self.addresses[members[0]]:
                return Culprit(type="host", id=host)
        return Culprit(type="endpoint", id=",".join(self.addresses[e] for e in sorted(members)))

    def slower_by(self, first: int, last: int) -> float | None:
        """How much longer the steps of a window are than those outside, as a share; None where there are too few."""
        inside = self.length_s[first : last + 1]
        outside = np.concatenate([self.length_s[:first], self.length_s[last + 1 :]])
        if len(outside) < 3 or not len(inside):
            return None
        return float(np.median(inside) / np.median(outside) - 1)

    def finding(
        self,
        kind: FindingKind,
        culprit: Culprit,
        first: int,
        last: int,
        *,
        lost_s: float,
        score: float,
        evidence: str,
    ) -> Finding:
        """A finding over the steps `first` to `last`; `lost_s` is what each of the job's GPUs lost, in seconds."""
        return Finding(
            kind=kind,
            job=self.job.id,
            culprit=culprit,
            start_ns=int(self.steps["start_ns"][first]),
            end_ns=int(self.steps["end_ns"][last]),
            lost_gpu_seconds=round(float(max(lost_s, 0.0)) * self.gpus, 3),
            score=round(float(np.clip(score, 0.0, 0.99)), 3),
            evidence=evidence,
        )


def number_hosts(case: Case) -> Ints:
    """A number by endpoint that those of one host share."""
    return np.unique(np.array(case.hosts, dtype=str), return_inverse=True)[1].astype(np.int64)


def culprit(kind: CulpritType, name: str) -> Culprit:
    """Short for a culprit."""
    return Culprit(type=kind, id=name)


def is_pipeline(case: Case) -> bool:
    """Whether a job has several stages."""
    return len(set(case.stages.stage.values())) > 1


def make_case(
    job: ObservedJob, layout: Layout, stages: StageMap, steps: pl.DataFrame, streams: pl.DataFrame,
    messages: pl.DataFrame, endpoints: pl.DataFrame, until_ns: int,
    transfers_visible: bool = True,
) -> Case:  # fmt: skip
    """A case from what is known of a job; `messages` are all messages of its pairs."""
    row = find_rows(streams, messages["stream"])
    # As text the kinds and roles of millions of messages would take four times as much room.
    labels = streams.select("src", "dst", pl.col("kind", "role").cast(pl.Categorical))[row]
    step = find_step(messages["start_ns"].to_numpy(), steps)
    place, num = (counted.astype(np.int32) for counted in number_places(row, step.astype(np.int64), streams.height))
    counts = {"step": step, "place": place, "num": num}
    known = messages.hstack([*labels.iter_columns(), *(pl.Series(name, values) for name, values in counts.items())])
    known = place_calls(known, streams, row, steps.height)
    return Case(
        job=job,
        layout=layout,
        stages=stages,
        steps=steps,
        messages=known,
        work=measure_work(known, stages, endpoints["host_id"].to_numpy().astype(np.int64), steps),
        endpoints=endpoints,
        streams=streams,
        observed_until_ns=until_ns,
        transfers_visible=transfers_visible,
    )


def _list_calls(case: Case) -> Calls:
    streams = case.streams
    row, step = find_rows(streams, case.messages["stream"]), case.messages["step"].to_numpy()
    steady = ((streams["role"] != "rare") & (streams["kind"] != "unknown")).to_numpy()
    kept = np.flatnonzero(steady[row] & (step >= 0))
    kinds = sorted(streams["kind"].unique().to_list())
    number = {kind: i for i, kind in enumerate(kinds)}
    src, dst = (streams[c].to_numpy().astype(np.int64) for c in ("src", "dst"))
    return Calls(
        message=kept,
        row=row[kept],
        step=step[kept].astype(np.int64),
        place=case.messages["place"].to_numpy()[kept].astype(np.int64),
        start=case.messages["start_ns"].to_numpy()[kept],
        end=case.messages["end_ns"].to_numpy()[kept],
        src=src,
        dst=dst,
        kind=np.array([number[k] for k in streams["kind"].to_list()], np.int64),
        kinds=tuple(kinds),
        like=number_sizes(streams["bytes"].to_numpy().astype(np.float64)),
    )
