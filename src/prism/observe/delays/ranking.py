"""All findings of a cluster, worst first, each reported once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.delays.comparison import Comparison, compare_nothing, describe
from prism.observe.delays.lateness import list_lateness
from prism.observe.delays.stalls import find_stalls
from prism.observe.delays.telling import find_delays
from prism.observe.findings.case import Case, is_pipeline
from prism.observe.findings.contention import find_contention
from prism.observe.findings.network import find_network, find_scene
from prism.observe.findings.progress import find_slow_steps
from prism.observe.findings.silence import find_hang
from prism.observe.findings.stages import find_heavy_stages
from prism.observe.findings.transfers import SlowPair, Transfers, find_slow_pairs, measure_transfers
from prism.observe.findings.verdicts import Proposal, choose, covers
from prism.observe.traffic.threads import describe_error, try_each
from prism.records.findings import Finding

_WORTH_AT_ALL = levels.ONE_PER_MILLE  # of the time of all GPUs in all steps
_EXPLAINS = 0.5  # of what steps are longer by: a late rank that explains less yields to a slow link
_WORTH = levels.WORTH_TELLING  # of the time of all GPUs while it lasts


def find_all(
    cases: Sequence[Case],
    routes: pl.DataFrame | None = None,
    notes: list[str] | None = None,
    compared: dict[str, Comparison] | None = None,
) -> tuple[Finding, ...]:
    """Findings of every job, ordered by confidence and cost; a cause comes before its effects.

    `notes` collects which jobs could not be analysed and why, `compared` by job what its findings were looked for in.
    """
    notes = [] if notes is None else notes
    compared = {} if compared is None else compared
    measured = {case.job.id: found for case, found in try_each(_measure, cases, _name, notes)}
    cases = [case for case in cases if case.job.id in measured]
    transfers = {job: found for job, (found, _) in measured.items()}
    try:
        contended = find_contention(cases, transfers, routes)
    except Exception as error:
        contended = {}
        notes.append(f"contention of tenants: {describe_error(error)}")
    scenes = {
        case.job.id: scene
        for case, scene in try_each(lambda case: find_scene(case, *measured[case.job.id], routes), cases, _name, notes)
    }
    cases = [case for case in cases if case.job.id in scenes]
    felt = [scene for scene in scenes.values() if scene is not None]

    def explain(case: Case) -> list[Finding]:
        compared[case.job.id] = compare_nothing(case)
        if not case.transfers_visible:
            # One long step may be several whose boundaries are not visible.
            return [
                f for f in find_slow_steps(case) if (f.end_ns - f.start_ns) / 1e9 > 1.5 * float(case.length_s.max())
            ]
        job = case.job.id
        scene = scenes[job]
        stops = find_hang(case)
        stops += find_stalls(case, stops, runs=case.runs)
        # Bursts do not show what a stage waits for.
        hidden = case.wanders or (case.bursts and is_pipeline(case))
        tables = [] if hidden else list_lateness(case)
        compared[job] = describe(case, tables)
        late = [] if hidden else _apart_from(stops, find_delays(case, tables))
        late = [x for x in late if not (case.bursts and _sends_slowly(case, x.finding))]
        # A job that is occasionally held up may be so when the observation ends.
        held_up = any(x.finding.culprit.type == "job" for x in late)
        stops = [s for s in stops if _is_long(case, s) or not held_up]
        shared = _apart_from(stops, contended.get(job, []))
        slow = [] if scene is None else _apart_from(stops, find_network(scene, felt))
        # A rank whose work explains little of what steps are longer by may work while it waits for what is slow.
        late = [x for x in late if x.explained >= _EXPLAINS or not any(p.rivals(x) for p in slow)]
        # Where a link is slow nobody begins late, and transfers that wait for a late rank are long too.
        slow = [p for p in slow if not any(p.rivals(x) for x in late)]
        # A stage is heavy by design whatever begins later; who is late all the time may be what makes it so.
        heavy = [] if hidden or any(_lasts(case, x.finding) for x in late) else find_heavy_stages(case)
        told = choose(case, heavy + late + shared + slow)
        causes = stops + [c for c in told if _is_worth_telling(case, c)]
        if case.wanders:
            notes.append(f"{job}: its steps do not all send the same, so who is late and how long they are is not told")
            return causes
        steps = [s for s in find_slow_steps(case, stops) if not any(covers(c, s) for c in causes)]
        return causes + [f for f in steps if _is_worth_telling(case, f)]

    found = [finding for _, findings in try_each(explain, cases, _name, notes) for finding in findings]
    until = max((case.observed_until_ns for case in cases), default=0)
    return tuple(sorted(found, key=lambda f: _weight(f, until), reverse=True))


def _name(case: Case) -> str:
    return case.job.id


def _measure(case: Case) -> tuple[Transfers | None, list[SlowPair]]:
    transfers = measure_transfers(case) if case.transfers_visible and not case.bursts else None
    return transfers, find_slow_pairs(case, transfers)


def _weight(finding: Finding, until_ns: int) -> tuple[bool, float, float]:
    """A job that is at a standstill when the observation ends comes first; then by cost and confidence."""
    stands = finding.kind == "hang" and finding.end_ns >= until_ns
    return stands, finding.lost_gpu_seconds * finding.score, finding.score


def _is_worth_telling(case: Case, finding: Finding) -> bool:
    """Whether fixing it would save more than steps vary anyway, both while it lasts and over the whole observation."""
    while_s = (finding.end_ns - finding.start_ns) / 1e9
    all_s = float(case.length_s.sum())
    return finding.lost_gpu_seconds >= case.gpus * max(_WORTH * while_s, _WORTH_AT_ALL * all_s)


def _apart_from(stops: list[Finding], proposals: list[Proposal]) -> list[Proposal]:
    """Proposals whose window is not mostly a standstill: a step with a standstill is long in every measure."""
    return [p for p in proposals if not any(covers(s, p.finding) for s in stops)]


def _sends_slowly(case: Case, finding: Finding) -> bool:
    """Whether the bursts of a late rank take far longer than usual too: then what it sends over is slow, or others.

    The others wait for a late rank in the middle of their bursts, and it waits for nobody.
    """
    named = set(finding.culprit.id.split(","))
    ours = [e for e in case.job.endpoints.tolist() if {case.host(e), case.address(e)} & named]
    own = case.messages.filter(pl.col("src").is_in(ours) & (pl.col("step") >= 0))
    took = (pl.col("end_ns") - pl.col("start_ns")).median()
    inside = pl.col("start_ns").is_between(finding.start_ns, finding.end_ns)
    while_late, usual = (own.filter(when).select(took).item() for when in (inside, ~inside))
    return bool(while_late and usual and while_late > levels.RATIO_DOUBLE * usual)


def _lasts(case: Case, finding: Finding) -> bool:
    """Whether a finding is there for most of the observation."""
    all_ns = int(case.steps["end_ns"].to_numpy()[-1] - case.steps["start_ns"].to_numpy()[0])
    return finding.end_ns - finding.start_ns > levels.SHARE_HALF * all_ns


def _is_long(case: Case, stop: Finding) -> bool:
    """Whether a standstill is longer than a usual step."""
    return (stop.end_ns - stop.start_ns) / 1e9 > float(np.median(case.length_s))
