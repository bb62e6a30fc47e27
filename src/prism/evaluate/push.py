"""Results sent to webhooks as they come: every score and every regression once, also after a crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from prism.errors import BadConfigError
from prism.evaluate.regressions import Regression, Score
from prism.machine.requests import Receiver
from prism.machine.sender import Sender
from prism.records.settings import Checked, build, describe, one_of

Target = Literal["webhook"]
_QUEUE = "push.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Checked):
    """Where results go."""

    to: Target = field(metadata=one_of(Target))
    url: str | None = None
    key_variable: str | None = None  # the environment variable with a bearer token


def read_pushes(document: Any, where: str) -> tuple[Push, ...]:
    """The entries of a plan's `push`."""
    if not isinstance(document, list):
        raise BadConfigError(f"{where}: 'push' is {describe(document)}, expected a list")
    found: list[Push] = []
    for i, entry in enumerate(document):
        push: Push = build(Push, entry, where, prefix=f"push[{i}].")
        if not (push.url or "").startswith(("http://", "https://")):
            raise BadConfigError(f"{where}: 'push[{i}].url' is {push.url!r}, expected the address to send to")
        found.append(push)
    return tuple(found)


class Outbox:
    """What waits to be sent is in a file of the evaluation's folder, so a resumed run sends it."""

    def __init__(self, pushes: Sequence[Push], folder: Path, say: Callable[[str], None]) -> None:
        def tell(name: str, why: str) -> None:
            if why:
                say(f"results could not be sent to push {name} ({why}); they wait in {folder / _QUEUE}")

        receivers = tuple(_receiver(f"{i}", push) for i, push in enumerate(pushes))
        self._names = [receiver.name for receiver in receivers]
        self._sender = Sender(receivers, folder / _QUEUE, on_outcome=tell) if receivers else None

    def send(self, scores: Sequence[Score], regressions: Sequence[Regression]) -> None:
        """Queue what is new."""
        for score in scores:
            self._queue({"scores": [asdict(score)], "regressions": []}, f"score {_name(score)} {score.value!r}")
        for regression in regressions:
            self._queue({"scores": [], "regressions": [asdict(regression)]}, f"regression {_name(regression)}")

    def _queue(self, body: dict[str, Any], key: str) -> None:
        for name in self._names:
            if self._sender is not None:
                self._sender.send(name, {"schema": "prism.evaluation-push/1", **body}, key=key, once=True)

    def close(self, wait_s: float = 30.0) -> None:
        """Send what waits; what cannot be sent now stays in the file."""
        if self._sender is not None:
            self._sender.drain(wait_s)
            self._sender.close()


def _name(part: Score | Regression) -> str:
    return f"{part.checkpoint} {part.dataset} {part.metric}"


def _receiver(name: str, push: Push) -> Receiver:
    key = os.environ.get(push.key_variable or "", "")
    return Receiver(name=name, url=push.url or "", headers={"Authorization": f"Bearer {key}"} if key else {})
