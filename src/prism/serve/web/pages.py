"""Static files of the pages, read once."""

from __future__ import annotations

import mimetypes
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prism.serve.web.answers import Answer, make_answer
from prism.serve.web.problems import answer_error

PAGES = (
    "/",
    "/incident",
    "/cluster",
    "/hours",
    "/job",
    "/failures",
    "/evaluation",
    "/datacenter",
    "/reports",
    "/history",
    "/api",
)
_FOLDER = Path(__file__).parent.parent / "static"


@cache
def load_static() -> dict[str, Answer]:
    """Every file that may be requested, by its name below /static."""
    files = {str(path.relative_to(_FOLDER)): path for path in sorted(_FOLDER.rglob("*")) if path.is_file()}
    return {name: _load(path) for name, path in files.items()}


def list_routes() -> list[Route]:
    """Routes of the pages and their files."""
    return [Route(page, _give_page) for page in PAGES] + [Route("/static/{name:path}", _give_static)]


def _load(path: Path) -> Answer:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    kind = "text/javascript" if path.suffix == ".js" else kind
    return make_answer(path.read_bytes(), f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)


async def _give_page(request: Request) -> Response:
    return _give(request, "index.html")


async def _give_static(request: Request) -> Response:
    return _give(request, request.path_params["name"])


def _give(request: Request, name: str) -> Response:
    file = load_static().get(name)
    return answer_error(404, "no such page") if file is None else file.respond(request.scope)
