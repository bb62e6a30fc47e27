"""`python -m proving.drills`: run the drills and print what each lost and how long it took."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prism.lab.testbed.namespaces import why_no_namespaces
from proving.drills import default_drills, judgement_drills, network_drills, process_drills
from proving.drills.outcome import Outcome
from proving.drills.process_drills import Script
from proving.drills.stage import RISK, SOURCE, DrillError

Drill = Callable[[Script], Outcome]
_IN_FOLDERS = {**default_drills.DRILLS, **judgement_drills.DRILLS}


def _in_folder(name: str, script: Script) -> Outcome:
    """A drill on a script as users write it, in a folder of its own."""
    folder = script.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return _IN_FOLDERS[name](folder)


DRILLS: dict[str, Drill] = {
    "kill-rank": process_drills.kill_rank,
    "kill-supervisor": process_drills.kill_supervisor,
    "kill-tree": process_drills.kill_tree,
    "stop-rank": process_drills.stop_rank,
    "full-disk": process_drills.fill_disk,
    "corrupt": process_drills.corrupt_newest,
    "cut-network": network_drills.cut_network,
    "slow-link": network_drills.slow_link,
    "nan": process_drills.poison_nan,
    "spike": process_drills.poison_spike,
    "bug-at-start": process_drills.bug_at_start,
    "bug-at-step-50": process_drills.bug_at_step_50,
    "bad-node": network_drills.bad_node,
    **{name: partial(_in_folder, name) for name in _IN_FOLDERS},
}
HEADER = f"{'drill':32} {'end':8} {'attempts':>8} {'lost':>5} {'recovery':>9} {'from':8} {'losses':14} note"
NEED_ROOT = {"full-disk", "full-run-folder", "cut-network", "slow-link", "healthy-hosts", "slow-host"}


NEED_PACKAGE = {"resume-deepspeed": "deepspeed", "resume-torchtitan": "torchtitan"}


def why_not(name: str) -> str | None:
    """Why a drill cannot be run here, or None."""
    package = NEED_PACKAGE.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"needs the package {package}"
    return why_no_namespaces() if name in NEED_ROOT else None


def main() -> int:
    """Run the named drills, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="drills to run; all if none is named")
    parser.add_argument("--keep", type=Path, help="folder to keep the run folders in")
    parser.add_argument("--risk", type=Path, help="risks of hosts that every supervisor is given")
    parser.add_argument("--source", type=Path, help="src folder of another version of Prism, to be put under test")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that namespaces are taken down
    if options.source is not None:
        os.environ[SOURCE] = str(options.source.resolve())
    if options.risk is not None:
        os.environ[RISK] = str(options.risk.resolve())
    folder = options.keep or Path(tempfile.mkdtemp(prefix="prism-drills-"))
    script = Script(folder)
    failed = 0
    print(HEADER)
    for name in options.names or DRILLS:
        failed += not run_drill(name, DRILLS[name], script)
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def run_drill(name: str, drill: Drill, script: Script) -> bool:
    """Run one drill and print its line; whether it went well."""
    reason = why_not(name)
    if reason is not None:
        print(f"{name:32} skipped  {reason}")
        return True
    start = time.monotonic()
    try:
        outcome = drill(script)
    except DrillError as error:
        print(f"{name:32} FAILED   after {time.monotonic() - start:.0f} s: {error}")
        return False
    print(render(outcome), flush=True)
    return True


def render(outcome: Outcome) -> str:
    """One line of the table."""
    recovery = "" if outcome.recovery_s is None else f"{outcome.recovery_s:.1f} s"
    equal = {True: "equal to a bit", False: "DIFFER", None: "-"}[outcome.equal]
    return (
        f"{outcome.drill:32} {outcome.ended:8} {outcome.attempts:8} {outcome.lost_steps:5} {recovery:>9} "
        f"{outcome.source:8} {equal:14} {outcome.note}"
    )


if __name__ == "__main__":
    sys.exit(main())
