"""Drills of the supervisor's conclusions: from a lost connection, words in a log, a loss, and host tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prism.lab.testbed.namespaces import Namespaces
from proving.drills.outcome import Outcome, require
from proving.drills.plain_stage import TORCHRUN, TRAINERS, PlainStage, outcome_of

_GREETING = "step 3: computing loss ...\nTraining until step 100000\nstep 99999 is the last\n"
_ISOLATE = (sys.executable, "-m", "prism", "isolate")
_SECOND_LOG = """\
import os, time
for step in range(1, 41):
    if os.environ["PRISM_NODE_RANK"] == "1":
        print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.1)
"""


def lose_connection(folder: Path) -> Outcome:
    """A rank's connections are reset while saves are queued: started again, and nothing that was committed is lost."""
    stage = PlainStage(
        folder=folder,
        command=(*TORCHRUN, "--nproc-per-node", "2", str(TRAINERS / "ddp_loop.py"), "checkpoints", "12"),
        variables={"STEP_S": "0.02", "WIDTH": "100000", "SAVE_STEPS": "1", "DROP_AT": "6"},
        hosts=2,
    )
    stage.start()
    try:
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        require(state.attempt == 2, f"one restart, not {state.attempt - 1}: {stage.said()}")
        restored = next(r for r in stage.reports(2) if r["kind"] == "restored")
        last = max(r["step"] for r in stage.reports(1) if r["kind"] == "step")
        return outcome_of(stage, "lose-connection", lost_steps=last - restored["step"], source=restored["source"])
    finally:
        stage.close()


def lose_connection_in_a_save(folder: Path) -> Outcome:
    """A rank loses its connection while a save fails: the failed save is not taken for the cause."""
    stage = PlainStage(folder=folder, command=(sys.executable, str(TRAINERS / "reset_loop.py")))
    stage.start()
    try:
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        require(state.attempt == 2, f"one restart, not {state.attempt - 1}: {stage.said()}")
        return outcome_of(stage, "connection-in-save")
    finally:
        stage.close()


def read_odd_logs(folder: Path) -> Outcome:
    """A Hugging Face script that prints sentences with the word step: it is not disturbed."""
    stage = PlainStage(
        folder=folder,
        command=(sys.executable, str(TRAINERS / "hf_trainer.py"), str(folder / "out"), "20"),
        settings={"pace": {"min_silence_s": 3, "log_silence_s": 3, "startup_s": 3}},
        variables={"STEP_S": "0.2", "GREETING": _GREETING},
    )
    stage.start()
    try:
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        require(state.attempt == 1, f"no restart, not {state.attempt - 1}: {stage.said()}")
        require(state.best_step <= 20, f"no step beyond 20, not {state.best_step}")
        return outcome_of(stage, "odd-log-lines", note=f"last step read: {state.best_step}")
    finally:
        stage.close()


def read_second_log(folder: Path) -> Outcome:
    """Two hosts, of which the second alone prints steps: they are read."""
    script = folder / "train.py"
    script.write_text(_SECOND_LOG)
    stage = PlainStage(folder=folder, command=(sys.executable, str(script)), hosts=2)
    if stage.place.launcher == "local":
        addresses = {"a": "127.0.0.1", "b": "127.0.0.1"}
        stage.settings = {"hosts": {"hosts": list(addresses)}, "launch": {"addresses": addresses}}
    stage.start()
    try:
        state = stage.wait_end()
        require(state.outcome == "done" and state.attempt == 1, f"done at once, not {state.outcome_text}")
        require(state.best_step == 40, f"step 40 to be read, not {state.best_step}")
        return outcome_of(stage, "second-log", note=f"last step read: {state.best_step}")
    finally:
        stage.close()


