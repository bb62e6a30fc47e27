"""The flags that commands share, so that they look and behave the same everywhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import OptionInfo

from prism.cli.terminal import verbosity

Command = TypeVar("Command", bound=Callable[..., Any])


def _set_verbose(value: bool) -> bool:
    verbosity.level = 1 if value else verbosity.level
    return value


def _set_quiet(value: bool) -> bool:
    verbosity.level = -1 if value else verbosity.level
    return value


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more on stderr; show tracebacks.", callback=_set_verbose)
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress or messages on stderr.", callback=_set_quiet)]
JOBS_HELP = (
    "Jobs that are known: output of sacct, squeue or kubectl, or a CSV of job,host,start,end,gpus,layout (tp=8,pp=4); "
    "or slurm, sacct, kubernetes to ask. Times without a zone are of this machine's."
)
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave bad rows and unreadable files out, and report how many."),
]
MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="Which column of the files gives what, as src=ip_src,start=TIMESTAMP_START:us; or a file saved by "
        "`prism flows check --save-map`.",
    ),
]
OutputDir = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the files to write; made if missing.")
]


# Options by the names that they once had. One name means one thing in all commands; what was written is still read.
_FORMER_NAMES: Mapping[str, Mapping[str, str]] = {
    "calibrate": {"--from": "--nccl-tests", "--ranks": "--world-size"},
    "characterize": {
        "--from": "--system", "--times": "--rounds", "--save-cost": "--save-s", "--restart-cost": "--restart-s",
    },
    "diagnose": {"--gpus-per-host": "--gpus-per-node"},
    "emulate": {"--sweep": "--layouts", "--company": "--at-once"},
    "evaluate run": {"--address": "--ray-address"},
    "evaluate watch": {"--address": "--ray-address"},
    "explain": {"--jobs": "--per-job", "--model": "--endpoint-model"},
    "generate-trace": {"--jobs": "--num-jobs"},
    "goodput": {"--prometheus": "--as-metrics"},
    "lab": {"--hosts": "--num-hosts"},
    "predict advise": {"--job": "--running-job"},
    "predict replay": {"--from": "--start", "--to": "--end"},
    "predict watch": {"--every-s": "--every", "--limit": "--min-risk"},
    "serve": {"--clusters": "--cluster-folders"},
    "simulate": {"--seeds": "--draws"},
    "supervise run": {"--output": "--echo", "--no-output": "--no-echo"},
}  # fmt: skip


def put_todays_names(words: list[str], former: Mapping[str, str]) -> list[str]:
    """The words of a command line with former names of options replaced, up to `--`."""
    ours = words.index("--") if "--" in words else len(words)
    split = [word.partition("=") for word in words[:ours]]
    return [f"{former.get(name, name)}{sign}{value}" for name, sign, value in split] + words[ours:]


class _Command(TyperCommand):
    """A command that also takes the former names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put today's name in place of a former one, up to `--`."""
        former = _FORMER_NAMES.get(" ".join(ctx.command_path.split()[1:]), {})
        return super().parse_args(ctx, put_todays_names(args, former))

    def get_help_option(self, ctx: Any) -> Any:
        """--help, which takes no value either."""
        option = super().get_help_option(ctx)
        if isinstance(option, TyperOption):
            option.metavar = ""
        return option


def examples(*commands: str) -> str:
    """An epilog that shows how a command is called."""
    return "\n\n".join(["[bold]Examples[/bold]"] + [f"  {command}" for command in commands])


class App(typer.Typer):
    """Commands that all accept --verbose and --quiet; the two set the verbosity and are not passed on."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Typer's command with the two flags after those of the function."""

        def register(function: Command) -> Command:
            super(App, self).command(name, **({"cls": _Command} | options))(_add_flags(function))
            return function

        return register


def _add_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*, verbose: bool, quiet: bool, **given: Any) -> Any:
        return function(**given)

    hints = {**get_type_hints(function, include_extras=True), "verbose": _Verbose, "quiet": _Quiet}
    for hint in hints.values():
        _show_flags_without_type(hint)
    own = inspect.signature(function).parameters.values()
    flags = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False) for name in ("verbose", "quiet")]
    parameters = [one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name]) for one in (*own, *flags)]
    described: Any = run
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = hints
    return run


def _show_flags_without_type(hint: Any) -> None:
    """A flag takes no value, so that its help shows none."""
    if get_origin(hint) is Annotated and bool in (get_args(hint)[0], *get_args(get_args(hint)[0])):
        for option in hint.__metadata__:
            if isinstance(option, OptionInfo) and option.metavar is None:
                option.metavar = ""


class RunByDefault(TyperGroup):
    """A group whose first word may be left out: `prism supervise -- COMMAND` means `prism supervise run -- COMMAND`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of what is not a subcommand."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, "run")
        return super().parse_args(ctx, args)
