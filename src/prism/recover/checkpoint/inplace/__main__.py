"""Starts the members of this host, watches them, and on the first host decides who trains."""

from __future__ import annotations

# ruff: noqa: T201 (a program of its own)
import argparse
import os
import signal
import socket
import subprocess
import sys
import time

from prism.recover.checkpoint.inplace.board import MEMBER, STORE, Board
from prism.recover.checkpoint.inplace.roster import Roster, RosterConfig

_POLL_S = 0.05
_LAST_WORDS_S = 30.0
_BOOT_DELAY_S = 10.0


def main() -> int:
    """Run until the training is over; the exit code."""
    options = _parse()
    with socket.socket() as probe:
        probe.bind(("", 0))
        free = probe.getsockname()[1]
    address = options.store or f"127.0.0.1:{free}"
    leads = options.host_index == 0
    board = Board(address, host_it=leads)
    host = Host(options, address)
    for _ in range(options.ranks + options.spares):
        host.start()
    config = RosterConfig(num_ranks=options.ranks * options.hosts, max_restarts=options.max_restarts)
    roster = Roster(config) if leads else None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda sign, frame: host.signal(sign))
    due: list[float] = []
    while (code := board.ended()) is None:
        for name in host.collect_dead():
            board.append("died", name)
            if not options.no_replacements:
                # The next spare boots when the others train again; with no spare at all it is needed at once.
                due.append(time.monotonic() + (_BOOT_DELAY_S if options.spares else 0.0))
        while due and due[0] <= time.monotonic():
            due.pop(0)
            host.start()
        if roster is not None:
            _lead(board, roster)
        time.sleep(_POLL_S)
    host.wait(_LAST_WORDS_S)
    return code


def _lead(board: Board, roster: Roster) -> None:
    """Let the roster decide on what is new, and publish what it decided."""
    for name in board.news("joined"):
        roster.join(name)
    for name in board.news("died"):
        roster.die(name)
    for failure in board.news("failed"):
        roster.fail(failure["member"], failure["generation"], failure["why"], own=failure["own"])
    for name in board.news(f"done-{roster.number}") if roster.number else ():
        roster.finish(name)
    generation = roster.next_generation()
    if generation is not None:
        print(f"generation {generation.number}: {roster.reason}", flush=True)
        board.publish(generation)
    if roster.outcome is not None:
        print(f"over: {roster.reason}", flush=True)
        board.end(roster.outcome)


class Host:
    """The processes of this host."""

    def __init__(self, options: argparse.Namespace, address: str) -> None:
        self._options = options
        self._address = address
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self) -> None:
        """Boot one more member."""
        self._started += 1
        name = f"{self._options.host_index}-{self._started}"
        command = [sys.executable, *self._options.program]
        environment = os.environ | {STORE: self._address, MEMBER: name}
        self._children[name] = subprocess.Popen(command, env=environment)

    def collect_dead(self) -> list[str]:
        """Members whose processes have ended."""
        dead = [name for name, child in self._children.items() if child.poll() is not None]
        for name in dead:
            del self._children[name]
        return dead

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        for child in self._children.values():
            child.send_signal(number)

    def wait(self, limit_s: float) -> None:
        """Wait for the members to leave; those that do not are ended."""
        deadline = time.monotonic() + limit_s
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prism.recover.checkpoint.inplace")
    parser.add_argument("--ranks", type=int, required=True, help="ranks of this host")
    parser.add_argument("--spares", type=int, default=1, help="processes of this host that are booted and wait")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--host-index", type=int, default=0)
    parser.add_argument("--store", help="address:port on the first host; needed with several")
    parser.add_argument("--max-restarts", type=int, default=100)
    parser.add_argument("--no-replacements", action="store_true", help="do not boot a new spare for one that was used")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not options.program:
        parser.error("no program given; write it after --, as in: -- train.py")
    if options.hosts > 1 and not options.store:
        parser.error("--store ADDRESS:PORT is needed with several hosts")
    return options


if __name__ == "__main__":
    sys.exit(main())
