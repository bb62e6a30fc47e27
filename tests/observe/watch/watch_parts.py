"""Parts for watch tests: flows at given moments, a source made of frames, an analyst that answers from a script."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import polars as pl

from prism.collect import SourceCounts
from prism.observe.watch.state import SeenJob, WindowReport
from prism.records import FLOWS, Culprit, Finding

S = 10**9


def make_flows(ends_s: list[float], src: str = "10.0.0.1", start_s: float = 1_700_000_000) -> pl.DataFrame:
    ends = [int((start_s + e) * S) for e in ends_s]
    frame = pl.DataFrame(
        {"start_ns": [e - 1000 for e in ends], "end_ns": ends, "src": src, "dst": "10.0.0.2", "bytes": 10}
    )
    return FLOWS.conform(frame)


def make_finding(job: str = "job-1", culprit: str = "10.0.0.1", start_s: float = 0, end_s: float = 5, cost: float = 10.0,
                 kind: str = "slow_compute", evidence: str = "late") -> Finding:  # fmt: skip
    blamed = Culprit(type="job" if culprit.startswith("job") else "endpoint", id=culprit)
    return Finding(kind=kind, job=job, culprit=blamed, start_ns=int(start_s * S), end_ns=int(end_s * S),
                   lost_gpu_seconds=cost, score=0.9, evidence=evidence)  # fmt: skip


def make_report(
    until_s: float, *findings: Finding, jobs: dict[str, list[str]] | None = None, step_s: float = 1.0
) -> WindowReport:
    """A look at jobs whose steps go on and last so long; hosts have ten addresses each."""
    jobs = jobs or {"job-1": ["10.0.0.1", "10.0.0.2"]}
    return WindowReport(
        until_ns=int(until_s * S),
        jobs=tuple(
            SeenJob(
                id=i,
                endpoints=tuple(e),
                step_s=step_s,
                recent_s=step_s,
                num_steps=9,
                stepped_ns=int(until_s * S),
                host_of={a: f"node-{a.split('.')[2]}" for a in e},
            )
            for i, e in jobs.items()
        ),
        findings=findings,
    )


class FrameSource:
    """A source of given frames, one at each poll."""

    is_live = False
    starts_over = False

    def __init__(self, *frames: pl.DataFrame) -> None:
        self.counts = SourceCounts()
        self.notes: tuple[str, ...] = ()
        self._frames = list(frames)

    @property
    def is_finished(self) -> bool:
        return not self._frames

    def poll(self, timeout_s: float) -> pl.DataFrame:
        frame = self._frames.pop(0)
        self.counts.flows += frame.height
        return frame

    def save_position(self) -> dict[str, list[int]]:
        return {}

    def close(self) -> None:
        pass


class ScriptedAnalyst:
    """Answers every look with what a function makes of its flows."""

    def __init__(self, answer: Callable[[pl.DataFrame, int], WindowReport]) -> None:
        self.looks: list[tuple[int, int]] = []  # flows, until
        self._answer = answer

    def submit(
        self, flows: pl.DataFrame, topology: pl.DataFrame | None, until_ns: int, given: object = ()
    ) -> Future[WindowReport]:
        self.looks.append((flows.height, until_ns))
        done: Future[WindowReport] = Future()
        try:
            done.set_result(self._answer(flows, until_ns))
        except RuntimeError as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        pass
