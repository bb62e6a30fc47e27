"""The same faults on the same script with its Trainer's own saves, under `torchrun --max-restarts`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from prism.recover.supervise.launchers.node import find_ranks, find_tree
from proving.drills.soak_faults import Fault, damage, fill, find_loaders, small_disk
from proving.drills.soak_ledger import Tally

_PATIENCE_S = 120.0  # without a step, twice as long as Prism is given; then it hangs


class Peer:
    """One job, and what its log says."""

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str]) -> None:
        self.output, self.log = folder / "peer", folder / "torchrun.log"
        self._command = command
        # torch 2.13 shares one store between attempts, and what the first left there can hold up the second.
        self._variables = {**os.environ, **variables, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.start()

    def start(self) -> None:
        """Start it, also again after a stop that a user asked for."""
        with self.log.open("ab") as output:
            self.job = subprocess.Popen(self._command, stdout=output, stderr=output, env=self._variables)

    def wait_for(self, pattern: str, begun: int, least: int = 0) -> bool:
        """Wait for a text in what was written since then, with at least that number where it has one."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.job.poll() is None and time.monotonic() < deadline:
            text = self.log.read_bytes()[begun:].decode(errors="replace")
            if any(int(found or 0) >= least for found in re.findall(pattern, text)):
                return True
            time.sleep(0.2)
        return False

    def wait_end(self) -> bool:
        """Wait until it has ended; False if it printed nothing for long."""
        written, deadline = -1, 0.0
        while self.job.poll() is None:
            if (now := self.log.stat().st_size) > written:
                written, deadline = now, time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def harm(self, fault: Fault) -> None:
        """Do it; a stop that a user asks for is followed by a start, as under Prism."""
        tree = find_tree(self.job.pid)
        ranks = find_ranks(tree)
        match fault.name:
            case "kill the tree":
                _signal(tree, signal.SIGKILL)
            case "kill the supervisor":
                _signal([self.job.pid], signal.SIGKILL)
            case "terminate the launcher":
                _signal([self.job.pid], signal.SIGTERM)
            case "stop the supervisor":
                _signal([self.job.pid], signal.SIGTERM)
                self.job.wait(_PATIENCE_S)
                self.start()
            case "fill the disk":
                begun, ballast = self.log.stat().st_size, fill(self.output)
                self.wait_for(r"No space left()", begun)
                ballast.unlink()
            case "kill a loader":
                _signal(find_loaders(tree, ranks[0])[:1] if ranks else [], signal.SIGKILL)
            case "corrupt":
                found = self.output.glob("checkpoint-*/*.safetensors")
                damage(sorted(found, key=lambda path: path.stat().st_mtime)[-1:])
                _signal(ranks[:1], signal.SIGKILL)
            case name:
                numbers = {"crash a rank": signal.SIGSEGV, "stop a rank": signal.SIGSTOP}
                _signal(ranks[:1], numbers.get(name, signal.SIGKILL))

    def close(self) -> str:
        """End what is left; the whole log."""
        _signal(find_tree(self.job.pid), signal.SIGKILL)
        self.job.wait()
        return self.log.read_text(errors="replace")


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def soak_torchrun(
    folder: Path, tally: Tally, faults: list[Fault], command: list[str], variables: dict[str, str]
) -> str:
    """The run under faults, until it ends or hangs; its log."""
    folder.mkdir(parents=True, exist_ok=True)
    with small_disk(folder / "peer", faults):
        peer = Peer(folder, command, variables)
        try:
            for fault in faults:
                begun = peer.log.stat().st_size
                tally.reached = min(tally.reached + fault.ahead, int(command[-1]) - 2)
                if not peer.wait_for(r"\| (\d+)/\d+ \[", begun, tally.reached):
                    hung = peer.job.poll() is None
                    tally.why = f"{'no step for long' if hung else 'it ended'} after {tally.faults} faults"
                    break
                peer.harm(fault)
                tally.faults += 1
                time.sleep(2.0)
            else:
                tally.why = "" if peer.wait_end() else "it hung"
        except subprocess.TimeoutExpired:
            tally.why = "it hung"
        finally:
            log = peer.close()
    return log
