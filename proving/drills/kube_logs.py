"""The part of a bench kubelet that the API server asks for logs: /containerLogs, whole or followed."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from proving.drills.kube_node import Container


class LogServer:
    """HTTPS on loopback with a certificate of its own, as a kubelet without a signed one has."""

    def __init__(self, port: int, folder: Path, containers: dict[str, Container]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._port, self._folder, self._containers = port, folder, containers

    def start(self) -> None:
        """Serve in the background."""
        containers = self._containers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                parts = url.path.strip("/").split("/")  # containerLogs / namespace / pod / container
                found = [c for c in containers.values() if len(parts) == 4 and c.pod["metadata"]["name"] == parts[2]]
                if not found:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in _lines(found[0], query):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate())
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _certificate(self) -> Path:
        path = self._folder / "kubelet.pem"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench"]
        words += ["-keyout", str(path), "-out", str(path) + ".crt"]
        subprocess.run(words, check=True, capture_output=True)
        path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
        return path


def _lines(one: Container, query: dict[str, str]) -> Iterator[bytes]:
    """The lines of a container's log, with their times only where asked for."""
    restarts = one.restarts
    path = one.folder / f"{restarts - 1 if query.get('previous') == 'true' else restarts}.log"
    since = query.get("sinceTime", "").rstrip("Z")
    offset = 0
    while True:
        over = one.ended is not None or one.restarts != restarts
        if path.exists():
            with path.open("rb") as log:
                log.seek(offset)
                for line in log:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    stamp, _, text = line.partition(b" ")
                    if stamp.decode()[:19] >= since:
                        yield line if query.get("timestamps") == "true" else text
        if over or query.get("follow") != "true":
            return
        time.sleep(0.1)
