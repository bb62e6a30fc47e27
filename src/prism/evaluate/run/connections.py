"""Connections to one web server that are kept and used again, several threads at once."""

from __future__ import annotations

import contextlib
import http.client
import threading
import urllib.parse
from collections.abc import Iterator


class Connections:
    """Connections that are idle; more are opened when they are needed."""

    def __init__(self, url: urllib.parse.SplitResult, timeout_s: float) -> None:
        self._kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._host, self._timeout_s = url.netloc, timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._guard = threading.Lock()

    def __del__(self) -> None:
        for line in self._idle:
            line.close()

    @contextlib.contextmanager
    def take(self) -> Iterator[http.client.HTTPConnection]:
        """An idle connection or a new one; after an error it is closed."""
        with self._guard:
            line = self._idle.pop() if self._idle else self._kind(self._host, timeout=self._timeout_s)
        try:
            yield line
        except BaseException:
            line.close()
            raise
        with self._guard:
            self._idle.append(line)
