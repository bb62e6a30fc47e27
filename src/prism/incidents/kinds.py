"""What can be wrong: its family, how it is said, who should look, how urgent it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "ticket", "info"]
Owner = Literal["infrastructure", "training", "operations"]
Family = Literal["slow", "network", "stopped", "host", "risk", "source", "other"]
SEVERITIES: tuple[Severity, ...] = ("info", "ticket", "page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of incident. `rank` orders kinds of a family: what is graver, or closer to the cause, is higher."""

    family: Family
    rank: int
    says: str  # after the name of what it is about
    advice: str
    severity: Severity = "ticket"
    owner: Owner = "infrastructure"


KINDS: Mapping[str, Kind] = {
    "slow_compute": Kind(
        family="slow", rank=3, says="computes longer than others that do the same work",
        advice="look at its GPUs: clocks, heat, ECC; take the host out at the next checkpoint if they show nothing",
    ),
    "slow_group": Kind(
        family="slow", rank=2, says="communicates longer than its siblings",
        advice="look at the links and NICs that only this group uses",
    ),
    "stage_imbalance": Kind(
        family="slow", rank=2, says="has more work than the other pipeline stages", owner="training",
        advice="move layers away from it",
    ),
    "load_imbalance": Kind(
        family="slow", rank=2, says="has work that differs between replicas from step to step", owner="training",
        advice="balance the sequences of each batch",
    ),
    "slow_step": Kind(
        family="slow", rank=1, says="has steps longer than its usual ones, with no single cause found",
        advice="compare with an earlier look: `prism compare EARLIER NOW` names the part that grew",
    ),
    "drift": Kind(
        family="slow", rank=1, says="has steps that get longer and longer", owner="training",
        advice="look for what grows with time: memory, logs, fragments, heat",
    ),
    "slow_link": Kind(
        family="network", rank=2, says="carries transfers more slowly than like ones elsewhere",
        advice="look at its cable, port and error counters",
    ),
    "slow_switch": Kind(
        family="network", rank=3, says="carries transfers more slowly than its peers",
        advice="look at its ports, buffers and firmware; drain it if its counters show errors",
    ),
    "contention": Kind(
        family="network", rank=1, says="is shared by tenants that slow each other down", owner="operations",
        advice="move one of the tenants",
    ),
    "restart": Kind(
        family="other", rank=0, says="stopped and began anew", severity="info", owner="training",
        advice="nothing, if it was meant; else read why the attempt before it ended",
    ),
    "stall": Kind(
        family="stopped", rank=1, says="stood still between two steps", owner="training",
        advice="look at what runs between steps: saving, data loading, evaluation",
    ),
    "hang": Kind(
        family="stopped", rank=2, says="fell silent in the middle of a step", severity="page",
        advice="run `prism investigate` on its Flight Recorder dumps or stacks, then end and restart the attempt",
    ),
    "attempt_ended": Kind(
        family="stopped", rank=3, says="lost an attempt, which its supervisor starts again", owner="training",
        advice="nothing now: see whether the next attempt passes the step at which this one ended",
    ),
    "run_lost": Kind(
        family="stopped", rank=4, says="has no supervisor any more, and did not say how it ended", severity="page",
        owner="operations", advice="look whether its processes live; continue it with `prism supervise --again`",
    ),
    "run_failed": Kind(
        family="stopped", rank=5, says="failed and stands still until a person acts", severity="page",
        owner="training", advice="fix the cause, then continue it with `prism supervise --again`",
    ),
    "failure": Kind(
        family="stopped", rank=3, says="failed", owner="training",
        advice="read the evidence lines; restart from the last good checkpoint",
    ),
    "cordon": Kind(
        family="host", rank=2, says="was taken out of use",
        advice="test it with `prism isolate` before it comes back",
    ),
    "loss_spike": Kind(
        family="other", rank=1, says="has a loss that diverges", owner="training",
        advice="look at the batches of that step; `prism supervise --act-on spike` rolls back by itself",
    ),
    "corruption": Kind(
        family="host", rank=3, says="computed wrong values", severity="page",
        advice="take the host out and go back to the last checkpoint before it",
    ),
    "investigated": Kind(
        family="stopped", rank=2, says="holds the others up", advice="look at the place that the evidence names",
    ),
    "risk": Kind(
        family="risk", rank=1, says="is likely to fail soon", severity="ticket",
        advice="take it out before the next long run, or checkpoint more often while it is in use",
    ),
    "source_lost": Kind(
        family="source", rank=1, says="cannot be read any more: what it told is lost sight of", owner="operations",
        advice="look at the file and at the command that wrote it",
    ),
    "watch_lost": Kind(
        family="source", rank=2, says="does not watch any more", severity="page", owner="operations",
        advice="start `prism watch` again with the same --state; it goes on where it was",
    ),
}  # fmt: skip
UNKNOWN_KIND = Kind(family="other", rank=0, says="has a problem of a kind that this version does not know",
                    advice="read its evidence; a newer version of Prism may know more")  # fmt: skip


def kind_of(name: str) -> Kind:
    """The kind of that name; one of a newer version is shown as unknown."""
    return KINDS.get(name, UNKNOWN_KIND)


def words(name: str) -> str:
    """A kind as people write it."""
    return name.replace("_", " ")
