"""Over real sockets: many clients, slow ones, and ones that ask for too much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service import RunningService, run_service

NUM_CLIENTS = 200
PATHS = (
    "/api/version",
    "/api/jobs",
    "/api/cluster",
    "/api/timeline?key=report~job-1&width=400&num_rows=32&from_ns={at}",
    "/metrics",
)


@pytest.fixture(scope="module")
def service(served: Path) -> Iterator[RunningService]:
    with run_service(served, patience=(1.0, 2.0)) as running:
        yield running


@pytest.fixture(scope="module")
def patient(served: Path) -> Iterator[RunningService]:
    # Patient, because what is checked is that nobody is lost, also on a machine that is busy with other tests.
    with run_service(served, patience=(200.0, 200.0)) as running:
        yield running


def test_two_hundred_clients_at_once_are_all_answered(patient: RunningService) -> None:
    async def ask(number: int) -> list[int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", patient.port)
        try:
            return [await ask_once(reader, writer, path.format(at=number * 1_000_000)) for path in PATHS]
        finally:
            writer.close()

    async def ask_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        await reader.readexactly(int(lines[0].split(b":")[1]))
        return int(head.split()[1])

    async def ask_all() -> list[list[int]]:
        return await asyncio.gather(*(ask(number) for number in range(NUM_CLIENTS)))

    answers = asyncio.run(asyncio.wait_for(ask_all(), 600))
    assert answers == [[200] * len(PATHS)] * NUM_CLIENTS
    assert patient.peak_rss_bytes < 500e6, f"{patient.peak_rss_bytes / 1e6:.0f} MB"


def test_a_client_that_never_ends_its_request_is_disconnected_and_delays_nobody(service: RunningService) -> None:
    slow = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(20)]
    for client in slow:
        client.sendall(b"GET /api/version HTTP/1.1\r\nHost: 127.0")
    assert httpx.get(f"{service.address}/api/version", timeout=600).status_code == 200
    for client in slow:
        client.settimeout(600)
        assert client.recv(100) == b"", "closed without an answer"
        client.close()


def test_a_client_that_sends_nothing_at_all_is_disconnected(service: RunningService) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=600) as client:
        assert client.recv(100) == b""


def test_a_client_that_does_not_read_its_answer_is_disconnected(service: RunningService) -> None:
    """On a busy machine the service may need several times its patience to come to it."""
    counts = (_count_received(service, pause_s) for pause_s in (3.0, 10.0, 30.0, 60.0))
    assert any(count < 40 * 340_000 for count in counts), "everything was sent to a client that did not read"


def _count_received(service: RunningService, pause_s: float) -> int:
    """Ask for forty answers, read nothing for a while, then all that comes until the connection ends."""
    received = 0
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", service.port))
        asked = "GET /api/timeline?key=report~job-1&width=4096&num_rows=64 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        client.sendall(asked.encode() * 40)
        assert httpx.get(f"{service.address}/api/version", timeout=600).status_code == 200
        time.sleep(pause_s)
        client.settimeout(600)
        with contextlib.suppress(ConnectionError):
            while chunk := client.recv(1 << 20):
                received += len(chunk)
    return received


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /api/version?" + "a" * 9_000 + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET /" + "a" * 200_000 + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + "a" * 200_000 + "\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999999\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET http://elsewhere/ HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
        "\x00\x01\x02 nonsense\r\n\r\n",
    ],
    ids=["query", "path", "header", "body", "chunked", "post", "other host", "nonsense"],
)
def test_too_much_is_refused_and_the_service_goes_on(service: RunningService, request_text: str) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=600) as client:
        client.sendall(request_text.encode("latin-1"))
        status = client.recv(64).split()[1]
        assert status[:1] == b"4"
    assert httpx.get(f"{service.address}/api/version", timeout=600).status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../start.py", "/static/%2e%2e/start.py", "/..%2f..%2fetc/passwd", "//etc/passwd", "/static/%00"]
)
def test_no_path_on_the_wire_leads_to_a_file(service: RunningService, path: str) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=600) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := client.recv(65_536):
            answer += chunk
    assert answer.split()[1] == b"404" and b"root:" not in answer and b"def serve" not in answer


def test_an_address_that_others_reach_asks_for_the_printed_token(served: Path) -> None:
    token = "t" * 20
    with run_service(served, "--host", "0.0.0.0", "--token", token) as running:
        here = f"http://127.0.0.1:{running.port}"
        assert httpx.get(f"{here}/api/version", timeout=600).status_code == 401
        assert (
            httpx.get(f"{here}/api/version", headers={"Authorization": f"Bearer {token}"}, timeout=600).status_code
            == 200
        )
