"""Whether two sightings are of one fault. Pure rules, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from prism.incidents.events import Sighting
from prism.incidents.incident import Incident
from prism.incidents.kinds import kind_of

# A cause without a place of its own: the job, or a share of it.
_WHOLE = frozenset({"job", "stage", "group"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """How near two sightings of one fault are."""

    # Windows of one fault that different tools cut need not touch: a watch judges every 3 s over 60 s.
    slack_ns: int = 90 * 10**9
    # The same fault after a restart is the same incident; an attempt takes minutes to start.
    again_ns: int = 1_800 * 10**9
    shared_hosts: float = 0.5  # of the larger set, for two names of one job


def is_same_fault(
    incident: Incident, sighting: Sighting, tool: str, job_hosts: frozenset[str], config: MergeConfig
) -> bool:
    """Whether what a tool sees is this incident. `job_hosts`: of the incident's job, as far as they are known."""
    if not _same_family(incident.kind, sighting.kind):
        return False
    slack_ns = config.again_ns if incident.place == sighting.place else config.slack_ns
    apart = sighting.since_ns > incident.until_ns + slack_ns or sighting.until_ns < incident.since_ns - slack_ns
    if apart or not _same_job(incident, sighting, tool, job_hosts, config):
        return False
    return _same_place(incident, sighting)


def _same_family(first: str, second: str) -> bool:
    a, b = kind_of(first), kind_of(second)
    return first == second or (a.family == b.family and a.family in ("slow", "network", "stopped"))


def _same_job(
    incident: Incident, sighting: Sighting, tool: str, job_hosts: frozenset[str], config: MergeConfig
) -> bool:
    if incident.job_key == sighting.job_key:
        return True
    if not incident.job_key or not sighting.job_key:
        return kind_of(sighting.kind).family in ("host", "risk", "source")
    # One look names its jobs apart; only different sources call one job by two names.
    if incident.job_key.rpartition("~")[0] == sighting.job_key.rpartition("~")[0]:
        return False
    # The network does not tell names, so a job gets one from each look; a supervised run is called by its own.
    if tool == "supervise" and any(witness.tool == tool for witness in incident.witnesses):
        return False
    theirs = frozenset(sighting.job_hosts)
    larger = max(len(job_hosts), len(theirs))
    return bool(larger) and len(job_hosts & theirs) >= config.shared_hosts * larger


def _same_place(incident: Incident, sighting: Sighting) -> bool:
    here, there = incident.place, sighting.place
    if here == there:
        return True
    if kind_of(sighting.kind).family == "stopped":
        return True  # a job stands still once at a time, whoever is blamed for it
    if "slow_step" in (incident.kind, sighting.kind) or "drift" in (incident.kind, sighting.kind):
        return here.type in _WHOLE or there.type in _WHOLE  # long steps are what the named cause does
    # An endpoint that turns out to be its host; two endpoints of one host stay two.
    if {here.type, there.type} not in ({"host"}, {"endpoint"}, {"host", "endpoint"}):
        return False
    if set(here.id.split(",")) & set(there.id.split(",")):
        return True
    return "host" in (here.type, there.type) and bool(set(incident.hosts) & set(sighting.hosts))
