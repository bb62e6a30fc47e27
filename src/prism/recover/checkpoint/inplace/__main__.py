"""Starts the members of this host, watches them, and on the first host decides who trains."""

from __future__ import annotations

# ruff: noqa: T201 (a program of its own)
import argparse
import signal
import socket
import sys
import time
from typing import Any

from prism.errors import PrismError
from prism.recover.checkpoint.inplace.board import Board
from prism.recover.checkpoint.inplace.phases import sum_up
from prism.recover.checkpoint.inplace.processes import open_host
from prism.recover.checkpoint.inplace.roster import Roster, RosterConfig

_POLL_S = 0.05
_EXPLAIN_S = 1.0
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
    host = open_host(options.program, address, options.host_index, preload=not options.no_preload)
    for _ in range(options.ranks + options.spares):
        host.start()
    config = RosterConfig(num_ranks=options.ranks * options.hosts, max_restarts=options.max_restarts)
    leader = Leader(board, Roster(config)) if leads else None
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
        if leader is not None:
            leader.lead()
        time.sleep(_POLL_S)
    host.wait(_LAST_WORDS_S)
    return code


class Leader:
    """On the first host: lets the roster decide on what is new, and publishes what it decided."""

    def __init__(self, board: Board, roster: Roster) -> None:
        self._board = board
        self._roster = roster
        self._lost_s = 0.0
        self._phases: list[dict[str, Any]] = []

    def lead(self) -> None:
        """Read the board once."""
        board, roster = self._board, self._roster
        for name in board.news("joined"):
            roster.join(name)
        for name in board.news("died"):
            roster.die(name)
        for failure in board.news("failed"):
            roster.fail(failure["member"], failure["generation"], failure["why"], own=failure["own"])
        for name in board.news(f"done-{roster.number}") if roster.number else ():
            roster.finish(name)
        self._lost_s = self._lost_s or (time.time() if roster.broken else 0.0)
        self._tell_phases()
        # A connection breaks before the death of its other end is seen: the next world would begin with a dead rank.
        explained = roster.explained or time.time() > self._lost_s + _EXPLAIN_S
        generation = roster.next_generation() if explained else None
        if generation is not None:
            print(f"generation {generation.number}: {roster.reason}", flush=True)
            self._phases = []
            board.publish(generation)
        if roster.outcome is not None:
            print(f"over: {roster.reason}", flush=True)
            board.end(roster.outcome)

    def _tell_phases(self) -> None:
        """Report where the time of a restart went, once every rank is connected again."""
        number = self._roster.number
        if not self._lost_s or number < 2 or self._roster.broken:
            return
        self._phases += self._board.news(f"phases-{number}")
        if len(self._phases) == self._roster.config.num_ranks:
            print(f"generation {number}: {sum_up(self._phases, self._lost_s)}", flush=True)
            self._lost_s = 0.0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prism.recover.checkpoint.inplace")
    parser.add_argument("--ranks", type=int, required=True, help="ranks of this host")
    parser.add_argument("--spares", type=int, default=1, help="processes of this host that are booted and wait")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--host-index", type=int, default=0)
    parser.add_argument("--store", help="address:port on the first host; needed with several")
    parser.add_argument("--max-restarts", type=int, default=100)
    parser.add_argument("--no-replacements", action="store_true", help="do not boot a new spare for one that was used")
    parser.add_argument("--no-preload", action="store_true", help="boot each member alone, not as a fork with torch")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not options.program:
        parser.error("no program given; write it after --, as in: -- train.py")
    if options.hosts > 1 and not options.store:
        parser.error("--store ADDRESS:PORT is needed with several hosts")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PrismError as error:
        sys.exit(f"prism: {error}")
