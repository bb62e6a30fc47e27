"""`prism explain`: from a failed job's logs to the root cause and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json

if TYPE_CHECKING:
    from rich.text import Text

    from prism.evidence.logs import Diagnosis, Knowledge
    from prism.evidence.logs.agent import Agent

EPILOG = examples(
    "prism explain train.log",
    "prism explain logs/          [dim]# a folder of per-rank logs is one job[/dim]",
    "prism explain --per-job runs/   [dim]# every entry is one job; ends with the failure table[/dim]",
    "prism explain --follow train.log",
    "prism explain job.log --endpoint http://localhost:8000/v1 --endpoint-model qwen",
)
_COLOUR = {"restart": "yellow", "isolate_and_restart": "magenta", "rollback": "cyan", "stop": "red", "none": "green"}


def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="Logs: files (also .gz, .bz2, .xz, .zst), folders of per-rank logs, or -.", show_default=False
        ),
    ],
    jobs: Annotated[
        bool, typer.Option("--per-job", help="Each entry of a folder is one job; show the failure table.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Read a log that is still growing.")] = False,
    quiet_after: Annotated[
        float, typer.Option(help="With --follow: seconds without a new line that end the job.")
    ] = 30.0,
    memory: Annotated[Path | None, typer.Option(help="Folder where rules, cases and families are remembered.")] = None,
    family: Annotated[str | None, typer.Option(help="Name of the job family whose healthy lines are known.")] = None,
    healthy: Annotated[
        bool, typer.Option("--healthy", help="These logs are of healthy runs: learn them for --family.")
    ] = False,
    rules: Annotated[list[Path] | None, typer.Option(help="More rules, a file or a folder of YAML.")] = None,
    add_rule: Annotated[
        Path | None, typer.Option(help="Test these rules on all known cases and keep the safe ones in --memory.")
    ] = None,
    resolved: Annotated[
        str | None, typer.Option(help="The true reason of this log: remember it as a case in --memory.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint, asked when no rule knows.", envvar="PRISM_ENDPOINT")
    ] = None,
    model: Annotated[
        str, typer.Option("--endpoint-model", help="Model to ask at the endpoint.", envvar="PRISM_MODEL")
    ] = "default",
    votes: Annotated[int, typer.Option(help="How many times the endpoint is asked.")] = 3,
    exit_code: Annotated[
        int | None, typer.Option(help="The job's exit code, if known: it decides whether the run failed.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Name why a job failed, what to do, and the lines that prove it."""
    from prism.errors import BadConfigError

    if exit_code is not None and (len(logs) > 1 or jobs or follow):
        raise BadConfigError(
            "--exit-code is that of one job that is over; give one log or folder, no --jobs or --follow"
        )
    if (healthy or add_rule or resolved) and memory is None:
        raise BadConfigError("--healthy, --add-rule and --resolved need --memory DIR, the folder that remembers")
    if healthy and family is None:
        raise BadConfigError("--healthy needs --family NAME, the jobs that these lines are healthy for")
    knowledge, agent = _know(memory, family, rules or [], endpoint, model, votes)
    if add_rule is not None and memory is not None:
        _add_rules(add_rule, memory, knowledge)
    if healthy and memory is not None:
        _learn_healthy(logs, memory, knowledge)
        return
    diagnoses = _run(logs, jobs, follow, quiet_after, knowledge, exit_code, json)
    if resolved is not None and memory is not None:
        _remember(diagnoses, resolved, memory)
    if agent is not None:
        _report_agent(agent, knowledge, memory)


