"""Storage behind a web server of this process."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path
from typing import Any, ClassVar


class PlainHandler(http.server.SimpleHTTPRequestHandler):
    """Python's own server: it knows no ranges."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class RangeHandler(PlainHandler):
    """Knows ranges, and breaks off every third answer in the middle."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []
    breaks = True

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        wanted = self.headers.get("Range")
        if wanted:
            first, last = (int(word) for word in wanted.removeprefix("bytes=").split("-"))
            content = content[first : last + 1]
            self.asked.append(wanted)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if wanted and self.breaks and len(self.asked) % 3 == 0 and len(content) > 100:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)


def serve(folder: Path, handler: type[PlainHandler]) -> tuple[http.server.ThreadingHTTPServer, str]:
    """Serve a folder; the server, and its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"
