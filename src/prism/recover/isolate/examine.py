"""Testing real hosts: the search on one side, probes on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prism.errors import BadConfigError
from prism.recover.isolate.agents import Agents, ProbeConfig
from prism.recover.isolate.few import PairSearch
from prism.recover.isolate.grading import FEW_HOSTS
from prism.recover.isolate.report import IsolationReport
from prism.recover.isolate.search import Round, Search, SearchConfig


def start_search(num_hosts: int, config: SearchConfig | None = None, seed: int = 0) -> Search | PairSearch:
    """The search that suits the number of hosts."""
    return PairSearch(num_hosts, config) if num_hosts <= FEW_HOSTS else Search(num_hosts, config, seed)


def isolate_hosts(
    hosts: Sequence[str],
    prefix: Callable[[str], Sequence[str]],
    probes: ProbeConfig | None = None,
    search: SearchConfig | None = None,
    on_round: Callable[[int, Round], None] | None = None,
) -> IsolationReport:
    """Search for bad hosts; `prefix` gives the words that run a command on a host."""
    if len(set(hosts)) != len(hosts) or len(hosts) < 2:
        raise BadConfigError(f"a host test needs at least two different hosts, got {', '.join(hosts) or 'none'}")
    state = start_search(len(hosts), search)
    with Agents(hosts, prefix, probes or ProbeConfig()) as agents:
        while (tests := state.next_round()) is not None:
            if on_round is not None:
                on_round(state.num_rounds + 1, tests)
            state.add(tests, agents.run(tests))
        report = state.report(hosts)
        counters = agents.changed_counters()
    notes = dict(report.evidence)
    for host, text in (*agents.errors.items(), *counters.items()):
        if host not in report.trusted or host in counters:
            notes[host] = "; ".join(filter(None, (notes.get(host), text)))
    return replace(report, evidence=notes)