def _run(
    logs: list[str],
    jobs: bool,
    follow: bool,
    quiet_after: float,
    knowledge: Knowledge,
    exit_code: int | None,
    json: bool,
) -> list[Diagnosis]:
    from prism.evidence.logs import diagnose, read_job
    from prism.evidence.logs.follow import FollowConfig
    from prism.evidence.logs.follow import follow as follow_log
    from prism.evidence.logs.jobs import find_jobs, tabulate_failures
    from prism.records.verdict import NO_FAILURE

    places = [place for log in logs for place in (find_jobs(log) if jobs else [log])]
    done: list[Diagnosis] = []
    for place in places:
        if follow:
            found = follow_log(place, FollowConfig(quiet_s=quiet_after), knowledge)
        else:
            found = iter([diagnose(read_job(place, knowledge.rules), knowledge, exit_code)])
        for diagnosis in found:
            done.append(diagnosis)
            if json:
                show_json(diagnosis.verdict.to_json())
            elif not jobs:
                _show(diagnosis)
    if jobs and not json:
        from prism.cli.terminal import table

        failed = [d.verdict for d in done if d.verdict.reason != NO_FAILURE]
        frame = tabulate_failures(failed)
        columns = ["category", "reason", ">jobs", ">jobs_pct", "action", "hosts", ">confidence"]
        rows = [[c, r, n, p, a, ", ".join(h), f] for c, r, n, p, a, h, f in frame.rows()]
        fine = f", {len(done) - len(failed)} did not fail" if len(failed) < len(done) else ""
        show(table(f"Failures of {len(done)} jobs{fine}", columns, rows))
    return done


def _know(
    memory: Path | None, family: str | None, rules: list[Path], endpoint: str | None, model: str, votes: int
) -> tuple[Knowledge, Agent | None]:
    import os

    from prism.evidence.logs import Knowledge
    from prism.evidence.logs.agent import Agent, AgentConfig
    from prism.evidence.logs.cases import CaseStore, load_cases, shipped_cases
    from prism.evidence.logs.routine import Family, load_family
    from prism.evidence.logs.rules import read_rules, shipped_rules

    learned = memory / "rules" if memory is not None else None
    places = [*rules, *([learned] if learned is not None and learned.is_dir() else [])]
    book = shipped_rules()
    added = [rule for place in places for rule in read_rules(place)]
    book = book.with_rules(added) if added else book
    resolved = memory / "cases.jsonl" if memory is not None else None
    cases = load_cases(resolved) if resolved is not None and resolved.exists() else ()
    known_family = (
        load_family(memory, family) if memory is not None and family is not None else Family(family or "none")
    )
    agent = None
    if endpoint is not None:
        config = AgentConfig(endpoint=endpoint, model=model, votes=votes, api_key=os.environ.get("PRISM_API_KEY"))
        agent = Agent(config, book)
    store = CaseStore((*cases, *shipped_cases(book)))
    return Knowledge(rules=book, family=known_family, cases=store, adviser=agent), agent


def _add_rules(path: Path, memory: Path, knowledge: Knowledge) -> None:
    from prism.errors import BadConfigError
    from prism.evidence.logs.learn import admit, known_cases, try_rule
    from prism.evidence.logs.rules import read_rules

    for rule in read_rules(path):
        trial = try_rule(rule, knowledge.rules, known_cases(knowledge.rules, knowledge.cases.cases))
        if not trial.is_safe:
            raise BadConfigError(
                f"{path} rule {rule.id}: refused, it would change {len(trial.changed)} known answers: "
                f"{'; '.join(trial.changed[:3])}"
            )
        note(f"{rule.id}: changes none of {trial.num_cases} known answers; kept in {admit(trial, memory / 'rules')}")


def _learn_healthy(logs: list[str], memory: Path, knowledge: Knowledge) -> None:
    from prism.evidence.logs import read_job
    from prism.evidence.logs.routine import save_family

    family = knowledge.family.learn(read_job(log) for log in logs)
    path = save_family(memory, family)
    note(f"{family.name}: {len(family.templates)} kinds of lines known from healthy runs; kept in {path}")


def _remember(diagnoses: list[Diagnosis], reason: str, memory: Path) -> None:
    from prism.errors import BadConfigError
    from prism.evidence.logs.cases import Case, append_case
    from prism.records.verdict import FAILURE_REASONS

    if reason not in FAILURE_REASONS:
        raise BadConfigError(f"--resolved {reason}: expected one of {', '.join(FAILURE_REASONS)}")
    for diagnosis in diagnoses:
        text = "\n".join(line.text for line in diagnosis.kept[:60])
        append_case(memory / "cases.jsonl", Case(text=text, reason=reason, note=diagnosis.verdict.log))


