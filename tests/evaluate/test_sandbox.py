"""Programs that models wrote run within limits and without a network; judges are asked once."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import tempfile
import threading
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.scoring import inside
from prism.evaluate.run.scoring.judge import judge_answer
from prism.evaluate.run.scoring.sandbox import SandboxConfig, Walls, run_sandboxed, why_no_isolation, why_not

needs_namespaces = pytest.mark.skipif(why_no_isolation() is not None, reason=f"{why_no_isolation()}")
SHORT = SandboxConfig(wall_s=20.0, cpu_s=1)


@needs_namespaces
@pytest.mark.parametrize(
    ("program", "ending"),
    [
        ("x = 1 + 1\nassert x == 2", "passed"),
        ("assert 1 == 2", "failed"),
        ("while True: pass", "timeout"),
        ("x = bytearray(10**10)", "memory"),
        ("open('x', 'wb').write(b'0' * 10**7)", "failed"),
        ("import sys; sys.exit(0)", "failed"),  # it left before its test ran
        ("import os; os._exit(0)", "failed"),
        ("def f(:", "failed"),
    ],
)
def test_a_program_ends_as_it_should(program: str, ending: str) -> None:
    assert run_sandboxed(program, SHORT).ending == ending


@needs_namespaces
def test_a_sleeping_program_is_stopped_with_all_that_it_started() -> None:
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(4217)"
    assert run_sandboxed(program, SandboxConfig(wall_s=0.5)).ending == "timeout"
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    assert "4217" not in running


@needs_namespaces
@pytest.mark.parametrize(
    ("again", "ending"),
    [("failed", "passed"), ("passed", "failed"), ("timeout", "timeout"), ("memory", "memory")],
)
def test_only_a_program_that_fails_a_test_that_must_fail_has_passed(
    again: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the second run may not come to its end: that shows nothing about the first."""
    monkeypatch.setattr(inside, "_run_alone", lambda task, last, limit: (again if last else "passed", ""))
    assert inside.judge({"program": "pass", "test": ""}, lambda limits: None)[0] == ending


def test_there_is_no_network_inside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()  # it is there for us
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        done = run_sandboxed(program, SHORT)
    assert done.ending == "failed" and ("unreachable" in done.text or "refused" in done.text)


@needs_namespaces
def test_no_variable_of_ours_is_seen_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "42")
    assert run_sandboxed("import os\nassert 'SECRET_KEY' not in os.environ", SHORT).passed


def test_where_no_walls_hold_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.evaluate.run.scoring.sandbox._choose_walls", lambda: None)
    with pytest.raises(PrismError, match="not run here: .*install bubblewrap or allow namespaces"):
        run_sandboxed("1", SHORT)


@needs_namespaces
@pytest.mark.parametrize(
    ("program", "test", "ending"),
    [
        ("def f(a): return a + 1", "assert f(1) == 2", "passed"),
        ("def f(a): return a + 1", "assert f(1) == 3", "failed"),
        ("def f(a): a.append(3)", "x = [1]\nf(x)\nassert x == [1, 3]", "passed"),  # changes are seen
        ("def f(a): return {(1, 2): {a}, 'b': 1j, 'c': 2 ** 80, 'd': b'e'}", "assert f(3)[1, 2] == {3} and f(3)['c'] == 2 ** 80", "passed"),
        ("def f(a): return (i for i in a)", "assert list(f([1])) == [1]", "passed"),  # needs the object: run as one
        ("class A:\n    b = 2", "assert A().b == 2", "passed"),
        ("def f(): raise KeyError('k')", "try:\n    f()\nexcept KeyError:\n    pass", "passed"),
        ("import math", "assert math.pi > 3", "passed"),
        ("def check(f): pass\ndef f(a): return 1", "def check(f):\n    assert f(2) == 2\ncheck(f)", "failed"),
    ],
)  # fmt: skip
def test_a_test_apart_sees_what_it_would_see_beside_the_program(program: str, test: str, ending: str) -> None:
    assert run_sandboxed(program, SHORT, test).ending == ending
    assert run_sandboxed(f"{program}\n{test}", SHORT).ending == ending


class Judge(http.server.BaseHTTPRequestHandler):
    """Fails the first time, then gives marks."""

    asked = 0
    reply = "8"

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.asked == 1:
            self.send_error(503)
            return
        body = json.dumps({"choices": [{"message": {"content": f"I say {self.reply}."}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def judge() -> Any:
    Judge.asked, Judge.reply = 0, "8"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def test_a_judge_that_failed_is_asked_again_and_then_never_more(judge: str, tmp_path: Path) -> None:
    settings = {"url": judge, "model": "m", "keep": str(tmp_path)}
    with pytest.raises(PrismError, match="gave no answer"):
        judge_answer(settings, "q", "a", "b")
    assert judge_answer(settings, "q", "a", "b") == 0.8
    assert judge_answer(settings, "q", "a", "b") == 0.8 and Judge.asked == 2


def test_a_judge_without_a_mark_or_an_address_is_reported(judge: str) -> None:
    Judge.asked, Judge.reply = 1, "nothing"
    with pytest.raises(PrismError, match="expected a number from 0 to 10"):
        judge_answer({"url": judge, "model": "m"}, "q", "a", "b")
    with pytest.raises(BadConfigError, match="needs 'url' and 'model'"):
        judge_answer({"model": "m"}, "q", "a", "b")


@needs_namespaces
@pytest.mark.parametrize("walls", ["own", "bubblewrap"])
def test_an_interpreter_under_tmp_is_seen_inside(walls: Walls, monkeypatch: pytest.MonkeyPatch) -> None:
    if walls == "bubblewrap" and why_not(walls) is not None:
        pytest.skip(f"{why_not(walls)}")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        venv.create(folder)
        Path(folder).chmod(0o755)
        monkeypatch.setattr(sys, "prefix", folder)
        monkeypatch.setattr(sys, "executable", f"{folder}/bin/python")
        done = run_sandboxed("x = 1\nassert x == 1", replace(SHORT, walls=walls))
    assert done.passed, done.text
