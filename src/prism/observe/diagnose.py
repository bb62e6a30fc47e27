"""From flows to findings: the only module that chains the stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.delays.comparison import Comparison
from prism.observe.delays.ledger import keep_ledger
from prism.observe.delays.ranking import find_all
from prism.observe.delays.stalls import StallConfig
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.findings.case import Case, make_case
from prism.observe.findings.routes import find_routes
from prism.observe.jobs.given import GivenJobs, find_contradictions, number_given_ends, part_given_jobs
from prism.observe.jobs.grouping import ObservedJob, PeriodEstimator, find_remnants, measure_period, recognise_jobs
from prism.observe.jobs.lives import part_successive_jobs
from prism.observe.jobs.tenants import answers_on_one_connection, list_ports, part_simultaneous_jobs
from prism.observe.parallelism.known_jobs import Known, is_steady
from prism.observe.parallelism.layout import declare_layout, infer_layout, relabel_ties
from prism.observe.parallelism.message_streams import find_message_streams, find_rows
from prism.observe.parallelism.pairs import choose_kind, label_pairs
from prism.observe.parallelism.rank_counts import count_own_nics, count_unseen_ranks
from prism.observe.parallelism.rings import find_unseen, turn_rings
from prism.observe.parallelism.stages import NO_STAGES, find_stages
from prism.observe.parallelism.volumes import lay_out_volumes
from prism.observe.phases import find_ends, join_phases
from prism.observe.steps.beginnings import find_beginning
from prism.observe.steps.cutting import STEPS, cut_steps
from prism.observe.steps.life import Life, LifeConfig, Watched, are_steps_regular, judge_life
from prism.observe.steps.visibility import judge_visibility
from prism.observe.traffic.bursts import join_bursts
from prism.observe.traffic.clock_offsets import align_clocks
from prism.observe.traffic.preparation import prepare_traffic
from prism.observe.traffic.table import Traffic
from prism.observe.traffic.threads import describe_error, do_beside, do_each, try_each
from prism.records.findings import Finding
from prism.records.layout import Layout
from prism.records.scheduled import ScheduledJob

_BURSTS = (
    "its records are cut at another place in each step, so that steps are read from what each connection sends between "
    "two long silences; single transfers are not seen"
)

MIXED = (
    "its hosts have groups of connections that carry unlike amounts side by side, and too few steps of all of them are "
    "visible to tell whether they are one job or several"
)


def study_jobs(traffic: Traffic, jobs: Sequence[ObservedJob], gpus_per_host: int | None = None) -> list[JobDiagnosis]:
    """Analyse every job in this process; `gpus_per_host` helps if several ranks share a NIC."""
    return do_each(lambda job: study_job(traffic, job, gpus_per_host), jobs)


def diagnose(
    flows: pl.DataFrame,
    topology: pl.DataFrame | None = None,
    *,
    study: Callable[[Traffic, Sequence[ObservedJob]], Sequence[JobDiagnosis]] = study_jobs,
    estimate_period: PeriodEstimator = measure_period,
    needs_findings: Callable[[JobDiagnosis], bool] | None = None,
    given: Sequence[ScheduledJob] = (),
    until_ns: int | None = None,
) -> Diagnosis:
    """Diagnose every job in FLOWS.

    `study` may distribute the jobs over machines, and `estimate_period` may already know the step length. Findings are
    computed only for jobs for which `needs_findings` is true. Jobs that are `given` are not inferred. What was observed
    until a moment after the last flow is silent there.
    """
    flows, clocks = align_clocks(flows, topology)
    traffic, known = part_given_jobs(prepare_traffic(flows, topology), given)
    traffic = number_given_ends(part_simultaneous_jobs(part_successive_jobs(traffic)))
    routes = do_beside(lambda: find_routes(flows, traffic))
    since, until = (int(x or 0) for x in (traffic.pairs["first_ns"].min(), traffic.pairs["last_ns"].max()))  # type: ignore[arg-type]
    until = max(until, until_ns or 0)
    jobs = tuple(study(traffic, recognise_jobs(traffic, estimate_period, known.jobs)))
    ends = find_ends(traffic, jobs, until)
    jobs = tuple(do_each(lambda job: _tell_life(traffic, job, since, ends[job.id]), jobs))
    examined = jobs if needs_findings is None else [job for job in jobs if needs_findings(job)]
    jobs = tuple(_heed_given(traffic, known, job, until) for job in jobs)
    notes = [*traffic.notes, *known.notes, *((clocks.note,) if clocks.note else ())]
    notes += [f"{job.id}: {note}" for job in jobs for note in job.notes]
    studied = [job for job in examined if job.studied]
    cases = [
        replace(case, runs=_may_run(job, ends[job.id], until_ns))
        for job, case in try_each(lambda job: open_case(traffic, job, ends[job.id]), studied, lambda j: j.id, notes)
    ]
    compared: dict[str, Comparison] = {}
    findings = find_all(cases, routes.result(), notes, compared)
    told = {finding.job for finding in findings}
    jobs = tuple(replace(job, compared=None if job.id in told else compared.get(job.id)) for job in jobs)
    unclear = {case.job.id for case in cases if case.wanders}
    jobs = tuple(_agree_with(findings, unclear, job) for job in jobs)
    jobs, findings = join_phases(traffic, jobs, findings)
    jobs = tuple(_count_seconds(traffic, job, findings, until) for job in jobs)
    notes += [line for job in jobs for note in job.notes if (line := f"{job.id}: {note}") not in notes]
    return Diagnosis(jobs=jobs, findings=findings, notes=tuple(notes), traffic=traffic)


def _tell_life(traffic: Traffic, job: JobDiagnosis, since_ns: int, until_ns: int) -> JobDiagnosis:
    """A job with its state; one that was not analysed counts as running."""
    if not job.studied:
        return replace(job, life=Life(started_ns=job.observed.first_ns))
    own = job.messages_in(traffic).select("stream", "start_ns", "end_ns", "pair", "bytes")
    saved = find_last_save(list_saves(traffic, job.observed), job.observed, until_ns)
    watched = Watched(begin_ns=since_ns, until_ns=until_ns, saved_ns=saved, bursts=job.bursts is not None)
    life = judge_life(own, job.streams, job.steps, watched)
    if job.bursts is not None and life.state == "ended":
        single = traffic.messages_of(job.observed.pairs)
        host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
        beginning = find_beginning(single, traffic.pairs, host, job.steps)
        life = life if beginning is None else replace(life, state="stopped", beginning=beginning)
    return replace(job, life=life)


def _may_run(job: JobDiagnosis, end_ns: int, until_ns: int | None) -> bool | None:
    """Whether a silent job still runs: what its scheduler says; None if a stream goes on, and it may."""
    given = job.observed.given
    if given is not None and (given.running is not None or given.end_ns is not None):
        return bool(given.running) if given.end_ns is None else given.end_ns > end_ns
    return None if until_ns is not None and end_ns >= until_ns else False


def _heed_given(traffic: Traffic, known: GivenJobs, job: JobDiagnosis, until_ns: int) -> JobDiagnosis:
    """A job with what the operator says of it, and notes on what the records say otherwise."""
    given = job.observed.given
    if given is None:
        return job
    notes = find_contradictions(traffic, known, known.jobs.index(given))
    life = job.life
    if given.start_ns is not None:
        life = replace(life, started_ns=given.start_ns)
    if given.end_ns is not None and given.end_ns <= until_ns:
        life = replace(life, state="ended", ended_ns=given.end_ns, beginning=None)
    elif given.running and life.state == "ended" and job.steps.height:
        silent_s = (until_ns - job.observed.last_ns) / 1e9
        notes += (f"{given.name} runs by the table, but has sent nothing for the last {silent_s:,.0f} s",)
        life = replace(life, state="stopped")
    return replace(job, life=life, notes=(*job.notes, *notes))


def _agree_with(findings: Sequence[Finding], unclear: set[str], job: JobDiagnosis) -> JobDiagnosis:
    """A job that seemed to have ended has stopped if a rank is found that the others wait for.

    Steps of the jobs that are `unclear` cannot be compared.
    """
    if job.id in unclear:
        job = replace(job, visible=replace(job.visible, comparable=False))
    stands = [
        f for f in findings if f.kind in ("hang", "stall") and f.job == job.id and f.end_ns > job.observed.last_ns
    ]
    if not stands:
        return job
    sure = any(f.kind == "hang" or f.score > StallConfig().may_be_over for f in stands)
    return replace(job, life=replace(job.life, state="stopped", ended_ns=None)) if sure else job


def _count_seconds(traffic: Traffic, job: JobDiagnosis, findings: Sequence[Finding], until_ns: int) -> JobDiagnosis:
    """A job with what its seconds were spent on."""
    own = traffic.messages_of(job.observed.pairs)
    stops = [finding for finding in findings if finding.job == job.id]
    end = until_ns if job.life.ended_ns is None else job.life.ended_ns
    life = (max(job.life.started_ns, job.observed.first_ns), end)
    if job.observed.given is not None and job.life.started_ns < job.observed.first_ns:
        life = job.life.started_ns, end
    return replace(job, seconds=keep_ledger(own, job.steps, list_saves(traffic, job.observed), stops, life))


def open_case(traffic: Traffic, job: JobDiagnosis, until_ns: int) -> Case:
    """Everything that findings are derived from."""
    own = job.messages_in(traffic)
    case = make_case(
        job.observed, job.layout, job.stages, job.steps, job.streams, own, traffic.endpoints, until_ns,
        transfers_visible=job.visible.inside,
    )  # fmt: skip
    saves = list_saves(traffic, job.observed)
    src, last_ns = (traffic.pairs[c].to_numpy().astype(np.int64)[job.observed.pairs] for c in ("src", "last_ns"))
    sent_until_ns = np.zeros(traffic.endpoints.height, np.int64)
    np.maximum.at(sent_until_ns, src, last_ns)
    case = replace(
        case, bursts=job.bursts is not None, regular=job.regular, sent_until_ns=sent_until_ns,
        beginning=job.life.beginning, meets=answers_on_one_connection(traffic, job.observed.pairs),
    )  # fmt: skip
    return replace(case, saves=saves)


def study_job(
    traffic: Traffic, job: ObservedJob, gpus_per_host: int | None = None, *, known: Known | None = None
) -> JobDiagnosis:
    """Label the pairs of one job, find its steps and its layout; what is `known` and still holds is reused.

    An error inside Prism affects only this job: it is then listed with its endpoints, and its notes say why.
    """
    try:
        return _study(traffic, job, gpus_per_host, known)
    except Exception as error:
        return list_unstudied(traffic, job, describe_error(error))


def list_unstudied(traffic: Traffic, job: ObservedJob, *notes: str) -> JobDiagnosis:
    """A job with only its endpoints; `notes` say why."""
    kinds = pl.DataFrame({"pair": job.pairs.astype(np.uint32)}).with_columns(
        kind=pl.lit("unknown"), confidence=pl.lit(0.0)
    )
    own = traffic.endpoints[job.endpoints]
    return JobDiagnosis(
        id=job.id,
        endpoints=tuple(own["address"]),
        hosts=tuple(own["host"].unique(maintain_order=True)),
        layout=Layout(),
        pairs=_name_pairs(traffic, job, kinds),
        steps=pl.DataFrame(schema=STEPS),
        streams=pl.DataFrame(),
        stages=NO_STAGES,
        observed=job,
        ports=list_ports(traffic, job.endpoints, job.pairs),
        notes=notes,
    )


def _study(traffic: Traffic, job: ObservedJob, gpus_per_host: int | None, known: Known | None) -> JobDiagnosis:
    messages = traffic.messages_of(job.pairs)
    found = find_message_streams(traffic, job)
    streams = known.label(traffic, found) if known is not None else None
    if streams is None:
        known, streams = None, turn_rings(traffic, job, label_pairs(found))
    steps, clock = _find_steps(traffic, job, messages, streams, known)
    stages = known.place(job) if known is not None else find_stages(
        pipeline_messages(messages, streams),
        steps["start_ns"].to_numpy(),
        traffic.endpoints["host_id"].to_numpy().astype(np.int64),
        count_own_nics(traffic, job),
    )  # fmt: skip
    streams = relabel_ties(streams, stages)
    given = job.given
    if given is not None and given.gpus is not None and given.hosts:
        gpus_per_host = max(1, round(given.gpus / len(given.hosts)))
    layout = known.layout if known is not None else infer_layout(traffic, job, streams, stages, gpus_per_host)
    pairs = known.name_pairs(traffic, job) if known is not None else None
    visible = judge_visibility(traffic, streams, steps)
    if job.period_ns is None:
        visible = replace(visible, layout=False)  # How many messages a step sends is unknown.
    steps = steps if visible.steps else steps.clear()
    coarse = not visible.inside and (visible.steps or not visible.layout)
    unclear = coarse or layout.confidence < levels.SHARE_HALF
    volumes = lay_out_volumes(traffic, job) if unclear else None
    if volumes is not None and visible.inside and (volumes.pp == 1 or volumes.pp != layout.pp.value):
        volumes = None  # If single messages are visible, volumes only give the number of replicas of a pipeline.
    if volumes is not None:
        ranks = count_unseen_ranks(traffic, job, volumes.senders, gpus_per_host)
        if not visible.layout or volumes.pp != layout.pp.value:
            kind = pl.col("pair").replace_strict(volumes.name_pairs(traffic, job), return_dtype=pl.String)
            streams, stages, pairs = streams.with_columns(kind=kind), NO_STAGES, None
            visible, layout = replace(visible, inside=False), Layout()
        layout = replace(volumes.lay_out(ranks), groups=layout.groups, stages=layout.stages)
    elif not visible.layout:
        # Without messages of a known size and rate, what a pair carries and how ranks are laid out would be a guess.
        visible = replace(visible, notes=(*visible.notes, "how it is laid out cannot be seen either"))
        streams = streams.with_columns(kind=pl.lit("unknown"))
        stages, layout, pairs = NO_STAGES, Layout(), None
    if pairs is None:
        pairs = _name_pairs(traffic, job, choose_kind(streams))
    if volumes is not None and not layout.stages:
        pairs = pairs.with_columns(pl.col("confidence").clip(upper_bound=volumes.sure))
    elif not visible.steps:
        # The period is not a step, so neither messages per step nor their purpose are certain.
        layout = layout.cap(levels.SHARE_HALF)
        told = pl.when(pl.col("kind") == "storage").then(1.0).otherwise(levels.SHARE_HALF)
        pairs = pairs.with_columns(pl.min_horizontal("confidence", told).alias("confidence"))
    if np.isin(job.endpoints, traffic.mixed).any():
        visible, layout = replace(visible, notes=(*visible.notes, MIXED)), layout.cap(levels.SHARE_HALF)
    layout, unseen = find_unseen(traffic, job).judge(traffic, layout)
    layout, unlike = declare_layout(layout, given)
    by_messages = replace(
        list_unstudied(traffic, job, *visible.notes, *unseen, *unlike),
        visible=visible, layout=layout, pairs=pairs, steps=steps, streams=streams, stages=stages, clock=clock,
    )  # fmt: skip
    return _read_bursts(traffic, by_messages, messages)


def _read_bursts(traffic: Traffic, job: JobDiagnosis, own: pl.DataFrame) -> JobDiagnosis:
    """The job by its bursts where messages do not show steps that can be compared, and bursts do.

    What carries what, and how ranks are laid out, is read from its `own` messages.
    """
    if traffic.sample_bytes or traffic.active_ns or traffic.resolution_ns >= levels.MILLISECOND_NS:
        return job  # Sizes or times are too coarse.
    if not traffic.connected:
        return job
    # Over TCP many small messages are acknowledgements, of which any number is in a record.
    whole = float((own["bytes"] < levels.SMALL_MESSAGE_BYTES).mean() or 0.0) < levels.SHARE_MINOR  # type: ignore[arg-type]
    single = whole or not (job.streams["kind"] == "dp").any()
    if single and are_steps_regular(own, job.streams, job.steps, LifeConfig()):
        return replace(job, regular=True)
    bursts = join_bursts(own, job.streams)
    if bursts is None or (whole and bursts.regular):
        return job  # Where records are whole and regular the steps differ.
    if not are_steps_regular(bursts.messages, bursts.streams, bursts.steps, LifeConfig()):
        return job
    visible = judge_visibility(traffic, bursts.streams, bursts.steps, bursts=True)
    kept = [note for note in job.notes if note == MIXED or note not in job.visible.notes]
    return replace(job, bursts=bursts.messages, streams=bursts.streams, steps=bursts.steps, clock=None, visible=visible,
                   regular=True, notes=(*visible.notes, *kept, _BURSTS))  # fmt: skip


def _find_steps(
    traffic: Traffic, job: ObservedJob, messages: pl.DataFrame, streams: pl.DataFrame, known: Known | None
) -> tuple[pl.DataFrame, str | None]:
    """The steps of a job and their clock: the known one, as long as it is as steady as before."""
    if job.period_ns is None:
        return pl.DataFrame(schema=STEPS), None
    saves = list_saves(traffic, job)
    streams = choose_step_streams(streams, find_remnants(traffic, streams))
    if known is not None and known.clock is not None:
        steps, clock = cut_steps(messages, streams, job.period_ns, saves, known.clock)
        if is_steady(steps):
            return steps, clock
    return cut_steps(messages, streams, job.period_ns, saves)


def choose_step_streams(streams: pl.DataFrame, remnants: pl.Series) -> pl.DataFrame:
    """The streams that may mark step boundaries: not remnants, nor those whose records an active timeout split.

    Small messages of every step, such as norms, are used if nothing else is left.
    """
    streams = streams.with_columns(role=pl.when(remnants).then(pl.lit("rare")).otherwise("role"))
    if not streams["cut"].any():
        return streams
    whole = ~pl.col("cut")
    regular = whole & (pl.col("presence") >= 0.5) & ~(whole & (pl.col("role") != "rare")).any()
    return streams.with_columns(
        role=pl.when(regular).then(pl.lit("oneway")).when("cut").then(pl.lit("rare")).otherwise("role"),
        kind=pl.when(regular).then(pl.lit("dp")).otherwise("kind"),
    )


def list_saves(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    """What a job writes to storage."""
    sender = traffic.pairs["src"].to_numpy()[job.storage_pairs]
    return traffic.messages_of(job.storage_pairs[np.isin(sender, job.endpoints)])


def find_last_save(saves: pl.DataFrame, job: ObservedJob, until_ns: int) -> int:
    """When a silent job last wrote to storage; 0 if it writes no faster than before, as monitoring does."""
    after = pl.col("start_ns") >= job.last_ns
    since, before = (int(saves.filter(when)["bytes"].sum()) for when in (after, ~after))
    silent_ns, ran_ns = until_ns - job.last_ns, job.last_ns - job.first_ns
    faster = since * ran_ns > levels.RATIO_DOUBLE * before * silent_ns
    return int(saves["end_ns"].max()) if faster else 0  # type: ignore[arg-type]


def pipeline_messages(messages: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """The messages of streams that carry pipeline traffic, with src and dst."""
    pipe = streams.filter(pl.col("kind") == "pp").select("stream", "src", "dst")
    of_pipe = find_rows(pipe, messages["stream"])
    own = np.flatnonzero(of_pipe >= 0)
    return messages.select("stream", "start_ns", "end_ns")[own].hstack(pipe.select("src", "dst")[of_pipe[own]])


def _name_pairs(traffic: Traffic, job: ObservedJob, kinds: pl.DataFrame) -> pl.DataFrame:
    storage = pl.DataFrame({"pair": job.storage_pairs.astype(np.uint32)}).with_columns(
        kind=pl.lit("storage"), confidence=pl.lit(0.9)
    )
    address = traffic.endpoints["address"]
    labelled = pl.concat([kinds, storage.select(kinds.columns)]).join(
        traffic.pairs.select("pair", "src", "dst"), on="pair"
    )
    return labelled.select(
        "pair",
        address.gather(labelled["src"]).alias("src"),
        address.gather(labelled["dst"]).alias("dst"),
        "kind",
        "confidence",
    ).sort("pair")
