"""Results sent on as they come: to a webhook, to MLflow's REST API, to Weights & Biases."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from prism.errors import BadConfigError, MissingExtraError
from prism.evaluate.regressions import Regression, Score
from prism.machine.requests import ask_http
from prism.records.settings import Checked, build, describe, one_of

Target = Literal["webhook", "mlflow", "wandb"]
_TIMEOUT_S = 30.0
_BATCH = 500  # metrics of one request; MLflow takes 1,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Checked):
    """Where results go."""

    to: Target = field(metadata=one_of(Target))
    url: str | None = None  # of the webhook, or of MLflow's server
    experiment: str = "prism"  # MLflow's experiment, W&B's project
    run: str = "evaluation"
    key_variable: str | None = None  # the environment variable with a bearer token


def read_pushes(document: Any, where: str) -> tuple[Push, ...]:
    """The entries of a plan's `push`."""
    if not isinstance(document, list):
        raise BadConfigError(f"{where}: 'push' is {describe(document)}, expected a list")
    found: list[Push] = []
    for i, entry in enumerate(document):
        push: Push = build(Push, entry, where, prefix=f"push[{i}].")
        if push.to != "wandb" and not (push.url or "").startswith(("http://", "https://")):
            raise BadConfigError(f"{where}: 'push[{i}].url' is {push.url!r}, expected the address to send to")
        found.append(push)
    return tuple(found)


class Outbox:
    """Sends each score and each regression once to each target; what could not be sent is tried with the next."""

    def __init__(self, pushes: Sequence[Push], say: Callable[[str], None]) -> None:
        self._say = say
        targets: dict[Target, Callable[[Push], Webhook | MlflowServer | WeightsAndBiases]]
        targets = {"webhook": Webhook, "mlflow": MlflowServer, "wandb": WeightsAndBiases}
        self._targets = [(push, targets[push.to](push), set[Any](), set[Any]()) for push in pushes]

    def send(self, scores: Sequence[Score], regressions: Sequence[Regression]) -> None:
        """Send what is new."""
        for push, pusher, sent, told in self._targets:
            fresh = [score for score in scores if (*_name(score), score.value) not in sent]
            news = [r for r in regressions if (r.checkpoint, r.dataset, r.metric) not in told]
            if not fresh and not news:
                continue
            try:
                pusher.send(fresh, news)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._say(f"results could not be sent to {push.to} ({error}); they will be with the next")
                continue
            sent.update((*_name(score), score.value) for score in fresh)
            told.update((r.checkpoint, r.dataset, r.metric) for r in news)


class Webhook:
    """One POST of JSON with the new scores and regressions."""

    def __init__(self, push: Push) -> None:
        self._push = push

    def send(self, scores: Sequence[Score], regressions: Sequence[Regression]) -> None:
        """Post them."""
        body = {
            "schema": "prism.evaluation-push/1",
            "scores": [asdict(score) for score in scores],
            "regressions": [asdict(regression) for regression in regressions],
        }
        _ask(self._push, "", body)


class MlflowServer:
    """A run of an experiment; metrics are named dataset/metric and carry the training step."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._run: str | None = None

    def send(self, scores: Sequence[Score], regressions: Sequence[Regression]) -> None:
        """Log them in batches."""
        run, now_ms = self._run or self._start(), int(time.time() * 1000)
        metrics = [
            {"key": key, "value": value, "step": score.step or 0, "timestamp": now_ms}
            for score in scores
            for key, value in _metrics(score).items()
        ]
        tags = [{"key": f"regression.{_safe(r.dataset)}.{_safe(r.metric)}", "value": _say(r)} for r in regressions]
        for start in range(0, max(len(metrics), 1), _BATCH):
            body = {"run_id": run, "metrics": metrics[start : start + _BATCH], "tags": tags if start == 0 else []}
            _ask(self._push, "/api/2.0/mlflow/runs/log-batch", body)

    def _start(self) -> str:
        api, name = "/api/2.0/mlflow/experiments", self._push.experiment
        try:
            asked = urllib.parse.urlencode({"experiment_name": name})
            experiment = _ask(self._push, f"{api}/get-by-name?{asked}")["experiment"]["experiment_id"]
        except urllib.error.HTTPError:  # there is none of that name
            experiment = _ask(self._push, f"{api}/create", {"name": name})["experiment_id"]
        body = {"experiment_id": experiment, "run_name": self._push.run, "start_time": int(time.time() * 1000)}
        self._run = str(_ask(self._push, "/api/2.0/mlflow/runs/create", body)["run"]["info"]["run_id"])
        return self._run


class WeightsAndBiases:
    """A run of a project, through the wandb package."""

    def __init__(self, push: Push) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("pushing results to wandb", "wandb") from None
        self._run = wandb.init(project=push.experiment, name=push.run, resume="allow")
        self._run.define_metric("training_step")
        self._run.define_metric("*", step_metric="training_step")
        self._alert = wandb.AlertLevel.WARN

    def send(self, scores: Sequence[Score], regressions: Sequence[Regression]) -> None:
        """Log scores by step; a regression is an alert."""
        by_step: dict[int, dict[str, float]] = {}
        for score in scores:
            by_step.setdefault(score.step or 0, {}).update(_metrics(score))
        for step in sorted(by_step):
            self._run.log({"training_step": step, **by_step[step]})
        for regression in regressions:
            self._run.alert(title="regression", text=_say(regression), level=self._alert)


def _metrics(score: Score) -> dict[str, float]:
    name = f"{_safe(score.dataset)}/{_safe(score.metric)}"
    return {name: score.value} | ({f"{name}_stderr": score.stderr} if score.stderr is not None else {})


def _safe(name: str) -> str:
    """Letters that every tracker takes in a name."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


def _name(score: Score) -> tuple[str, str, str]:
    return score.checkpoint, score.dataset, score.metric


def _say(r: Regression) -> str:
    return (
        f"{r.value:.4g} at step {r.step}, {r.before_value:.4g} at step {r.before_step}, {r.sigmas:.1f} standard errors"
    )


def _ask(push: Push, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """What the target answers to a body that is posted to it, or to a plain question."""
    data = None if body is None else json.dumps(body, allow_nan=False).encode()
    headers = {"Content-Type": "application/json"}
    if push.key_variable and (key := os.environ.get(push.key_variable)):
        headers["Authorization"] = f"Bearer {key}"
    url = f"{(push.url or '').rstrip('/') if path else push.url}{path}"
    text = ask_http(url, data, headers, _TIMEOUT_S)
    try:
        return json.loads(text)
    except ValueError:
        return None
