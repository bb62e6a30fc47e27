"""What runs in the sandbox as the first process: it starts a program and its test apart and says how they ended.

Standard library only: it is sent as text. The verdict goes out by a pipe that neither of the two has.
"""

import ast
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]
Limit = Callable[[dict[str, int]], None]

PASSED, UNSPLIT = 0, 3  # how the checker ends: the test held; the test needs the program's own objects
_POLL_S = 0.02
_KEEP_BYTES = 4000


def judge(task: Task, limit: Limit) -> tuple[str, str]:
    """Run a program and its test; returns (ending, text).

    The program only answers calls with plain values, and the test runs in a process that the program cannot reach:
    nothing but right answers passes. Where a test needs the program's own objects both run as one; then it is run
    again with an end that must fail: a program that passes that as well has not run to its end but forged it, and one
    that does not come to its end in time has not shown that it did not.
    """
    program, test = (task["program"], task["test"]) if task["test"] else _split(task["program"])
    if test:
        ending, text = _run_pair(dict(task, program=program, test=test), limit)
        if ending != "unsplit":
            return ending, text
    whole = dict(task, program=f"{program}\n{test}" if test else program)
    ending, text = _run_alone(whole, "", limit)
    if ending != "passed":
        return ending, text
    again, why = _run_alone(whole, "raise AssertionError('the end')", limit)
    if again == "passed":
        return "failed", "it claims to have passed a test that always fails"
    return ("passed", "") if again == "failed" else (again, why)


def _split(source: str) -> tuple[str, str]:
    """A program, and the test at its end: everything from the first assertion outside of functions on."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source, ""
    first = next((node.lineno for node in statements if isinstance(node, ast.Assert)), None)
    lines = source.split("\n")
    if first is None or any(node.lineno < first <= (node.end_lineno or 0) for node in statements):
        return source, ""
    return "\n".join(lines[: first - 1]), "\n" * (first - 1) + "\n".join(lines[first - 1 :])


def _run_alone(task: Task, last: str, limit: Limit) -> tuple[str, str]:
    told_in, told_out = os.pipe()
    child = _spawn("program", (task["program"], last), task, limit, (told_out,))
    os.close(told_out)
    ending, text = _Watch(task, told_in).until(child)
    os.close(told_in)
    return ("passed", "") if ending == PASSED else _tell(ending, text)


def _run_pair(task: Task, limit: Limit) -> tuple[str, str]:
    """The program answers, the checker asks, and its end is the verdict."""
    ask_in, ask_out = os.pipe()
    answer_in, answer_out = os.pipe()
    told_in, told_out = os.pipe()
    checker = _spawn("checker", (task["test"],), task, limit, (told_out, answer_in, ask_out))
    _spawn("program", (task["program"],), task, limit, (told_out, ask_in, answer_out))
    for end in (ask_in, ask_out, answer_in, answer_out, told_out):
        os.close(end)
    ending, text = _Watch(task, told_in).until(checker)
    os.close(told_in)
    if ending in (PASSED, UNSPLIT):
        return ("passed" if ending == PASSED else "unsplit"), ""
    return _tell(ending, text)


def _spawn(role: str, texts: tuple[str, ...], whole: Task, limit: Limit, ends: tuple[int, ...]) -> int:
    """A fresh interpreter: nothing of this process, its frames or its pipes is in it but what is handed over."""
    feed_in, feed_out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            kept = [os.dup2(fd, 200 + i) for i, fd in enumerate((feed_in, nothing, *ends))]
            for i, fd in enumerate(kept):
                os.dup2(fd, i)  # 0 the task, 1 nowhere, 2 told, 3 and 4 the lines to the other
            os.closerange(len(kept), 1024)
            limit(whole["limits"])
            command = [whole["python"], "-I", "-c", whole["sources"][role]]
            os.execve(whole["python"], command, {"PATH": "/usr/bin:/bin", "HOME": "/tmp"})
        except OSError as error:
            os.write(2, f"{whole['python']}: {error.strerror}".encode())
        finally:
            os._exit(125)
    os.close(feed_in)
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    text = b"".join(b"%12d" % len(part) + part for part in encoded)
    with contextlib.suppress(BrokenPipeError):
        while text:
            text = text[os.write(feed_out, text) :]
    os.close(feed_out)
    return child


class _Watch:
    """Time, memory of all processes together, their number, and what they write; what exceeds one is ended."""

    def __init__(self, task: Task, told: int) -> None:
        self.limits, self.told = task["limits"], told
        self.end_s = time.monotonic() + task["limits"]["wall_s"]
        self.text, self.written = b"", 0

    def until(self, child: int) -> tuple[int | str, str]:
        """The exit code of a child, or a word; then everything else in this sandbox is ended."""
        reason: str | None = None
        status: int | None = None
        poll = select.poll()
        poll.register(self.told, select.POLLIN)
        while status is None and reason is None:
            if any(event & select.POLLIN for _, event in poll.poll(_POLL_S * 1000)):
                self._read()
            else:
                time.sleep(_POLL_S / 4)
            status = _reap(child)
            reason = None if status is not None else self._exceeded()
        for pid in _others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        while reason is None and poll.poll(0) and self._read():
            pass
        return (status if status is not None else reason or ""), self.text.decode(errors="replace")

    def _read(self) -> int:
        chunk = os.read(self.told, 65536)
        self.written += len(chunk)
        self.text = (self.text + chunk)[-_KEEP_BYTES:]
        return len(chunk)

    def _exceeded(self) -> str | None:
        if time.monotonic() > self.end_s:
            return "timeout"
        if self.written > self.limits["output_bytes"]:
            return "output"
        pids = _others()
        if len(pids) > self.limits["processes"]:
            return "processes"
        if sum(map(_resident_bytes, pids)) > self.limits["memory_bytes"]:
            return "memory"
        return None


def _reap(child: int) -> int | None:
    """The exit code of one child, if it has ended; the others are reaped on the way."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = os.waitstatus_to_exitcode(status)


def _others() -> list[int]:
    """Processes in this sandbox but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as handle:
            lines = handle.read().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    except (OSError, ValueError, IndexError):
        return 0


def _tell(ending: int | str, text: str) -> tuple[str, str]:
    last = (text.strip().splitlines() or [""])[-1][:500]
    if isinstance(ending, str):
        return (ending if ending in ("memory", "timeout") else "failed"), f"over its limit: {ending}"
    if ending in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout", "used up its CPU time"
    return ("memory" if "MemoryError" in last else "failed"), last or f"ended with {ending}"


def main(limit: Limit, hide: Callable[[], None]) -> None:
    """Serve the one task on stdin and write the verdict to stdout."""
    task = json.loads(sys.stdin.buffer.read())
    hide()
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    ending, text = judge(task, limit)
    os.write(1, json.dumps({"ending": ending, "text": text}).encode())
    os._exit(0)
