"""The JSON API: a route for every document, each with its parameters checked and its shape declared."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response, StreamingResponse

from prism.errors import BadFileError
from prism.serve.incidents import Incidents
from prism.serve.library import Library
from prism.serve.shapes.cluster import ClusterDocument
from prism.serve.shapes.evaluation import EvaluationDocument, EvaluationsDocument
from prism.serve.shapes.jobs import FindingsDocument, JobDocument, JobsDocument
from prism.serve.shapes.reports import DatacenterDocument, OverviewDocument, PrintedDocument, ReportsDocument, Versions
from prism.serve.shapes.runs import FailuresDocument, RunDocument, VerdictDocument
from prism.serve.shapes.timeline import BreakdownDocument, SpansDocument, TimelineDocument
from prism.serve.timelines import Timelines
from prism.serve.views import cluster, datacenter, evaluation, failures, job, reports, runs, timeline
from prism.serve.views.incidents import count_sick
from prism.serve.views.looks import find_now
from prism.serve.views.trace import write_trace
from prism.serve.web.answers import Answers, Direct
from prism.serve.web.parameters import Key, Limit, Offset, SpansQuery, Time, TimelineQuery
from prism.serve.web.problems import ErrorBody, answer_error

_EVENTS_S = 20.0  # below the time limit of an answer; longer streams would hold connections of closed laptops
_EVENTS_LOOK_S = 0.1
_EVENTS_RETRY_MS = 500
_MOST_TRACES = 2  # at once; each takes a core for a second
# A report may use its own styles and images, and nothing else.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads"
_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "Nothing of that key"},
    422: {"model": ErrorBody, "description": "A parameter is wrong"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The data that the routes answer from."""

    library: Library
    timelines: Timelines
    answers: Answers
    incidents: Incidents
    version: Callable[[], int]  # grows when an answer may change
    price: datacenter.Price = field(default_factory=datacenter.Price)


def build_api(service: Service) -> APIRouter:
    """All routes below /api."""
    router = APIRouter(prefix="/api")
    _add_lists(router, service)
    _add_details(router, service)
    _add_timeline(router, service)
    _add_files(router, service)
    _add_events(router, service)
    return router


def _add_lists(router: APIRouter, service: Service) -> None:
    library, give = service.library, service.answers.give

    @router.get("/version", response_model=Versions, tags=["folder"])
    async def version(request: Request) -> Response:
        """The version of the folder: poll it, and reload the rest when it grows."""
        now = Versions(version=service.version(), looked_ns=str(library.snapshot.looked_ns))
        return await give(request, lambda: now)

    @router.get("/overview", response_model=OverviewDocument, tags=["folder"])
    async def overview(request: Request) -> Response:
        """What was found in the folder, and what could not be read."""
        name = library.folder.root.name or "/"
        return await give(
            request,
            lambda: datacenter.describe_overview(
                library.snapshot, name, service.price, count_sick(service.incidents.list())
            ),
        )

    @router.get("/jobs", response_model=JobsDocument, tags=["cluster"])
    async def jobs(request: Request, offset: Offset = 0, limit: Limit = 1_000) -> Response:
        """Every job that some source knows, by its newest look."""

        def build() -> JobsDocument:
            now = find_now(library.snapshot)
            rows = (*now.jobs, *now.predictions)
            return JobsDocument(jobs=rows[offset : offset + limit], total=len(rows))

        return await give(request, build)

    @router.get("/findings", response_model=FindingsDocument, tags=["cluster"])
    async def findings(request: Request, offset: Offset = 0, limit: Limit = 1_000) -> Response:
        """Open findings of the newest looks, costliest first."""

        def build() -> FindingsDocument:
            rows = find_now(library.snapshot).findings
            return FindingsDocument(findings=rows[offset : offset + limit], total=len(rows))

        return await give(request, build)

    @router.get("/cluster", response_model=ClusterDocument, tags=["cluster"])
    async def get_cluster(request: Request) -> Response:
        """Jobs, hosts, switches, hot links, and who shares them."""
        return await give(request, lambda: cluster.describe_cluster(library.snapshot))

    @router.get("/failures", response_model=FailuresDocument, tags=["failures"])
    async def get_failures(request: Request) -> Response:
        """Verdicts, hosts with their history, and supervised runs."""
        return await give(request, lambda: failures.describe_failures(library.snapshot))

    @router.get("/evaluations", response_model=EvaluationsDocument, tags=["evaluation"])
    async def evaluations(request: Request) -> Response:
        """All evaluations, the newest first."""
        return await give(request, lambda: evaluation.describe_evaluations(library.snapshot))

    @router.get("/datacenter", response_model=DatacenterDocument, tags=["datacenter"])
    async def get_datacenter(request: Request) -> Response:
        """Reports of `prism characterize`."""
        return await give(request, lambda: datacenter.describe_datacenters(library.snapshot))

    @router.get("/reports", response_model=ReportsDocument, tags=["reports"])
    async def get_reports(request: Request) -> Response:
        """What investigate, compare, predict and goodput printed, newest first."""
        return await give(request, lambda: reports.describe_reports(library.snapshot))


