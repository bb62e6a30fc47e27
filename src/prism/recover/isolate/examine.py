"""Tests real hosts: combines a search with probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from prism.errors import BadConfigError
from prism.recover.isolate.agents import Agents, ProbeConfig
from prism.recover.isolate.few import PairSearch
from prism.recover.isolate.grading import FAILED, FEW_HOSTS
from prism.recover.isolate.proof import Proof, ProofConfig, Trial, prove_slow
from prism.recover.isolate.report import UNCLEAR, BadLink, IsolationReport, Verdict
from prism.recover.isolate.search import Round, Search, SearchConfig
from prism.recover.risks import Risks

MIN_HOSTS = 3  # with fewer there is no control to compare with


def start_search(num_hosts: int, config: SearchConfig | None = None, seed: int = 0) -> Search | PairSearch:
    """The search that suits the number of hosts."""
    return PairSearch(num_hosts, config) if num_hosts <= FEW_HOSTS else Search(num_hosts, config, seed)


def with_risks(config: SearchConfig, hosts: Sequence[str], risks: Risks) -> SearchConfig:
    """The same search with known risks: a host that fails ten times as often is ten times as likely to be bad."""
    rates = np.array([risks.of(host) for host in hosts])
    if not risks.per_day or rates.sum() <= 0:
        return config
    priors = np.clip(config.model.prior_bad * rates / rates.mean(), 1e-4, 0.2)
    return replace(config, model=replace(config.model, priors=tuple(priors.tolist())))


def isolate_hosts(
    hosts: Sequence[str],
    prefix: Callable[[str], Sequence[str]],
    probes: ProbeConfig | None = None,
    search: SearchConfig | None = None,
    on_round: Callable[[int, Round], None] | None = None,
    on_proof: Callable[[str], None] = lambda text: None,
) -> IsolationReport:
    """Search for bad hosts; `prefix` gives the words that run a command on a host."""
    if len(set(hosts)) != len(hosts) or len(hosts) < 2:
        raise BadConfigError(f"a host test needs at least two different hosts, got {', '.join(hosts) or 'none'}")
    with Agents(hosts, prefix, probes or ProbeConfig()) as agents:
        return examine_with(agents, hosts, search, on_round, on_proof)


def examine_with(
    agents: Agents,
    hosts: Sequence[str],
    search: SearchConfig | None = None,
    on_round: Callable[[int, Round], None] | None = None,
    on_proof: Callable[[str], None] = lambda text: None,
) -> IsolationReport:
    """Search with probes that are already running."""
    state = start_search(len(hosts), search)
    connected = False
    while (tests := state.next_round()) is not None:
        if on_round is not None:
            on_round(state.num_rounds + 1, tests)
        outcomes = agents.run(tests)
        connected = connected or bool((outcomes != FAILED).any())
        if not connected:
            _check_names(agents, hosts)
        state.add(tests, outcomes)
    report = state.report(hosts)
    report = try_slow_ones(report, hosts, state, agents, on_proof)
    counters = agents.changed_counters()
    notes = dict(report.evidence)
    often = [host for host in hosts if 4 * agents.busy[host] > state.num_tests]
    if often:
        busy = f"at other work, so that they are called slow only for what that cannot explain: {', '.join(often)}"
        report = replace(report, advice="; ".join(filter(None, (report.advice, busy))))
    for host, text in (*agents.errors.items(), *counters.items()):
        if host not in report.trusted or host in counters:
            notes[host] = "; ".join(filter(None, (notes.get(host), text)))
    return replace(report, evidence=notes)


def _check_names(agents: Agents, hosts: Sequence[str]) -> None:
    """Refuse names that the hosts cannot resolve, such as aliases of ssh: this is not a fault of a host."""
    if all("gaierror" in agents.errors.get(host, "") for host in hosts):
        raise BadConfigError(
            f"the hosts do not know each other by these names ({agents.errors[hosts[0]]} on {hosts[0]}); give names or "
            "addresses that they can connect to"
        )


def try_slow_ones(
    report: IsolationReport,
    hosts: Sequence[str],
    state: Search | PairSearch,
    agents: Agents,
    on_proof: Callable[[str], None],
) -> IsolationReport:
    """Accuse nobody for slow tests unless repeated comparisons with a control prove the slowness.

    Failures are judged without the slow tests: on a noisy machine every host has some, and beside a dead host every
    host has failures, which the dead one explains.
    """
    number = {host: place for place, host in enumerate(hosts)}
    failing = state.by_failures()
    verdicts = {host: failing[number[host],] for host in hosts}
    accused = [h for h in report.condemned if verdicts[h] != "bad"]
    accused += [h for h in report.suspected if verdicts[h] == "good"]
    links = [b for b in report.bad_links if failing[_ends(b, number)] != "bad"]
    if not (accused or links) or len(hosts) < MIN_HOSTS:
        return report
    random = np.random.default_rng(len(hosts))
    grader = agents.config.grader
    limits = ProofConfig(slow_ratio=grader.slow_ratio, late_ratio=grader.late_ratio)
    sound = [number[h] for h in hosts if h not in (*accused, *report.condemned)]

    def prove(part: tuple[int, ...], without: tuple[int, ...] = ()) -> Proof:
        others = [h for h in sound if h not in part and h not in without]
        if len(others) < MIN_HOSTS - 1:
            others = [h for h in range(len(hosts)) if h not in part and verdicts[hosts[h]] != "bad"] or others
        if len(others) < 2:
            others = [h for h in range(len(hosts)) if h not in part]
        trial = Trial(part=part, others=tuple(others), num_tried=len(accused) + 3 * len(links))
        found = prove_slow(trial, agents.measure, limits, random)
        on_proof(f"{' - '.join(hosts[h] for h in part)}: {found}")
        return found

    proofs = {host: prove((number[host],)) for host in accused}
    kept = []
    for link in links:
        ends = _ends(link, number)
        # A link that is slow because one of its hosts is slow with everyone can be told from its control only by luck.
        for end in ends:
            if hosts[end] not in proofs:
                proofs[hosts[end]] = prove((end,), without=ends)
        if not any(proofs[hosts[end]].answer == "slow" for end in ends) and prove(ends).answer == "slow":
            kept.append(link)
    return _settle(report, hosts, verdicts, proofs, [b for b in report.bad_links if b not in links or b in kept])


def _ends(link: BadLink, number: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sorted((number[link.first], number[link.second])))


def _settle(
    report: IsolationReport,
    hosts: Sequence[str],
    verdicts: Mapping[str, Verdict],
    proofs: Mapping[str, Proof],
    links: Sequence[BadLink],
) -> IsolationReport:
    slow = [h for h in hosts if h in proofs and proofs[h].answer == "slow"]
    unclear = {h for h, proof in proofs.items() if proof.answer == "not clear"}
    unclear |= {h for h in (*report.condemned, *report.suspected) if verdicts[h] != "good"}
    condemned = [h for h in hosts if h in slow or (h in report.condemned and verdicts[h] == "bad")]
    suspected = [h for h in hosts if h in unclear and h not in condemned]
    told = {h: report.evidence.get(h, "") if verdicts[h] != "good" else "" for h in (*condemned, *suspected)}
    shown = {h: str(proofs[h]) for h in told if h in proofs and (not told[h] or proofs[h].answer != "not slow")}
    return replace(
        report,
        trusted=tuple(h for h in hosts if h not in condemned and h not in suspected),
        suspected=tuple(suspected),
        condemned=tuple(condemned),
        slow=tuple(slow),
        bad_links=tuple(links),
        evidence={h: "; ".join(filter(None, (text, shown.get(h)))) for h, text in told.items()},
        advice=(report.advice or UNCLEAR) if suspected else "",
    )
