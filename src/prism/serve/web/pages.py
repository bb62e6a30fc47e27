"""Static files of the pages. Read once, known by name."""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prism.serve.web.problems import answer_error

PAGES = ("/", "/live", "/job", "/failures", "/evaluation", "/datacenter", "/reports", "/history", "/api")
_FOLDER = Path(__file__).parent.parent / "static"
_LEAST_PACKED_BYTES = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file in memory, plain and packed."""

    media_type: str
    body: bytes
    packed: bytes | None
    tag: str


@cache
def load_static() -> dict[str, StaticFile]:
    """Every file that may be asked for, by its name below /static."""
    files = {str(path.relative_to(_FOLDER)): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()}
    return {name: _load(path) for name, path in files.items()}


def list_routes() -> list[Route]:
    """Routes of the pages and their files."""
    return [Route(page, _give_page) for page in PAGES] + [Route("/static/{name:path}", _give_static)]


def _load(path: Path) -> StaticFile:
    body = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    kind = "text/javascript" if path.suffix == ".js" else kind
    text = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    packed = gzip.compress(body, 6, mtime=0) if len(body) >= _LEAST_PACKED_BYTES else None
    return StaticFile(media_type=text, body=body, packed=packed, tag=f'"{sha256(body).hexdigest()[:16]}"')


async def _give_page(request: Request) -> Response:
    return _give(request, "index.html")


async def _give_static(request: Request) -> Response:
    return _give(request, request.path_params["name"])


def _give(request: Request, name: str) -> Response:
    file = load_static().get(name)
    if file is None:
        return answer_error(404, "no such page")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.media_type, headers=headers)
