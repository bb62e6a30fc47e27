"""Diagnose the real traffic of the lab and compare the result with the truth."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from prism.collect import open_source, read_packets
from prism.collect.assembler import BurstConfig
from prism.lab.testbed.lab import LabConfig, LabRun, Phase, Tenant, run_lab
from prism.observe import levels
from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.records.findings import Finding

_BURSTS = BurstConfig(gap_ns=20_000_000)  # Processes that share cores pause for longer in a message than machines do.
# Of the mean step; the program's own clock is read before its first packet leaves.
_STEP_TOLERANCE = levels.SHARE_NEGLIGIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One expected result, and the actual one."""

    phase: str
    what: str
    wanted: str
    found: str
    is_right: bool


def check_lab(config: LabConfig, folder: Path, tell: Callable[[str], None]) -> list[Check]:
    """Run the lab, diagnose its packets phase by phase, and its IPFIX export as a whole."""
    with _Listening() as exported:
        run = run_lab(config, folder, exported.port, tell)
    tell("diagnosing the capture")
    topology = _topology(run)
    topology.write_csv(folder / "topology.csv")
    flows = read_packets(run.capture, _BURSTS).flows
    flows.write_parquet(folder / "flows.parquet")
    checks = []
    for phase in run.phases:
        # Transfers under way at the end of a phase count: without them ranks that had just begun would seem stuck.
        seen = flows.filter(pl.col("start_ns").is_between(phase.start_ns, phase.end_ns))
        checks += check_phase(run, phase, diagnose(seen, topology))
    return [*checks, _check_export(flows, exported.take())]


def check_phase(run: LabRun, phase: Phase, diagnosis: Diagnosis) -> list[Check]:
    """Jobs, layout, stages, step time and culprit of one stretch."""
    checks = []
    for tenant in run.tenants:
        wanted = {run.addresses[host] for host in tenant.hosts}
        job = next((j for j in diagnosis.jobs if wanted & set(j.endpoints)), None)
        if job is None:
            checks.append(_check(phase, f"{tenant.name} endpoints", ", ".join(tenant.hosts), "no job", False))
            continue
        hosts = ", ".join(sorted(job.hosts))
        checks.append(
            _check(phase, f"{tenant.name} endpoints", ", ".join(tenant.hosts), hosts, wanted == set(job.endpoints))
        )
        checks += [_check_layout(phase, tenant, job), _check_steps(run, phase, tenant, job)]
    return [*checks, _check_culprit(run, phase, diagnosis.findings)]


def _check_layout(phase: Phase, tenant: Tenant, job: JobDiagnosis) -> Check:
    found = (job.layout.dp.value, job.layout.pp.value)
    return _check(phase, f"{tenant.name} layout", f"dp {tenant.dp}, pp {tenant.pp}", f"dp {found[0]}, pp {found[1]}",
                  found == (tenant.dp, tenant.pp))  # fmt: skip


def _check_steps(run: LabRun, phase: Phase, tenant: Tenant, job: JobDiagnosis) -> Check:
    inside = [(s, e) for s, e in run.steps[tenant.name] if s >= phase.start_ns and e <= phase.end_ns]
    true = float(np.mean(np.diff([s for s, _ in inside]))) / 1e6
    starts = job.steps["start_ns"].to_numpy()
    found = float(np.mean(np.diff(starts))) / 1e6 if starts.size > 1 else float("nan")
    error = abs(found - true) / true
    return _check(
        phase, f"{tenant.name} step", f"{true:.1f} ms", f"{found:.1f} ms ({error:.2%} off)", error < _STEP_TOLERANCE
    )


def _check_culprit(run: LabRun, phase: Phase, findings: tuple[Finding, ...]) -> Check:
    first = findings[0] if findings else None
    told = f"{first.kind}: {first.culprit.type} {first.culprit.id}" if first else "nothing"
    if phase.culprit is None:
        return _check(phase, "culprit", "nothing", told, first is None)
    kind = {"slow host": "slow_compute", "slow link": "slow_link"}[phase.name]
    names = {phase.culprit, run.addresses[phase.culprit]}
    # A link is named by its ends, as `a>b`.
    right = (
        first is not None and first.kind == kind and bool(names & set(first.culprit.id.replace(">", ",").split(",")))
    )
    return _check(phase, "culprit", f"{kind}: {phase.culprit}", told, right)


def _check_export(captured: pl.DataFrame, exported: pl.DataFrame) -> Check:
    """The exporter counts headers too, and misses the flows that are open at its end."""
    want, got = int(captured["bytes"].sum()), int(exported["bytes"].sum()) if exported.height else 0
    found = f"{got / 1e6:.1f} MB in {exported.height:,} records"
    right = 0.9 < got / max(want, 1) < 1.2
    return Check(
        phase="all", what="bytes in IPFIX", wanted=f"{want / 1e6:.1f} MB of payload", found=found, is_right=right
    )


def _check(phase: Phase, what: str, wanted: str, found: str, is_right: bool) -> Check:
    return Check(phase=phase.name, what=what, wanted=wanted, found=found, is_right=is_right)


def _topology(run: LabRun) -> pl.DataFrame:
    hosts = list(run.addresses)
    return pl.DataFrame({"address": [run.addresses[h] for h in hosts], "host": hosts, "rail": [0] * len(hosts),
                         "switch": ["bridge"] * len(hosts)})  # fmt: skip


class _Listening:
    """An IPFIX listener on a free port of this machine, read in the background."""

    def __enter__(self) -> _Listening:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._source = open_source(f"ipfix://127.0.0.1:{self.port}")
        self._frames: list[pl.DataFrame] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._source.close()

    def take(self) -> pl.DataFrame:
        """Everything that arrived."""
        return pl.concat(self._frames, how="diagonal") if self._frames else pl.DataFrame()

    def _read(self) -> None:
        while not self._over.is_set():
            frame = self._source.poll(0.2)
            if frame.height:
                self._frames.append(frame)
