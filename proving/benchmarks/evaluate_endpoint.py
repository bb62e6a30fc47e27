"""How much of a server's own throughput the endpoint engine gets: requests a second through it and through aiohttp.

    python proving/benchmarks/evaluate_endpoint.py [--requests 200] [--rounds 5] [--concurrency 8] [--delay-ms 40]

The server is a process of its own that speaks OpenAI's API over a small random model (tests/evaluate/served_model.py);
`--delay-ms` stands for the time on a device that several requests share. Rounds alternate, medians are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prism.evaluate.run.models.endpoint import Endpoint, EndpointClient

TESTS = Path(__file__).parents[2] / "tests" / "evaluate"
sys.path.insert(0, str(TESTS))


async def ask_plainly(url: str, bodies: list[dict[str, Any]], concurrency: int) -> None:
    """All requests over aiohttp, as a load generator sends them."""
    import aiohttp

    limit = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def ask(body: dict[str, Any]) -> None:
            async with limit, session.post(f"{url}/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.json()

        await asyncio.gather(*(ask(body) for body in bodies))


def measure(url: str, bodies: list[dict[str, Any]], options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Requests a second of each round: aiohttp's, ours."""
    client = EndpointClient(Endpoint(url=url, model="m", concurrency=options.concurrency))
    client.post_all(bodies[: options.concurrency])  # warm
    plain, ours = [], []
    for _ in range(options.rounds):
        start = time.perf_counter()
        asyncio.run(ask_plainly(url, bodies, options.concurrency))
        plain.append(len(bodies) / (time.perf_counter() - start))
        start = time.perf_counter()
        client.post_all(bodies)
        ours.append(len(bodies) / (time.perf_counter() - start))
    return plain, ours


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--requests", type=int, default=200)
    reader.add_argument("--rounds", type=int, default=5)
    reader.add_argument("--concurrency", type=int, default=8)
    reader.add_argument("--delay-ms", type=float, default=40.0)
    options = reader.parse_args()
    import harness_parts

    with tempfile.TemporaryDirectory() as folder:
        model = harness_parts.write_model(Path(folder) / "model")
        server = subprocess.Popen(
            [sys.executable, str(TESTS / "served_model.py"), str(model), str(options.delay_ms / 1000)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert server.stdout is not None and server.stdin is not None
        port = next(line for line in server.stdout if line.strip().isdigit()).strip()
        url = f"http://127.0.0.1:{port}/v1"
        echoed = {"model": "m", "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
        bodies = [{"prompt": f"node {i} rank {i % 7}", **echoed} for i in range(options.requests)]
        try:
            plain, ours = measure(url, bodies, options)
        finally:
            server.kill()
            server.communicate()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{options.requests} requests, {options.concurrency} at once, {options.rounds} rounds ({machine})")
    print(f"server's own (aiohttp)  {statistics.median(plain):8.1f} requests/s")
    print(f"endpoint engine         {statistics.median(ours):8.1f} requests/s")
    print(f"ratio                   {statistics.median(ours) / statistics.median(plain):8.3f}")


if __name__ == "__main__":
    main()
