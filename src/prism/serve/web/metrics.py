"""Prometheus metrics of what is served: jobs, steps, findings, recoveries, evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prism.serve.incidents import Incidents
from prism.serve.snapshot import Snapshot
from prism.serve.sources.evaluated import Evaluated
from prism.serve.sources.supervised import Supervised
from prism.serve.views.failures import list_hosts, list_verdicts
from prism.serve.views.looks import find_now

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = Iterable[tuple[dict[str, str], float]]


def render_metrics(snapshot: Snapshot, incidents: Incidents) -> str:
    """The text format that Prometheus reads."""
    return "".join([*_of_jobs(snapshot), *_of_findings(snapshot), *_of_runs(snapshot), *_of_evaluations(snapshot),
        *_of_incidents(incidents),
        write_metric("snapshot_version", "counter", "Times that the folder was found changed.",
                     [({}, snapshot.version)]),
        write_metric("unreadable_files", "gauge", "Files that could not be read.",
                     [({}, sum(state.state == "broken" for state in snapshot.states))]),
        write_metric("stale_files", "gauge", "Files of something at work that are not written to any more.",
                     [({}, sum(state.state == "stale" for state in snapshot.states))]),
    ])  # fmt: skip


def _of_incidents(incidents: Incidents) -> list[str]:
    known = incidents.list()
    counts = Counter((one.kind, one.severity, one.owner, one.state) for one in known if one.state in ("open", "lost"))
    sick = [one for one in known if one.state in ("open", "lost")]
    names = ("kind", "severity", "owner", "state")
    deliveries = incidents.deliveries()
    return [
        write_metric("incidents", "gauge", "Incidents that are open or lost sight of.",
                     [(dict(zip(names, row, strict=True)), n) for row, n in sorted(counts.items())]),
        write_metric("incident_gpus_lost", "gauge", "GPU-hours that it takes in an hour, times how sure it is.",
                     [({"id": one.id, **one.labels, "severity": one.severity, "state": one.state}, one.badness)
                      for one in sick]),
        write_metric("messages_waiting", "gauge", "Messages that a channel has not taken yet.",
                     [({"channel": name}, one.num_waiting) for name, one in deliveries.items()]),
        write_metric("messages_lost", "counter", "Messages refused for good, or too old to tell anything.",
                     [({"channel": name}, one.num_lost) for name, one in deliveries.items()]),
        write_metric("state_in_memory_only", "gauge", "1 while incidents or messages cannot be written to disk.",
                     [({}, int(bool(incidents.trouble)))]),
    ]  # fmt: skip


def _of_jobs(snapshot: Snapshot) -> list[str]:
    now = find_now(snapshot)
    jobs = (*now.jobs, *now.predictions)
    # Not "job": Prometheus adds that label to every target and would rename ours.
    labels = [({"prism_job": job.id, "place": job.place, "source": job.source}, job) for job in jobs]
    by_health: Counter[tuple[str, str]] = Counter((job.source, job.health) for job in jobs)
    states = [({"source": source, "health": health}, n) for (source, health), n in sorted(by_health.items())]
    return [
        write_metric("jobs", "gauge", "Jobs by source and health.", states),
        write_metric(
            "job_ranks", "gauge", "Ranks of a job.",
            [(name, job.num_ranks) for name, job in labels if job.num_ranks is not None],
        ),
        write_metric(
            "job_steps", "gauge", "Steps seen of a job.",
            [(name, job.num_steps) for name, job in labels if job.num_steps is not None],
        ),
        write_metric(
            "job_step_seconds", "gauge", "Median step of a job.",
            [(name, job.step_s) for name, job in labels if job.step_s is not None],
        ),
        write_metric(
            "job_lost_gpu_seconds", "gauge", "GPU-seconds that findings cost a job.",
            [(name, job.lost_gpu_seconds) for name, job in labels],
        ),
    ]  # fmt: skip


def _of_findings(snapshot: Snapshot) -> list[str]:
    counts = Counter((finding.place, finding.kind) for finding in find_now(snapshot).findings)
    verdicts = Counter(
        (told.verdict.cause.name, told.verdict.category, told.verdict.action) for told in list_verdicts(snapshot)
    )
    return [
        write_metric(
            "findings",
            "gauge",
            "Findings by kind.",
            [({"place": place, "kind": kind}, n) for (place, kind), n in sorted(counts.items())],
        ),
        write_metric(
            "verdicts",
            "gauge",
            "Explained failures.",
            [({"reason": r, "category": c, "action": a}, n) for (r, c, a), n in sorted(verdicts.items())],
        ),
    ]


def _of_runs(snapshot: Snapshot) -> list[str]:
    runs = [({"run": run.place}, run) for run in snapshot.all_of(Supervised)]
    hosts = list_hosts(snapshot)
    return [
        write_metric("run_attempts", "counter", "Attempts of a run.", [(name, run.attempt) for name, run in runs]),
        write_metric(
            "run_step",
            "gauge",
            "Furthest step of a run.",
            [(name, run.best_step) for name, run in runs if run.best_step >= 0],
        ),
        write_metric(
            "run_failures", "counter", "Failures of a run.", [(name, len(run.failures)) for name, run in runs]
        ),
        write_metric(
            "run_recoveries",
            "counter",
            "Attempts after the first: failures recovered from, and rollbacks.",
            [(name, max(0, run.attempt - 1)) for name, run in runs],
        ),
        write_metric(
            "run_rollbacks", "counter", "Rollbacks for a bad loss.", [(name, run.num_rollbacks) for name, run in runs]
        ),
        write_metric(
            "run_supervised",
            "gauge",
            "1 while its supervisor is at work.",
            [(name, float(run.supervised)) for name, run in runs],
        ),
        write_metric("hosts_cordoned", "gauge", "Hosts out of use.", [({}, sum(host.cordoned for host in hosts))]),
    ]


def _of_evaluations(snapshot: Snapshot) -> list[str]:
    found = [({"evaluation": source.place}, source.progress) for source in snapshot.all_of(Evaluated)]
    states = ("done", "running", "waiting", "failed")
    return [
        write_metric(
            "evaluation_trials", "gauge", "Trials by state.",
            [({**name, "state": state}, getattr(p, state)) for name, p in found for state in states],
        ),
        write_metric(
            "evaluation_gpus_busy", "gauge", "GPUs at work.",
            [(name, p.gpus_busy) for name, p in found if p.gpus_busy is not None],
        ),
        write_metric(
            "evaluation_time_left_seconds", "gauge", "Seconds left, as expected.",
            [(name, p.time_left_s) for name, p in found if p.time_left_s is not None],
        ),
    ]  # fmt: skip


def write_metric(name: str, kind: str, about: str, samples: Samples) -> str:
    """One metric with its samples; counters end in _total."""
    full = f"prism_serve_{name}{'_total' if kind == 'counter' else ''}"
    lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"{full}{'{' + inside + '}' if inside else ''} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
