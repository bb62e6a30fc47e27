"""Harm to hosts: a cable cut, a cable slowed, a node that fails whenever it is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from prism.lab.testbed.namespaces import Namespaces
from proving.drills.outcome import Outcome, measure, require
from proving.drills.process_drills import HANG_SETTINGS, JOB, Script
from proving.drills.stage import RISK, Stage, merge

_RANKS_PER_HOST = 2
_EXAMINE = {"megabytes": 0.05, "timeout_s": 5.0, "group_rounds": 2, "slow_ratio": 0.2}


def cut_network(script: Script, net: Namespaces | None = None) -> Outcome:
    """Pull the cable of a host in the job: found by silence, proven by the host test, replaced by a spare."""
    with _hosts(net) as hosts:
        stage = _stage(script, "cut-network", None if net else hosts, **HANG_SETTINGS)
        return _replace(script, "cut a host's network", stage, "h2", lambda: hosts.cut("h2"))


def slow_link(script: Script, net: Namespaces | None = None) -> Outcome:
    """Slow a host's cable: nothing fails, but every step waits. The job saves, moves to a spare and is fast again."""
    pace = {"slow_factor": 3.0, "slow_steps": 5, "baseline_steps": 15, "min_silence_s": 60.0}
    with _hosts(net) as hosts:
        stage = _stage(script, "slow-link", None if net else hosts, pace=pace)
        return _replace(script, "slow a host's link", stage, "h2", lambda: hosts.slow("h2", 500))


def bad_node(script: Script, victim: str = "") -> Outcome:
    """A host whose process dies in every attempt, without a word in the log: struck twice, then left out."""
    if victim:  # of a cluster
        job = replace(JOB, more=("--bad-host", f"{victim}:14"))
        stage = script.stage("bad-node", job, examine=_EXAMINE)
    else:
        victim, hosts = "n2", {"hosts": ["n1", "n2", "n3"], "num_hosts": 2}
        job = replace(JOB, ranks=_RANKS_PER_HOST, more=("--bad-host", f"{victim}:14"))
        addresses = dict.fromkeys(("n1", "n2", "n3"), "127.0.0.1")
        stage = script.stage("bad-node", job, hosts=hosts, launch={"addresses": addresses}, examine=_EXAMINE)
    try:
        stage.start()
        stage.wait_step(14)
        stage.mark_hurt()
        return _check(script, "a node that always fails", stage, victim)
    finally:
        stage.close()


def _hosts(net: Namespaces | None) -> AbstractContextManager[Namespaces]:
    """The hosts of a cluster, or four that are made for one drill."""
    return nullcontext(net) if net is not None else Namespaces(4)


def _stage(script: Script, name: str, net: Namespaces | None, **settings: object) -> Stage:
    """A stage on a cluster that knows its hosts, or on namespaces of this drill."""
    more = ("--payload-kb", "64") if name == "slow-link" else ()
    if net is None:
        return script.stage(name, replace(JOB, more=more), examine=_EXAMINE, **settings)
    # gloo must not choose the loopback of the namespace.
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    launch = {"host_prefix": net.prefix, "addresses": net.addresses}
    hosts = {"hosts": list(net.hosts), "num_hosts": 2}
    whole = merge({"launch": launch, "hosts": hosts, "examine": _EXAMINE}, dict(settings))
    return script.stage(name, replace(JOB, ranks=_RANKS_PER_HOST, more=more), **whole)


def _replace(script: Script, name: str, stage: Stage, victim: str, hurt: Callable[[], None]) -> Outcome:
    try:
        stage.start()
        stage.wait_step(25)
        stage.mark_hurt()
        hurt()
        return _check(script, name, stage, victim)
    finally:
        stage.close()
        os.environ.pop("GLOO_SOCKET_IFNAME", None)


def _check(script: Script, name: str, stage: Stage, victim: str) -> Outcome:
    state = stage.wait_end()
    require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
    # With risks that are right the job never holds the host that is about to fail.
    avoided = RISK in os.environ and state.attempt == 1
    out = () if avoided else (victim,)
    told = (stage.run_dir / "decisions.log").read_text()[-1_000:]
    require(state.book.cordoned() == out, f"{out} out of use, not {state.book.cordoned()}:\n{told}")
    require(victim not in state.hosts, f"{victim} not in the last attempt")
    expected = script.reference(stage.job, ranks=2 * _RANKS_PER_HOST)
    outcome = measure(
        name, stage, expected, note=f"{victim} {'avoided' if avoided else 'out'}, {', '.join(state.hosts)} in"
    )
    require(outcome.equal is True, "the losses of an undisturbed run")
    require(outcome.lost_steps <= stage.job.save_every, "at most one interval lost")
    return outcome
