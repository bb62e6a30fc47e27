"""Results are sent on once, each; what cannot be sent goes with the next; a regression is an alarm."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prism.errors import BadConfigError
from prism.evaluate.evaluation import Evaluation
from prism.evaluate.publishing import Publisher
from prism.evaluate.push import Outbox, Push, read_pushes
from prism.evaluate.regressions import Regression, Score
from prism.evaluate.run.outcomes import Findings
from prism.evaluate.schedule.trials import Checkpoint, Dataset

SCORE = Score(checkpoint="step-1", step=1, dataset="arc", metric="acc,none", value=0.5, stderr=0.1, samples=10)
WORSE = Regression(
    dataset="arc", metric="acc,none", checkpoint="step-2", step=2, value=0.1, before_checkpoint="step-1", before_step=1,
    before_value=0.5, sigmas=9.0,
)  # fmt: skip


class Tracker(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent; answers as MLflow's REST API does."""

    seen: list[tuple[str, Any, str | None]] = []  # noqa: RUF012
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, body, self.headers.get("Authorization")))
        answers = {"experiments/create": {"experiment_id": "7"}, "runs/create": {"run": {"info": {"run_id": "r1"}}}}
        self._answer(self.status, next((a for end, a in answers.items() if self.path.endswith(end)), {}))

    def _answer(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def tracker() -> Iterator[str]:
    Tracker.seen, Tracker.status = [], 200
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_webhook_gets_each_score_once_also_after_a_restart(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "k")
    told: list[str] = []
    Tracker.status = 503
    push = Push(to="webhook", url=f"{tracker}/hook", key_variable="HOOK")
    outbox = Outbox([push], tmp_path, told.append)
    outbox.send([SCORE], [])
    outbox.close(1.0)
    assert told and "503" in told[0] and "they wait in" in told[0]
    Tracker.seen, Tracker.status = [], 200
    again = Outbox([push], tmp_path, told.append)  # the resumed run
    for _ in range(2):
        again.send([SCORE], [WORSE])
    again.close()
    assert [len(body["scores"]) for _, body, _ in Tracker.seen] == [1, 0]
    path, body, key = Tracker.seen[-1]
    assert (path, key, body["schema"]) == ("/hook", "Bearer k", "prism.evaluation-push/1")
    assert Tracker.seen[0][1]["scores"][0]["stderr"] == 0.1 and body["regressions"][0]["sigmas"] == 9.0


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "expected a list"),
        ([{"to": "smoke"}], "expected one of"),
        ([{"to": "webhook"}], r"'push\[0\].url' is None"),
    ],
)
def test_a_push_that_cannot_be_is_named(document: Any, told: str) -> None:
    with pytest.raises(BadConfigError, match=told):
        read_pushes(document, "plan.yaml")


def test_a_regression_is_reported_once(tmp_path: Path) -> None:
    checkpoints = tuple(Checkpoint(name=f"s{i}", path="", bytes=1, parameters=1, step=i) for i in (1, 2))
    found = Findings(metrics={("s1", "d"): {"acc": 0.9}, ("s2", "d"): {"acc": 0.2}})
    dataset = Dataset(name="d", adapter="builtin", task="d", samples=500)
    now = Evaluation(checkpoints=checkpoints, datasets=(dataset,), found=found, makespan_s=1.0, lower_bound_s=1.0)
    told: list[str] = []
    publisher = Publisher(tmp_path, (), told.append)
    publisher.publish(now)
    publisher.publish(now)
    assert len(told) == 1 and told[0].startswith("regression: d acc is 0.2 at step 2, 0.9 at step 1")
