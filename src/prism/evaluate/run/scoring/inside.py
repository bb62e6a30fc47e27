"""What runs in the sandbox as the first process: it starts a program and its test apart and says how they ended.

Standard library only: it is sent as text. The verdict goes out by a pipe that neither of the two has.
"""

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

_PASSED, _GONE = 0, 4  # how the process of the test ends: it held; the program was gone before its end
_POLL_S = 0.02
_KEEP_BYTES = 4000
_MAX_START_S = 60.0  # for two interpreters on a busy machine
_MAX_STRETCH = 10  # times the limit, whatever else runs here


def judge(task: Task, limit: Limit) -> tuple[str, str]:
    """Run a program and its test; returns (ending, text).

    The program answers calls, and the test runs in a process that the program cannot reach and that never runs it:
    nothing but right answers passes. Both are run once, in a sandbox that nothing else has run in.
    """
    ask_in, ask_out = os.pipe()
    answer_in, answer_out = os.pipe()
    told_in, told_out = os.pipe()
    begun_in, begun_out = os.pipe()
    texts = (task["test"], task["given"], task["program"])
    checker = _spawn("checker", texts, task, limit, (told_out, answer_in, ask_out, begun_out))
    program = _spawn("program", (task["program"],), task, limit, (told_out, ask_in, answer_out))
    for end in (ask_in, ask_out, answer_in, answer_out, told_out, begun_out):
        os.close(end)
    endings, text = _Watch(task, told_in, begun_in, (checker, program)).until_over()
    if endings.get(checker) == _PASSED:
        return "passed", ""
    return _tell(endings[program if endings.get(checker) == _GONE else checker], text)


def _spawn(role: str, texts: tuple[str, ...], whole: Task, limit: Limit, ends: tuple[int, ...]) -> int:
    """A fresh interpreter: nothing of this process, its frames or its pipes is in it but what is handed over."""
    feed_in, feed_out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            kept = [os.dup2(fd, 200 + i) for i, fd in enumerate((feed_in, nothing, *ends))]
            for i, fd in enumerate(kept):
                os.dup2(fd, i)  # 0 the task, 1 nowhere, 2 told, 3 and 4 the lines to the other, 5 begun
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

    def __init__(self, task: Task, told: int, begun: int, pids: tuple[int, int]) -> None:
        self.limits, self.told, self.begun, self.pids = task["limits"], told, begun, pids
        self.end_s: float = time.monotonic() + _MAX_START_S
        self.waited_s = 0.0
        self.text, self.written = b"", 0

    def until_over(self) -> tuple[dict[int, int | str], str]:
        """How both ended, by a code or a word, and what they wrote; then everything else in this sandbox is ended."""
        reason: str | None = None
        ended: dict[int, int | str] = {}
        checker, program = self.pids
        poll = select.poll()
        poll.register(self.told, select.POLLIN)
        while reason is None and (checker not in ended or (ended[checker] == _GONE and program not in ended)):
            if any(event & select.POLLIN for _, event in poll.poll(_POLL_S * 1000)):
                self._read()
            else:
                time.sleep(_POLL_S / 4)
            ended |= _reap()
            reason = self._exceeded()
        for pid in _others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        while reason is None and poll.poll(0) and self._read():
            pass
        if checker not in ended or ended[checker] == _GONE:
            for pid in self.pids:
                ended.setdefault(pid, reason or "")
        return ended, self.text.decode(errors="replace")

    def _is_late(self) -> bool:
        """Time starts when the program does, and stands while its processes wait for a core."""
        now_s = time.monotonic()
        if self.begun >= 0 and select.select([self.begun], [], [], 0)[0]:
            os.close(self.begun)
            self.begun, self.end_s = -1, now_s + self.limits["wall_s"]
            self.waited_s = sum(map(_waited_s, self.pids))
        if now_s <= self.end_s or self.begun >= 0:
            return now_s > self.end_s
        more_s: float = min(sum(map(_waited_s, self.pids)) - self.waited_s, (_MAX_STRETCH - 1) * self.limits["wall_s"])
        return now_s > self.end_s + more_s

    def _read(self) -> int:
        chunk = os.read(self.told, 65536)
        self.written += len(chunk)
        self.text = (self.text + chunk)[-_KEEP_BYTES:]
        return len(chunk)

    def _exceeded(self) -> str | None:
        if self._is_late():
            return "timeout"
        if self.written > self.limits["output_bytes"]:
            return "output"
        pids = _others()
        if len(pids) > self.limits["processes"]:
            return "processes"
        if sum(map(_resident_bytes, pids)) > self.limits["memory_bytes"]:
            return "memory"
        return None


def _reap() -> dict[int, int | str]:
    """The exit codes of children that have ended."""
    found: dict[int, int | str] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return found


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


def _waited_s(pid: int) -> float:
    """Seconds that a process stood in line for a core."""
    try:
        with open(f"/proc/{pid}/schedstat") as handle:
            return int(handle.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


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