def _add_details(router: APIRouter, service: Service) -> None:
    library, give = service.library, service.answers.give

    @router.get("/job", response_model=JobDocument, responses=_ERRORS, tags=["job"])
    async def get_job(request: Request, key: Key) -> Response:
        """Steps, findings, groups and stages of a job, and what can be laid over its timeline."""
        return await give(request, lambda: job.describe_job(library.snapshot_of(key), key))

    @router.get("/verdict", response_model=VerdictDocument, responses=_ERRORS, tags=["failures"])
    async def verdict(request: Request, id: Key) -> Response:
        """A verdict with its evidence in context."""
        return await give(request, lambda: failures.describe_verdict(library.snapshot_of(id), library.folder, id))

    @router.get("/run", response_model=RunDocument, responses=_ERRORS, tags=["failures"])
    async def run(request: Request, key: Key) -> Response:
        """A supervised run: its story, its losses, and marks on them."""
        return await give(request, lambda: runs.describe_run(library.snapshot_of(key), key))

    @router.get("/evaluation", response_model=EvaluationDocument, responses=_ERRORS, tags=["evaluation"])
    async def get_evaluation(request: Request, key: Key) -> Response:
        """An evaluation: its progress, its leaderboard, what its phases cost."""
        return await give(request, lambda: evaluation.describe_evaluation(library.snapshot_of(key), key))

    @router.get("/printed", response_model=PrintedDocument, responses=_ERRORS, tags=["reports"])
    async def get_printed(request: Request, path: Key) -> Response:
        """One printed document, by its path in the list."""
        return await give(request, lambda: reports.describe_report(library.snapshot_of(path), path))


def list_direct(service: Service) -> dict[str, Direct[Any]]:
    """Windows of a timeline that a page requests while somebody moves in it: answered without the framework."""
    timelines, give = service.timelines, service.answers.give

    async def draw(request: Request, asked: TimelineQuery) -> Response:
        window = asked.to_window()
        return await give(
            request,
            lambda: timeline.describe_timeline(timelines, window),
            at_once=timelines.is_quick(window.key) and not window.expected,
        )

    async def list_spans(request: Request, asked: SpansQuery) -> Response:
        window, lane = asked.to_window(), asked.lane or None
        return await give(
            request,
            lambda: timeline.describe_spans(timelines, window, asked.rank, lane),
            at_once=timelines.is_quick(window.key) and not window.expected,
        )

    return {"/api/timeline": Direct(TimelineQuery, draw), "/api/spans": Direct(SpansQuery, list_spans)}


def _add_timeline(router: APIRouter, service: Service) -> None:
    timelines, give, direct = service.timelines, service.answers.give, list_direct(service)

    @router.get("/timeline", response_model=TimelineDocument, responses=_ERRORS, tags=["job"])
    async def get_timeline(request: Request, asked: Annotated[TimelineQuery, Query()]) -> Response:
        """A window of the timeline of a job, or of the trials of an evaluation, aggregated to the pixels shown."""
        return await direct["/api/timeline"].answer(request, asked)

    @router.get("/spans", response_model=SpansDocument, responses=_ERRORS, tags=["job"])
    async def spans(request: Request, asked: Annotated[SpansQuery, Query()]) -> Response:
        """The spans of a rank in a short window, longest first: those under the pointer."""
        return await direct["/api/spans"].answer(request, asked)

    @router.get("/breakdown", response_model=BreakdownDocument, responses=_ERRORS, tags=["job"])
    async def breakdown(request: Request, key: Key, from_ns: Time = None, to_ns: Time = None) -> Response:
        """Where the time of each rank went in a window."""
        return await give(
            request,
            lambda: timeline.describe_breakdown(timelines, key, from_ns, to_ns),
        )


def _add_files(router: APIRouter, service: Service) -> None:
    library = service.library
    tracing = asyncio.Semaphore(_MOST_TRACES)
    trace_kind: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/octet-stream": {}}, "description": "The trace"},
        **_ERRORS,
    }
    page_kind: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {}}, "description": "The page"}}

    @router.get("/trace", response_class=FileResponse, responses=trace_kind, tags=["job"])
    async def trace(key: Key, from_ns: Time = None, to_ns: Time = None) -> Response:
        """The timeline of a job, or a window of it, as a Perfetto trace."""
        aside = Path(tempfile.mkstemp(prefix="prism-", suffix=".perfetto-trace")[1])
        try:
            async with tracing:
                await run_in_threadpool(write_trace, library, key, from_ns, to_ns, aside)
        except BadFileError as error:
            aside.unlink(missing_ok=True)
            return answer_error(404, str(error))
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", key).strip("-.")[:80] or "job"
        return FileResponse(
            aside,
            media_type="application/octet-stream",
            filename=f"{name}.perfetto-trace",
            background=BackgroundTask(aside.unlink, missing_ok=True),
        )

    @router.get("/report", response_class=Response, responses={**page_kind, **_ERRORS}, tags=["datacenter"])
    async def report(key: Key) -> Response:
        """The stand-alone page of a characterization or of a printed report, without scripts."""
        page = reports.find_page(library.snapshot_of(key), key)
        if page is None:
            return answer_error(404, "no page of that key is in the folder")
        try:
            body = await run_in_threadpool(library.folder.read_whole, page, most=64 << 20)
        except BadFileError as error:
            return answer_error(404, str(error))
        headers = {"Content-Security-Policy": _REPORT_POLICY}
        return Response(body, media_type="text/html; charset=utf-8", headers=headers)


def _add_events(router: APIRouter, service: Service) -> None:
    async def tell(request: Request) -> AsyncIterator[str]:
        """A line for every new version; the stream ends after some seconds, and a browser opens it again."""
        yield f"retry: {_EVENTS_RETRY_MS}\n\n"
        told, loop = -1, asyncio.get_running_loop()
        until = loop.time() + _EVENTS_S
        while loop.time() < until and not await request.is_disconnected():
            if service.version() != told:
                told = service.version()
                yield f"data: {told}\n\n"
            await asyncio.sleep(_EVENTS_LOOK_S)

    kind: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}, "description": "Versions"}}

    @router.get("/events", response_class=StreamingResponse, responses=kind, tags=["folder"])
    async def events(request: Request) -> Response:
        """Server-sent events: the version of the folder, now and whenever it changes, for some seconds."""
        return StreamingResponse(tell(request), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