def shift_loss(folder: Path) -> Outcome:
    """A loss that is raised on purpose, in a run without a checkpoint to roll back to: it is reported once."""
    stage = PlainStage(
        folder=folder,
        command=(sys.executable, str(TRAINERS / "reported_loop.py"), "200"),
        variables={"STEP_S": "0.02"},
    )
    stage.start()
    try:
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        require(state.attempt == 1, f"no restart, not {state.attempt - 1}: {stage.said()}")
        told = stage.said().count("left alone")
        require(told == 1, f"to be told once, not {told} times: {stage.said()}")
        return outcome_of(stage, "shift-loss", note="told once, left alone")
    finally:
        stage.close()


def isolate_healthy_hosts(folder: Path) -> Outcome:
    """`prism isolate` on four healthy hosts, three times: nobody is condemned or suspected, exit 0."""
    with Namespaces(4) as net:
        outcomes = [judge_isolation("healthy-hosts", _isolate(net, folder)) for _ in range(3)]
    return replace(outcomes[-1], note="3 runs, nobody accused")


def isolate_slow_host(folder: Path) -> Outcome:
    """`prism isolate` where the link of one of four hosts has a tenth of the speed: it is named, exit code 3."""
    with Namespaces(4) as net:
        for host in net.hosts:
            net.slow(host, 8_000 if host == "h3" else 80_000)
        return judge_isolation("slow-host", _isolate(net, folder), net.addresses["h3"])


def _isolate(net: Namespaces, folder: Path) -> dict[str, Any]:
    """Run the command from the first host, as from a login node; a host is named by its address."""
    own = [part.format(host=net.hosts[0]) for part in net.prefix]
    return isolate_with(own, list(net.addresses.values()), _write_shell(net, folder))


def _write_shell(net: Namespaces, folder: Path) -> str:
    enter = folder / "enter"
    cases = [
        f'{address}) exec {" ".join(net.prefix).format(host=host)} "$@" ;;' for host, address in net.addresses.items()
    ]
    enter.write_text("\n".join(["#!/bin/sh", "host=$1", "shift", "case $host in", *cases, "esac", ""]))
    enter.chmod(0o755)
    return f"{enter} {{host}}"


def isolate_with(own: list[str], hosts: list[str], shell: str) -> dict[str, Any]:
    """What `prism isolate` says of hosts that are entered by a shell; `own` stands before the command."""
    words = ["--hosts", ",".join(hosts), "--shell", shell, "--python", sys.executable]
    done = subprocess.run([*own, *_ISOLATE, *words, "--json", "--megabytes", "0.25"], capture_output=True, text=True)
    require(done.returncode in (0, 3), f"exit 0 or 3, not {done.returncode}: {done.stderr[-500:]}")
    return {**json.loads(done.stdout), "exit": done.returncode}


def judge_isolation(name: str, found: dict[str, Any], victim: str = "") -> Outcome:
    """Whether the report accuses the victim alone, or nobody where there is none."""
    accused = [*found["condemned"], *found["suspected"], *found["bad_links"]]
    note = f"{victim}: {found['evidence'].get(victim, '')}" if victim else "nobody accused"
    if victim and not accused and "at other work" in found["advice"]:
        note = f"NOT JUDGED: {found['advice']}"  # the report says so, and accuses nobody
    else:
        require(accused == ([victim] if victim else []), f"{victim or 'nobody'} accused, not {accused}: {found}")
        require(found["exit"] == (3 if victim else 0), f"exit {3 if victim else 0}, not {found['exit']}")
    return Outcome(
        drill=name, ended="done", attempts=1, lost_steps=0, recovery_s=None, source="", equal=None, note=note
    )


DRILLS: dict[str, Callable[[Path], Outcome]] = {
    "lose-connection": lose_connection,
    "connection-in-save": lose_connection_in_a_save,
    "odd-log-lines": read_odd_logs,
    "second-log": read_second_log,
    "shift-loss": shift_loss,
    "healthy-hosts": isolate_healthy_hosts,
    "slow-host": isolate_slow_host,
}
