"""Ask a judge model over an OpenAI-style address; every verdict is kept, so that a retry asks only what is missing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError, PrismError
from prism.evaluate.run.models.endpoint import Endpoint, EndpointClient

_QUESTION = (
    "Question: {prompt}\nReference answer: {answer}\nAnswer to judge: {text}\n"
    "Does the answer agree with the reference? Reply with one number from 0 (not at all) to 10 (fully)."
)


def judge_answer(settings: Mapping[str, Any], prompt: str, answer: str, text: str) -> float:
    """A judge's mark between 0 and 1; raises PrismError where it cannot be had now."""
    try:
        url, model = str(settings["url"]).rstrip("/"), str(settings["model"])
    except (KeyError, TypeError):
        raise BadConfigError("'judge' needs 'url' and 'model', as in url: http://localhost:8000/v1") from None
    question = _QUESTION.format(prompt=prompt, answer=answer, text=text)
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    kept = _kept_path(settings, json.dumps([url, body], sort_keys=True))
    if kept is not None and kept.is_file():
        return float(kept.read_text())
    timeout_s = float(settings.get("timeout_s", 60.0))
    # A judge that is busy is asked again by the retry of the score, which may be on another node.
    judge = Endpoint(url=url, model=model, key_variable="PRISM_JUDGE_KEY", timeout_s=timeout_s, attempts=1)
    mark = _read_mark(_ask(judge, body))
    if kept is not None:
        from prism.machine.files import write_durably

        write_durably(kept, repr(mark))
    return mark


def _kept_path(settings: Mapping[str, Any], request: str) -> Path | None:
    folder = settings.get("keep")
    return Path(str(folder)) / hashlib.sha256(request.encode()).hexdigest() if folder else None


def _ask(endpoint: Endpoint, body: dict[str, Any]) -> str:
    try:
        return str(EndpointClient(endpoint).post(body)["choices"][0]["message"]["content"])
    except (PrismError, KeyError, IndexError, TypeError) as error:
        raise PrismError(f"the judge at {endpoint.url} gave no answer ({error})") from None


def _read_mark(reply: str) -> float:
    found = re.search(r"\d+(?:\.\d+)?", reply)
    if found is None or float(found[0]) > 10:
        raise PrismError(f"the judge replied {reply[:60]!r}, expected a number from 0 to 10")
    return float(found[0]) / 10
