"""Posts notifications to a webhook without delaying the supervisor."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable

_TIMEOUT_S = 10.0


def post(url: str, document: dict[str, str], on_error: Callable[[str], None]) -> threading.Thread:
    """Send a JSON document in the background; an error is reported, not raised."""
    thread = threading.Thread(target=_send, args=(url, document, on_error), daemon=True)
    thread.start()
    return thread


def _send(url: str, document: dict[str, str], on_error: Callable[[str], None]) -> None:
    request = urllib.request.Request(
        url, data=json.dumps(document).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        on_error(f"webhook {url}: {error}")
