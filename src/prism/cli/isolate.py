"""`prism isolate`: find the bad host."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from prism.cli.options import JsonFlag, examples
from prism.cli.terminal import note, show, show_json, table

FOUND = 3  # the exit code when a host or a link is suspected or condemned; nothing is ever cordoned from here
EPILOG = examples(
    "prism isolate --hosts node-1,node-2,node-3,node-4",
    "prism isolate --hosts-file hosts.txt --shell 'srun --overlap -w {host}' --backend nccl --json",
)


def isolate(
    hosts: Annotated[str, typer.Option(help="Host names, with commas, in the order of the job's ranks.")] = "",
    hosts_file: Annotated[Path | None, typer.Option(help="File of host names, one per line.")] = None,
    shell: Annotated[str, typer.Option(help="Prefix that runs a command on {host}.")] = "ssh -o BatchMode=yes {host}",
    backend: Annotated[Literal["socket", "gloo", "nccl"], typer.Option(help="Transport of the test.")] = "socket",
    megabytes: Annotated[float, typer.Option(help="Bytes that every host sends in a test.", min=0.001)] = 8.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a test has failed.", min=0.1)] = 30.0,
    rounds: Annotated[int, typer.Option(help="Rounds of group tests, for faults that come and go.", min=0)] = 12,
    risk: Annotated[
        Path | None,
        typer.Option(help="Risks of hosts (prism predict advise --json): the likeliest are suspected first."),
    ] = None,
    python: Annotated[str, typer.Option(help="Python on the hosts.")] = "python3",
    json: JsonFlag = False,
) -> None:
    """Test hosts against each other and say which to trust, to suspect, to take out of use; exit 3 if there are any."""
    from rich.text import Text

    from prism.recover.isolate.agents import ProbeConfig
    from prism.recover.isolate.examine import isolate_hosts, with_risks
    from prism.recover.isolate.search import SearchConfig
    from prism.recover.risks import read_risks

    words = shlex.split(shell)
    named, search = _read_hosts(hosts, hosts_file), SearchConfig(group_rounds=rounds)
    report = isolate_hosts(
        named,
        lambda host: [word.format(host=host) for word in words],
        ProbeConfig(backend=backend, num_bytes=int(megabytes * 1e6), timeout_s=timeout, python=python),
        with_risks(search, named, read_risks(risk)) if risk is not None else search,
        on_round=lambda number, tests: note(f"round {number}: {len(tests)} test{'s' if len(tests) > 1 else ''}"),
        on_proof=lambda text: note(f"compared with a control: {text}"),
    )
    if json:
        show_json(report.to_json())
    else:
        rows = [
            ("trusted", len(report.trusted), _few(report.trusted)),
            ("suspected", len(report.suspected), ", ".join(report.suspected) or "none"),
            ("condemned", len(report.condemned), ", ".join(report.condemned) or "none"),
            ("slow among them", len(report.slow), ", ".join(report.slow) or "none"),
            (
                "bad links",
                len(report.bad_links),
                ", ".join(f"{b.first} - {b.second}" for b in report.bad_links) or "none",
            ),
        ]
        show(table(f"{report.num_tests} tests in {report.num_rounds} rounds", ("", ">", "hosts"), rows))
        for host, text in report.evidence.items():
            show(Text(f"  {host}: {text}"))
        if report.advice:
            show(Text(f"  {report.advice}"))
    if report.condemned or report.suspected or report.bad_links:
        raise typer.Exit(FOUND)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _read_hosts(hosts: str, hosts_file: Path | None) -> list[str]:
    from prism.errors import BadConfigError, BadFileError

    if bool(hosts) == bool(hosts_file):
        raise BadConfigError("name the hosts with --hosts or with --hosts-file")
    if hosts_file is None:
        return [name.strip() for name in hosts.split(",") if name.strip()]
    try:
        text = hosts_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{hosts_file}: cannot be read ({error}); check the path") from None
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]
