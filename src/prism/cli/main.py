"""`prism`: the root command, its groups, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from prism.cli import (
    calibrate,
    characterize,
    check,
    compare,
    demo,
    diagnose,
    emulate,
    estimate,
    evaluate,
    explain,
    flows,
    generate_trace,
    goodput,
    investigate,
    isolate,
    lab,
    place,
    predict,
    scenario,
    serve,
    simulate,
    supervise,
    watch,
)
from prism.cli.crash import write_crash_file
from prism.cli.options import App
from prism.cli.terminal import fail, note, verbosity
from prism.errors import PrismError
from prism.version import __version__

OBSERVE, EVIDENCE, TRAINING = "Observe a cluster", "Evidence of a job", "Training"
DATACENTER, LAB, SERVE = "Datacenter", "Lab", "Serve"

app = App(
    name="prism",
    help="Observe, emulate, diagnose and recover large-model training.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    pretty_exceptions_enable=False,
)
app.command("diagnose", rich_help_panel=OBSERVE, epilog=diagnose.EPILOG)(diagnose.run_diagnose)
app.command("watch", rich_help_panel=OBSERVE, epilog=watch.EPILOG)(watch.watch_source)
app.add_typer(flows.app, name="flows", rich_help_panel=OBSERVE)
app.command("investigate", rich_help_panel=EVIDENCE, epilog=investigate.EPILOG)(investigate.run_investigate)
app.command("explain", rich_help_panel=EVIDENCE, epilog=explain.EPILOG)(explain.explain)
app.command("compare", rich_help_panel=EVIDENCE, epilog=compare.EPILOG)(compare.run_compare)
app.add_typer(supervise.app, name="supervise", rich_help_panel=TRAINING)
app.command("isolate", rich_help_panel=TRAINING, epilog=isolate.EPILOG)(isolate.isolate)
app.command("goodput", rich_help_panel=TRAINING, epilog=goodput.EPILOG)(goodput.goodput)
app.command("check", rich_help_panel=TRAINING, epilog=check.EPILOG, context_settings=emulate.CONTEXT)(check.run_check)
app.command("emulate", rich_help_panel=TRAINING, epilog=emulate.EPILOG, context_settings=emulate.CONTEXT)(
    emulate.run_emulate
)
app.command("estimate", rich_help_panel=TRAINING, epilog=estimate.EPILOG)(estimate.run_estimate)
app.command("calibrate", rich_help_panel=TRAINING, epilog=calibrate.EPILOG)(calibrate.run_calibrate)
app.command("simulate", rich_help_panel=TRAINING, epilog=simulate.EPILOG)(simulate.simulate_graph)
app.add_typer(evaluate.app, name="evaluate", rich_help_panel=TRAINING)
app.command("characterize", rich_help_panel=DATACENTER, epilog=characterize.EPILOG)(characterize.characterize_traces)
app.add_typer(predict.app, name="predict", rich_help_panel=DATACENTER)
app.add_typer(place.app, name="place", rich_help_panel=DATACENTER)
app.command("demo", rich_help_panel=LAB, epilog=demo.EPILOG)(demo.run_demo)
app.command("scenario", rich_help_panel=LAB, epilog=scenario.EPILOG)(scenario.run_scenario)
app.command("lab", rich_help_panel=LAB, epilog=lab.EPILOG)(lab.run_lab_command)
app.command("generate-trace", rich_help_panel=LAB, epilog=generate_trace.EPILOG)(generate_trace.generate_trace_file)
app.command("serve", rich_help_panel=SERVE, epilog=serve.EPILOG)(serve.run_serve)

# One example per group, shown at the end of `prism --help`.
_EXAMPLES = (
    (OBSERVE, "prism diagnose flows.parquet --topology topology.csv"),
    (EVIDENCE, "prism investigate --pid 4711"),
    (TRAINING, "prism supervise -- torchrun --nproc-per-node 8 train.py"),
    (DATACENTER, "prism characterize jobs.csv --output report/"),
    (LAB, "prism demo"),
    (SERVE, "prism serve out/"),
)
app.info.epilog = "\n\n".join(["[bold]Examples[/bold]", *(f"  [dim]{g}[/dim]  {e}" for g, e in _EXAMPLES)])


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"prism {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Observe, emulate, diagnose and recover large-model training."""
    verbosity.level = 0  # One process may run several commands; the flags of one must not apply to the next.


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every error ends as one line on stderr and the exit code of the contracts."""
    _open_closed_streams()
    try:
        code = app(args=arguments, prog_name="prism", standalone_mode=False)
    except PrismError as error:
        output = getattr(error, "output", "")
        if output and verbosity.level > 0:
            note(output.rstrip())
        fail(str(error) + ("; its own output: -v" if output and verbosity.level <= 0 else ""))
        code = error.exit_code
    except KeyboardInterrupt:
        fail("stopped")
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # The reader of our output closed the pipe, which is no error of ours.
        code = 0
    except Exception as error:
        code = _exit_code_of(error, sys.argv[1:] if arguments is None else arguments)
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Open /dev/null where a standard stream was closed (`>&-`); the next file that we open would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w" if number else "r"))  # noqa: SIM115 - for the whole process


def _exit_code_of(error: Exception, arguments: list[str]) -> int:
    """The exit code: 2 and one line for wrong use; else 1, one line, and the stack in a crash file."""
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "prism"
        if type(error).__name__ == "NoArgsIsHelpError":
            note(usage())
            return 2
        fail(f"{usage().rstrip('.')}; see '{command} --help'")
        return 2
    if type(error).__name__ == "Abort":
        fail("stopped")
        return 1
    if verbosity.level > 0:
        note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        fail(f"{error.filename}: {error.strerror}; check the path and its permissions")
        return 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        fail(f"the output could not be written: {error.strerror}; free space, or write elsewhere")
        return 1
    left = write_crash_file(error, arguments)
    where = f"attach {left} to a report" if left is not None else "run again with -v to see where"
    fail(f"internal error: {type(error).__name__}: {error}; this is a bug in Prism, {where}")
    return 1


if __name__ == "__main__":
    main()
