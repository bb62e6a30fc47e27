"""`prism serve`: the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from prism.cli.options import examples
from prism.cli.terminal import note

EPILOG = examples(
    "prism serve",
    "prism serve out/ --port 9000",
    "prism serve /var/lib/prism --host 0.0.0.0 --token-file /etc/prism/token",
    "prism serve out/ --state ~/.local/state/prism --alerts alerts.yaml   [dim]# incidents, told to people[/dim]",
    "prism serve --rules prism-rules.yml   [dim]# for Prometheus[/dim]",
    "prism serve /var/lib/prism --workers 4   [dim]# for many readers[/dim]",
    "prism serve out/ --allow-host prism.example.com   [dim]# behind a reverse proxy[/dim]",
)


def _copy(name: str, advice: str) -> Callable[[Path | None], Path | None]:
    """Copy a file out of the package; a command that only does this serves nothing."""

    def copy(target: Path | None) -> Path | None:
        if target is None:
            return None
        from importlib.resources import files

        from prism.errors import BadFileError

        try:
            target.write_bytes(files("prism.serve").joinpath(f"shipped/{name}").read_bytes())
        except OSError as error:
            raise BadFileError(f"{target}: cannot be written ({error.strerror}); choose another file") from None
        note(f"wrote {target}; {advice}")
        raise typer.Exit

    return copy


def run_serve(
    folder: Annotated[Path, typer.Argument(help="Folder that the other commands wrote to.")] = Path(),
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback asks every visitor for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8042,
    token: Annotated[
        str | None,
        typer.Option(help="Token that every visitor needs; safer in the environment.", envvar="PRISM_SERVE_TOKEN"),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File that holds the token.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name that a reverse proxy is reached by; may be given again.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Path that every page lies below, such as /prism behind a proxy.")] = "",
    ask_token: Annotated[
        bool | None,
        typer.Option(
            "--ask-token/--no-token", help="On loopback: ask for a token; by default where others log in too."
        ),
    ] = None,
    most_files: Annotated[
        int, typer.Option(help="Most files to read; if there are more, the pages say so.", min=1)
    ] = 200_000,
    every: Annotated[float, typer.Option(help="Seconds between checks of the folder.", min=0.1)] = 0.5,
    workers: Annotated[
        int, typer.Option(help="Processes that answer requests; one more follows the folder.", min=1, max=64)
    ] = 1,
    depth: Annotated[int, typer.Option(help="Levels of folders below FOLDER to read.", min=0, max=32)] = 6,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for incidents, messages, history and remarks; without it nothing is kept."),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild the index from the files.")] = False,
    keep_days: Annotated[float, typer.Option(help="Days that the history is kept.", min=1)] = 400.0,
    clusters: Annotated[
        bool, typer.Option("--cluster-folders", help="Each folder at the top of FOLDER is a cluster of that name.")
    ] = False,
    price: Annotated[float | None, typer.Option(help="Price of a GPU-hour, to show costs in money.", min=0)] = None,
    currency: Annotated[str, typer.Option(help="Currency sign of the price.")] = "$",
    alerts: Annotated[Path | None, typer.Option(help="YAML file of channels that incidents are told to.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="YAML file of further tokens, with scopes and an end.")] = None,
    trust_proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a proxy that names the logged-in user; may be given again.")
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            help="Write rules for Prometheus to this file, and exit.",
            callback=_copy("prometheus-rules.yml", "name it under rule_files in Prometheus"),
            is_eager=True,
        ),
    ] = None,
    grafana: Annotated[
        Path | None,
        typer.Option(
            help="Write a Grafana dashboard with annotations to this file, and exit.",
            callback=_copy("grafana-incidents.json", "import it in Grafana under Dashboards, New, Import"),
            is_eager=True,
        ),
    ] = None,
    user_header: Annotated[str, typer.Option(help="Header in which that proxy names the user.")] = "X-Forwarded-User",
) -> None:
    """Show what the other commands wrote as pages that update as it grows; an API and metrics too. Read-only."""
    from prism.errors import BadConfigError, BadFileError
    from prism.serve import ServeConfig, serve

    if token is not None and token_file is not None:
        raise BadConfigError("--token and --token-file are both given; give one")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadFileError(f"{token_file}: cannot be read as a token ({error}); check the path") from None
    config = ServeConfig(
        folder=folder,
        host=host,
        port=port,
        token=token,
        allow_hosts=tuple(allow_host or ()),
        prefix=prefix,
        ask_token=ask_token,
        most_files=most_files,
        look_every_s=every,
        workers=workers,
        depth=depth,
        state=state,
        rebuild=rebuild,
        keep_days=keep_days,
        clusters=clusters,
        price=price,
        currency=currency,
        alerts_file=alerts,
        tokens_file=tokens,
        trust_proxies=tuple(trust_proxy or ()),
        user_header=user_header,
    )
    serve(config, note)
