"""The reliable parts of a diagnosis whose transfers were rebuilt from packet samples; the rest is reported as unknown.

The size of a message with n samples has a relative error of 1 / sqrt(n), and its start and end are off by up to a gap
between samples. Totals over the whole capture are far more accurate: 1 % for a pair with 10,000 samples. So which
endpoints train together is always reported, and the stages of a pipeline if totals show them. Tensor, context and data
parallelism send the same totals over the same pairs; only simultaneous starts and ends distinguish them. So they are
reported if almost every message has many samples and these are closer together than ranks of different groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from prism.collect.tables.samples import are_samples
from prism.observe import levels
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.parallelism.stages import NO_STAGES
from prism.observe.parallelism.volumes import lay_out_volumes
from prism.observe.steps.visibility import Visibility
from prism.records.layout import DEGREES, UNKNOWN, Degree, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledConfig:
    """How many samples make what sure; measured ranges are those of proving/benchmarks/collect_sflow.py."""

    message: float = 10.0  # samples of a message; with fewer, degrees were mostly wrong
    few: float = levels.SHARE_MINOR  # share of the messages that may show fewer
    # Between two samples: only moments tell tensor from data parallelism. One in 1,000 packets of 4 KiB at 400 Gbit/s
    # lie 80 us apart, and layouts from these were mostly wrong. That 20 us are close enough is an assumption.
    gap_ns: float = 20_000.0
    pair: float = 400.0  # samples of a pair whose total is compared with others: known to 5 %
    confidence: float = 0.7  # of a layout; those below were often wrong with many samples, too
    from_totals: float = levels.SHARE_LARGE  # confidence of stages that totals show


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    """Samples of a job: of a message (the lower quartile), of its thinnest pair that counts, and one in how many."""

    message: float
    gap_ns: float  # between two samples of a message, in the median
    pair: float
    rate: int


def keep_certain(
    diagnosis: Diagnosis, flows: pl.DataFrame, notes: tuple[str, ...], config: SampledConfig | None = None
) -> Diagnosis:
    """The diagnosis as it is, or what samples can show of it where the notes on `flows` say that they were samples."""
    if not are_samples(notes):
        return diagnosis
    config = config or SampledConfig()
    seen = _count_samples(diagnosis, flows, config)
    jobs = tuple(_judge(diagnosis, job, seen.get(job.id), config) for job in diagnosis.jobs)
    told = tuple(f"{job.id}: {job.notes[-1]}" for job in jobs if job.id in seen and not job.studied and job.notes)
    studied = {job.id for job in jobs if job.studied}
    # Times of single transfers are off by a gap between samples, so only a stop is drawn from them.
    findings = tuple(
        f for f in diagnosis.findings if f.job not in seen or (f.kind in ("hang", "stall") and f.job in studied)
    )
    return replace(diagnosis, jobs=jobs, findings=findings, notes=(*diagnosis.notes, *told))


def _count_samples(diagnosis: Diagnosis, flows: pl.DataFrame, config: SampledConfig) -> dict[str, _Samples]:
    """By job what its transfers were made of; pairs that send little beside the heaviest do not count."""
    job_of = {address: job.id for job in diagnosis.jobs for address in job.endpoints}
    if not job_of:
        return {}
    samples = (pl.col("packets") / pl.col("sampling_rate")).alias("samples")
    gap = ((pl.col("end_ns") - pl.col("start_ns")) / (samples - 1).clip(1)).alias("gap_ns")
    own = flows.select(
        "src",
        "dst",
        "sampling_rate",
        samples,
        gap,
        pl.col("src").replace_strict(job_of, default=None, return_dtype=pl.String).alias("job"),
    )
    own = own.filter(pl.col("job").is_not_null() & pl.col("dst").is_in(list(job_of)))
    # Other exporters may have sent flow records of the same job: it is judged by what most of its records are.
    sampled = pl.col("samples").is_not_null() & (pl.col("sampling_rate") > 1)
    own = own.filter(sampled.fill_null(False).mean().over("job") > 0.5).filter(sampled)
    pairs = own.group_by("job", "src", "dst").agg(pl.col("samples").sum().alias("pair"))
    heavy = pairs.filter(pl.col("pair") >= 0.02 * pl.col("pair").max().over("job"))
    counted = own.group_by("job").agg(
        pl.col("samples").quantile(config.few),
        pl.col("sampling_rate").max(),
        pl.col("gap_ns").filter(pl.col("samples") > 1).median().fill_null(0.0),
    )
    counted = counted.join(heavy.group_by("job").agg(pl.col("pair").min()), on="job")
    return {
        row["job"]: _Samples(message=row["samples"], gap_ns=row["gap_ns"], pair=row["pair"], rate=row["sampling_rate"])
        for row in counted.iter_rows(named=True)
    }


def _judge(diagnosis: Diagnosis, job: JobDiagnosis, seen: _Samples | None, config: SampledConfig) -> JobDiagnosis:
    if seen is None or not job.studied:
        return job
    timed = seen.message >= config.message and seen.gap_ns <= config.gap_ns
    if timed and job.visible.inside and job.layout.confidence >= config.confidence:
        return job
    layout = Layout()
    kinds: dict[int, str] = {}
    volumes = lay_out_volumes(diagnosis.traffic, job.observed) if seen.pair >= config.pair else None
    if volumes is not None and volumes.pp > 1:
        layout = Layout(pp=Degree(volumes.pp, config.from_totals), joint=config.from_totals)
        kinds = volumes.name_pairs(diagnosis.traffic, job.observed)
    piped = [pair for pair, kind in kinds.items() if kind == "pp"]
    kind = (
        pl.when(pl.col("kind") == "storage")
        .then("kind")
        .when(pl.col("pair").is_in(piped))
        .then(pl.lit("pp"))
        .otherwise(pl.lit("unknown"))
    )
    return replace(
        job,
        layout=layout,
        pairs=job.pairs.with_columns(kind=kind),
        stages=NO_STAGES,
        steps=job.steps.clear(),
        streams=pl.DataFrame(),  # Nothing is drawn from single messages.
        visible=Visibility(steps=False, inside=False, layout=False, notes=job.visible.notes),
        notes=(*job.notes, _explain(layout, seen, config)),
    )


def _explain(layout: Layout, seen: _Samples, config: SampledConfig) -> str:
    """What is not known and what would make it known."""
    unknown = ", ".join(name for name in DEGREES if getattr(layout, name) == UNKNOWN)
    error = 100 / max(seen.pair, 1.0) ** 0.5
    lines = f"totals of pairs are known to {error:,.1f} %; {unknown} and steps are not known from samples"
    lacks = []
    if seen.message < config.message:
        lacks.append(
            f"a quarter of the messages show {seen.message:,.0f} samples or fewer, {config.message:,.0f} are needed"
        )
    if seen.gap_ns > config.gap_ns:
        lacks.append(f"samples lie {seen.gap_ns / 1e3:,.0f} us apart, {config.gap_ns / 1e3:,.0f} us are needed")
    if not lacks:
        return f"{lines}: several layouts send as much; export flow records to tell them apart"
    share = min(max(seen.message, 1.0) / config.message / 2, config.gap_ns / max(seen.gap_ns, config.gap_ns))
    return f"{lines}: {'; '.join(lacks)}; sample 1 in {max(1, int(seen.rate * share)):,} or export flow records"
