"""An HTTP server with answers set by a test, for code that talks to a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prism.recover.supervise.launchers.kubernetes.api import Api
from prism.recover.supervise.launchers.kubernetes.credentials import Credentials


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: a document, or lines of a stream that is cut after them where `cut` says so."""

    status: int = 200
    body: Any = None
    lines: tuple[Any, ...] = ()
    cut: bool = False  # the connection breaks off without its end


@dataclass
class Script:
    """Answers by method and kind of request, in order; the last one is repeated. Requests are recorded."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    url: str = ""

    def take(self, key: str) -> Answer:
        left = self.answers.get(key) or [Answer(status=404, body={"message": f"nothing for {key}", "code": 404})]
        return left.pop(0) if len(left) > 1 else left[0]

    def api(self, user: dict[str, Any] | None = None) -> Api:
        return Api(Credentials({"server": self.url}, user or {}, "default", "test"))


@contextmanager
def serve(**answers: list[Answer]) -> Iterator[Script]:
    """Keys are LIST, WATCH, LOG and methods."""
    script = Script(answers=answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            if length:
                script.bodies.append(json.loads(self.rfile.read(length)))
            key = self.command
            if key == "GET":
                key = "WATCH" if "watch" in query else "LOG" if url.path.endswith("/log") else "LIST"
            script.asked.append((key, url.path, query, self.headers.get("Authorization", "")))
            found = script.take(key)
            self.send_response(found.status)
            if found.lines:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in found.lines:
                    text = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
                if not found.cut:
                    self.wfile.write(b"0\r\n\r\n")
                self.close_connection = found.cut
                return
            text = json.dumps(found.body).encode() if found.body is not None else b""
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
