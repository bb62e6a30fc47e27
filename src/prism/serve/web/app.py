"""The application: routes put together, errors in one shape, a thread that looks at the folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from prism.serve.alerts import AlertConfig, Alerter
from prism.serve.folder import Folder, ScanLimits
from prism.serve.history import HistoryConfig, HistoryIndex
from prism.serve.history.notes import Notes
from prism.serve.library import Library, LookConfig
from prism.serve.timeline.raster import warm_up
from prism.serve.timelines import Timelines
from prism.serve.views.datacenter import Price
from prism.serve.views.looks import find_now
from prism.serve.web.answers import Answers
from prism.serve.web.api import Service, build_api
from prism.serve.web.descriptions import describe_fields
from prism.serve.web.guard import Guard, GuardConfig
from prism.serve.web.history_api import HistoryService, build_history_api
from prism.serve.web.metrics import CONTENT_TYPE, render_metrics
from prism.serve.web.pages import list_routes, load_static
from prism.serve.web.problems import EVERYWHERE, answer_error
from prism.version import __version__

_FEW = 200  # sources that are indexed before the first answer
_LOOK_SHARE = 10.0  # looking at the folder takes at most this part of a core, as in 1/10

log = logging.getLogger("prism.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """How the folder is served."""

    folder: Path
    look_every_s: float = 1.0
    limits: ScanLimits = field(default_factory=ScanLimits)
    guard: GuardConfig = field(default_factory=GuardConfig)
    looks: LookConfig = field(default_factory=LookConfig)
    history: HistoryConfig = field(default_factory=HistoryConfig)
    alerts: AlertConfig = field(default_factory=AlertConfig)
    price: Price = field(default_factory=Price)


def create_app(config: AppConfig) -> ASGIApp:
    """The application behind its guard."""
    library = Library(Folder(config.folder, config.limits), config.looks)
    library.refresh()
    service = Service(library=library, timelines=Timelines(library), answers=Answers(library), price=config.price)
    index = HistoryIndex(replace(config.history, name=config.history.name or library.folder.root.name))
    notes, alerter = Notes(config.history.state), Alerter(config.alerts, config.history.state)
    if len(library.readings) <= _FEW:  # what takes no time is there from the first answer on
        index.update(library.readings, library.in_memory)

    seen: list[object] = []

    def bring_up_to_date() -> None:
        readings = library.readings
        if not seen or seen[0] is not readings:
            index.update(readings, library.in_memory)
            seen[:] = [readings]

    def alert() -> None:
        alerter.look(find_now(library.snapshot).findings, notes.silences())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(_repeat(library.refresh, config.look_every_s, "looking at the folder")),
            asyncio.create_task(_repeat(bring_up_to_date, config.look_every_s, "the index")),
            asyncio.create_task(asyncio.to_thread(_prepare)),
        ]
        if config.alerts.channels:
            tasks.append(asyncio.create_task(_repeat(alert, config.look_every_s, "alerts")))
        yield
        for task in tasks:
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
    app.include_router(build_api(service), responses=EVERYWHERE)
    app.include_router(
        build_history_api(
            HistoryService(
                library=library,
                answers=service.answers,
                index=index,
                notes=notes,
                alerter=alerter,
                writable=config.guard.writable,
            )
        ),
        responses=EVERYWHERE,
    )
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
    describe = app.openapi
    app.openapi = lambda: app.openapi_schema or describe_fields(describe())  # type: ignore[method-assign]
    return Guard(app, config.guard)


async def _repeat(work: Callable[[], object], every_s: float, what: str) -> None:
    """Do something again and again; what takes much of the processor is done less often."""
    while True:
        used_s = 0.0
        try:
            used_s = await asyncio.to_thread(_measure, work)
        except Exception:  # The outermost loop: one failure must not end the service.
            log.exception("%s went wrong; trying again", what)
        await asyncio.sleep(max(every_s, _LOOK_SHARE * used_s))


def _measure(work: Callable[[], object]) -> float:
    """Processor time that it took; on a busy machine the time on the wall says nothing of the work."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


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
