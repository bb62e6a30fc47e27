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
from prism.evaluate.run.scoring.judge import judge_answer
from prism.evaluate.run.scoring.sandbox import SandboxConfig, Walls, run_sandboxed, why_no_isolation, why_not

needs_namespaces = pytest.mark.skipif(why_no_isolation() is not None, reason=f"{why_no_isolation()}")
SHORT = SandboxConfig(wall_s=20.0, cpu_s=1)


@needs_namespaces
@pytest.mark.parametrize(
    ("program", "ending"),
    [
        ("x = 1 + 1", "passed"),
        ("x = 3", "failed"),
        ("while True: pass", "timeout"),
        ("x = bytearray(10**10)", "memory"),
        ("open('x', 'wb').write(b'0' * 10**7)", "failed"),
        ("import sys; sys.exit(0)", "failed"),  # it left before its test ran
        ("import os; os._exit(0)", "failed"),
        ("def f(:", "failed"),
    ],
)
def test_a_program_ends_as_it_should(program: str, ending: str) -> None:
    assert run_sandboxed(program, "assert x == 2", SHORT).ending == ending


@needs_namespaces
def test_a_sleeping_program_is_stopped_with_all_that_it_started() -> None:
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(4217)"
    assert run_sandboxed(program, "assert f(1)", SandboxConfig(wall_s=0.5)).ending == "timeout"
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    assert "4217" not in running


@needs_namespaces
def test_a_test_that_uses_nothing_of_the_program_is_not_passed() -> None:
    for test in ("", "assert 1 == 1", "def test_f():\n    pass"):
        done = run_sandboxed("def f(): return 1", test, SHORT)
        assert not done.passed and "uses nothing of the program" in done.text


def test_there_is_no_network_inside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()  # it is there for us
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        done = run_sandboxed(program, "assert f(1)", SHORT)
    assert done.ending == "failed" and ("unreachable" in done.text or "refused" in done.text)


@needs_namespaces
def test_no_variable_of_ours_is_seen_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "42")
    program = "import os\nfound = 'SECRET_KEY' in os.environ"
    assert run_sandboxed(program, "assert found is False", SHORT).passed


def test_where_no_walls_hold_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.evaluate.run.scoring.sandbox._choose_walls", lambda: None)
    with pytest.raises(PrismError, match="not run here: .*install bubblewrap or allow namespaces"):
        run_sandboxed("x = 1", "assert x == 1", SHORT)


@needs_namespaces
def test_helpers_of_the_prompt_are_the_tasks_own() -> None:
    """As in HumanEval's find_zero and decode_cyclic: a program may write them anew, and its test does not use that."""
    given = 'def double(x):\n    return 2 * x\n\ndef half(x):\n    """Undo `double`."""\n'
    test = "def check(candidate):\n    assert candidate(double(7)) == 7\ncheck(half)"
    for body, ending in (("return x // 2", "passed"), ("return x", "failed")):
        program = f"def double(x):\n    return x\n\ndef half(x):\n    {body}"
        assert run_sandboxed(program, test, SHORT, given).ending == ending


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
        done = run_sandboxed("x = 1", "assert x == 1", replace(SHORT, walls=walls))
    assert done.passed, done.text
