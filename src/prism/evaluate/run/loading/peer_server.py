"""A node passes the checkpoints on its shelf on to others: a small web server with ranges and a secret in its path."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prism.evaluate.run.loading.http_source import LISTING_NAME
from prism.evaluate.run.loading.source import SourceFile


class PeerServer:
    """Serves the copies of a shelf until closed; what `offer` returns is a source for other nodes."""

    def __init__(self, locate: Callable[[str], Path | None], host: str = "127.0.0.1") -> None:
        self._secret = secrets.token_hex(16)
        self._listings: dict[str, tuple[SourceFile, ...]] = {}
        self._locate = locate
        self.host = host
        self._server = ThreadingHTTPServer((host, 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="neighbour", daemon=True).start()

    def offer(self, key: str, files: tuple[SourceFile, ...]) -> str:
        """Let others pull a copy; the address to pull it from."""
        self._listings[key] = files
        return f"http://{self.host}:{self._server.server_address[1]}/{self._secret}/{key}"

    def withdraw(self, key: str) -> None:
        """Offer a copy no longer."""
        self._listings.pop(key, None)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        neighbour = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(send_body=False)

            def do_GET(self) -> None:
                self._answer(send_body=True)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: the coordinator reports loads."""

            def _answer(self, *, send_body: bool) -> None:
                found = neighbour._find(self.path)
                if found is None:
                    self.send_error(404)
                elif isinstance(found, bytes):
                    self._send_head(200, len(found))
                    self.wfile.write(found if send_body else b"")
                else:
                    self._send_file(found, send_body=send_body)

            def _send_file(self, path: Path, *, send_body: bool) -> None:
                try:
                    handle = path.open("rb")
                except OSError:
                    self.send_error(404)
                    return
                with handle:
                    size = os.fstat(handle.fileno()).st_size
                    start, end = _parse_range(self.headers.get("Range"), size)
                    self._send_head(206 if "Range" in self.headers else 200, end - start)
                    with contextlib.suppress(OSError):  # the other side went away
                        while send_body and start < end:
                            start += os.sendfile(self.connection.fileno(), handle.fileno(), start, end - start)

            def _send_head(self, status: int, length: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                self.end_headers()

        return Handler

    def _find(self, path: str) -> bytes | Path | None:
        """What a request path means: a listing, a file of an offered copy, or nothing."""
        parts = path.strip("/").split("/")
        if len(parts) != 3 or not hmac.compare_digest(parts[0].encode(), self._secret.encode()):
            return None
        files, folder = self._listings.get(parts[1]), self._locate(parts[1])
        if files is None or folder is None:
            return None
        if parts[2] == LISTING_NAME:
            return json.dumps([asdict(file) for file in files]).encode()
        return folder / parts[2] if parts[2] in {file.name for file in files} else None


def _parse_range(text: str | None, size: int) -> tuple[int, int]:
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", text or "")
    if match is None:
        return 0, size
    last = int(match[2]) if match[2] else size - 1
    return min(int(match[1]), size), min(last + 1, size)