def _report_agent(agent: Agent, knowledge: Knowledge, memory: Path | None) -> None:
    from prism.evidence.logs.learn import admit, known_cases, try_rule

    for why, count in agent.refused.items():
        note(f"endpoint: {count} of its answers not used: {why}")
    for rule in agent.proposals:
        trial = try_rule(rule, knowledge.rules, known_cases(knowledge.rules, knowledge.cases.cases))
        if not trial.is_safe:
            note(f"endpoint: proposed rule refused, it would change known answers: {'; '.join(trial.changed[:3])}")
        elif memory is not None:
            note(f"endpoint: proposed rule kept in {admit(trial, memory / 'rules')}")
        else:
            note(f"endpoint: proposes the rule {rule.pattern!r} for {rule.reason}; give --memory DIR to keep it")


def _show(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    from prism.records.causes import NO_FAILURE, UNKNOWN

    verdict = diagnosis.verdict
    head = Text.assemble(
        (f"{verdict.log}\n", "dim"),
        (verdict.reason if verdict.reason != UNKNOWN else verdict.says, "bold"),
        f"  {verdict.outcome.replace('_', ' ')}, {verdict.category}, confidence {verdict.confidence:.2f}",
    )
    if verdict.reason == NO_FAILURE:
        said = "no sign of a failure" if verdict.notes else "did not fail"
        head = Text.assemble((f"{verdict.log}\n", "dim"), (said, "bold"), f"  confidence {verdict.confidence:.2f}")
    lines = [
        head,
        Text.assemble(
            ("do      ", "dim"),
            (verdict.action.replace("_", " "), _COLOUR.get(verdict.action, "")),
            f"  {verdict.mitigation}",
        ),
    ]
    where = [f"rank {verdict.first_rank}"] if verdict.first_rank is not None else []
    where += [f"host {host}" for host in verdict.hosts]
    if where:
        lines.append(Text.assemble(("where   ", "dim"), ", ".join(where)))
    lines += [Text.assemble(("note    ", "dim"), told) for told in verdict.notes]
    lines.append(Text.assemble(("read    ", "dim"), f"{verdict.lines_read} lines, {verdict.lines_kept} worth reading"))
    show(*lines, *_context(diagnosis))
    for neighbour in diagnosis.neighbours:
        told = f"similar {neighbour.similarity:.2f}  {neighbour.case.reason}: {neighbour.case.text[:90]}"
        show(Text(told.split("\n")[0], style="dim"))
    show("")


def _context(diagnosis: Diagnosis) -> list[Text]:
    """The evidence in context: each cited line with the kept lines next to it."""
    from rich.text import Text

    from prism.evidence.logs.secrets import mask

    cited = {(e.file, e.line) for e in diagnosis.verdict.evidence}
    root = diagnosis.verdict.evidence[0] if diagnosis.verdict.evidence else None
    several = len({line.file for line in diagnosis.kept}) > 1
    out: list[Text] = []
    for line in diagnosis.kept:
        key = (line.file if several else None, line.line)
        near = any(abs(line.line - n) <= 2 and f in (None, line.file) for f, n in cited)
        if not near:
            continue
        style = "bold red" if root is not None and key == (root.file, root.line) else "" if key in cited else "dim"
        place = f"{line.file}:{line.line}" if several else str(line.line)
        rank = f" [{line.rank}]" if line.rank is not None else ""
        out.append(Text(f"{place:>9}{rank}  {mask(line.text)[:300]}", style=style))
    if not out:  # if no line looks like a failure, the last ones are cited
        places = [f"{e.file}:{e.line}" if e.file else str(e.line) for e in diagnosis.verdict.evidence]
        out = [Text(f"{p:>9}  {e.text[:300]}") for p, e in zip(places, diagnosis.verdict.evidence, strict=True)]
    return out[:40]
