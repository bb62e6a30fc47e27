"""What `prism diagnose --output` wrote: jobs, findings, topology and the load of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import polars as pl

from prism.errors import BadFileError
from prism.observe.report.links import LINKS
from prism.records import TOPOLOGY, Culprit, Finding, Layout
from prism.serve.folder import Folder
from prism.serve.sources.place import Place, read_object

DIAGNOSIS_FILE = "diagnosis.json"
TIMELINE_FILE = "timeline.parquet"
TOPOLOGY_FILE = "topology.csv"
LINKS_FILE = "links.parquet"
BESIDE = (TIMELINE_FILE, TOPOLOGY_FILE, LINKS_FILE)

STEPS = pl.Schema({"index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64})
_MOST_TABLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedJob:
    """One job as the network showed it; a rank is the position of its endpoint."""

    id: str
    endpoints: tuple[str, ...]
    hosts: tuple[str, ...]
    layout: Layout
    finding_stages: Mapping[str, int]  # by address, as the ids of findings count them
    steps: pl.DataFrame  # STEPS
    state: str = "unknown"  # running, ended, stopped or paused; diagnoses of earlier versions do not say
    started_ns: int | None = None
    ended_ns: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """One diagnosis."""

    place: str
    jobs: tuple[DiagnosedJob, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    topology: pl.DataFrame | None = None
    links: pl.DataFrame | None = None
    timeline: str | None = None  # path of its SPANS
    updated_ns: int = 0

    @property
    def until_ns(self) -> int:
        """The end of the diagnosed records; if they give none, the time at which the file was written."""
        ends = [job.ended_ns or 0 for job in self.jobs]
        ends += [int(job.steps["end_ns"][-1]) for job in self.jobs if len(job.steps)]
        ends += [finding.end_ns for finding in self.findings]
        return max(ends, default=0) or self.updated_ns


def read_diagnosed(folder: Folder, place: Place) -> Diagnosed:
    """Read a diagnosis and the tables beside it."""
    path = place.path_of(DIAGNOSIS_FILE)
    document = read_object(folder, path)
    try:
        jobs = tuple(_read_job(job, f"{path} job {index + 1}") for index, job in enumerate(document["jobs"]))
        findings = tuple(read_finding(finding) for finding in document["findings"])
        notes = tuple(str(note) for note in document.get("notes", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{path}: not a diagnosis ({error!r}); run prism diagnose again") from None
    return Diagnosed(
        place=place.path,
        jobs=jobs,
        findings=findings,
        notes=notes,
        topology=read_topology(folder, place),
        links=_read_links(folder, place),
        timeline=place.path_of(TIMELINE_FILE) if TIMELINE_FILE in place.files else None,
        updated_ns=place.files[DIAGNOSIS_FILE].mtime_ns,
    )


def read_finding(document: Mapping[str, Any]) -> Finding:
    """A finding from the document form that commands print."""
    culprit = document["culprit"]
    return Finding(
        kind=cast(Any, str(document["kind"])),
        job=str(document["job"]),
        culprit=Culprit(type=cast(Any, str(culprit["type"])), id=str(culprit["id"])),
        start_ns=int(document["start_ns"]),
        end_ns=int(document["end_ns"]),
        lost_gpu_seconds=float(document["lost_gpu_seconds"]),
        score=float(document["score"]),
        evidence=str(document["evidence"]),
    )


def read_topology(folder: Folder, place: Place) -> pl.DataFrame | None:
    """The topology beside a file, if there is one."""
    if TOPOLOGY_FILE not in place.files:
        return None
    path = place.path_of(TOPOLOGY_FILE)
    data = folder.read_whole(path, most=_MOST_TABLE_BYTES)
    try:
        return TOPOLOGY.conform(pl.read_csv(data, infer_schema=False), path)
    except pl.exceptions.PolarsError as error:
        raise BadFileError(f"{path}: not a CSV table ({str(error).splitlines()[0]})") from None


def _read_links(folder: Folder, place: Place) -> pl.DataFrame | None:
    if LINKS_FILE not in place.files:
        return None
    path = place.path_of(LINKS_FILE)
    data = folder.read_whole(path, most=_MOST_TABLE_BYTES)
    try:
        return LINKS.conform(pl.read_parquet(data), path)
    except pl.exceptions.PolarsError as error:
        raise BadFileError(f"{path}: not a Parquet table ({str(error).splitlines()[0]})") from None


def _read_job(document: Mapping[str, Any], where: str) -> DiagnosedJob:
    parts = {name: document[name] for name in ("groups", "stages") if name in document}
    layout = Layout.from_json({**document["layout"], **parts}, where)
    steps = [(step["index"], step["start_ns"], step["end_ns"]) for step in document["steps"]]
    return DiagnosedJob(
        id=str(document["id"]),
        endpoints=tuple(map(str, document["endpoints"])),
        hosts=tuple(map(str, document["hosts"])),
        layout=layout,
        finding_stages=dict(document.get("finding_stages", layout.stages)),
        steps=pl.DataFrame(steps, schema=STEPS, orient="row"),
        state=str(document.get("state") or "unknown"),
        started_ns=_moment(document.get("started_ns")),
        ended_ns=_moment(document.get("ended_ns")),
        notes=tuple(str(note) for note in document.get("notes", ())),
    )


def _moment(value: Any) -> int | None:
    return None if value is None else int(value)
