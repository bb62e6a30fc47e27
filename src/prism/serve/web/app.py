"""The application: routes put together, errors in one shape, a thread that looks at the folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from prism.serve.folder import Folder, ScanLimits
from prism.serve.library import Library
from prism.serve.timeline.raster import warm_up
from prism.serve.timelines import Timelines
from prism.serve.web.answers import Answers
from prism.serve.web.api import Service, build_api
from prism.serve.web.guard import Guard, GuardConfig
from prism.serve.web.metrics import CONTENT_TYPE, render_metrics
from prism.serve.web.pages import list_routes, load_static
from prism.serve.web.problems import answer_error
from prism.version import __version__

_LOOK_SHARE = 20.0  # looking at the folder takes at most this part of a second, as in 1/20

log = logging.getLogger("prism.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """How the folder is served."""

    folder: Path
    look_every_s: float = 1.0
    limits: ScanLimits = field(default_factory=ScanLimits)
    guard: GuardConfig = field(default_factory=GuardConfig)


def create_app(config: AppConfig) -> ASGIApp:
    """The application behind its guard."""
    library = Library(Folder(config.folder, config.limits))
    library.refresh()
    service = Service(library=library, timelines=Timelines(library), answers=Answers(library))

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(_look(library, config.look_every_s))
        warming = asyncio.create_task(asyncio.to_thread(_prepare))
        yield
        for task in (looking, warming):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app = FastAPI(
        title="Prism",
        version=__version__,
        summary="What the other commands wrote, read-only.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(build_api(service))
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_parameter)
    app.add_exception_handler(Exception, _on_bug)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["folder"])
    async def metrics(request: Request) -> Response:
        """Prometheus metrics of jobs, steps, findings, recoveries and evaluations."""
        return await service.answers.give(
            request, ("metrics",), lambda: render_metrics(library.snapshot).encode(), CONTENT_TYPE
        )

    @app.get("/healthz", response_class=PlainTextResponse, tags=["folder"])
    async def healthz() -> Response:
        """For probes; needs no token."""
        return Response("ok\n", media_type="text/plain")

    app.router.routes.extend(list_routes())
    return Guard(app, config.guard)


async def _look(library: Library, every_s: float) -> None:
    """Look at the folder again and again; a folder that takes long to look at is looked at less often."""
    loop = asyncio.get_running_loop()
    while True:
        start = loop.time()
        try:
            await asyncio.to_thread(library.refresh)
        except Exception:  # The outermost loop: one bad look must not end the service.
            log.exception("looking at the folder went wrong; looking again")
        await asyncio.sleep(max(every_s, _LOOK_SHARE * (loop.time() - start)))


def _prepare() -> None:
    """What the first visitor would else wait for."""
    warm_up()
    load_static()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "no such page; see /api for what there is" if error.status_code == 404 else str(error.detail)
    return answer_error(error.status_code, message)


async def _on_bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return answer_error(422, f"parameter '{place}': {first['msg']}")


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return answer_error(500, "a bug in Prism; its place is in the service's log")
