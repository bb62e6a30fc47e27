"""A day of flows in ClickHouse, read by windows.

    python proving/benchmarks/collect_clickhouse.py [ROWS] [--look-every N]

Rows arrive at the pace of 10^9 a day. ClickHouse's own engine (chdb) holds them on disk in a process of its own, behind
the part of its HTTP interface that takes a query; this process reads them window by window as `prism watch
clickhouse://` does and diagnoses every N-th window. It prints where the time goes, the most memory that it had held
after each fifth of the rows (flat, or else a day does not fit), and how long 10^9 rows would take at that pace.
"""

from __future__ import annotations

import argparse
import http.server
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe_machine, peak_rss_bytes

BEGIN_S = 1_700_000_000
ROWS_PER_S = 11_574  # 10^9 a day
_WINDOW_S = 60
_BATCH = 10_000_000  # rows of one insert

TABLE = (
    "CREATE TABLE default.flows_raw (time_received_ns UInt64, sampling_rate UInt64, time_flow_start_ns UInt64, "
    "time_flow_end_ns UInt64, bytes UInt64, packets UInt64, src_addr FixedString(16), dst_addr FixedString(16), "
    "src_port UInt32, dst_port UInt32) ENGINE = MergeTree ORDER BY time_received_ns"
)
# A ring of 64 endpoints that sends for 290 ms of every second.
INSERT = """
INSERT INTO default.flows_raw SELECT at, 1, at, at + 400000, 4000000, 977,
  toFixedString(unhex(concat('0a0000', leftPad(hex(number % 64), 2, '0'))), 16),
  toFixedString(unhex(concat('0a0000', leftPad(hex((number + 1) % 64), 2, '0'))), 16), 49152 + number % 64, 4791
FROM (SELECT number, {begin} + intDiv(number, {pace}) * 1000000000 + (number % {pace}) * 25000 AS at
      FROM numbers({first}, {num}))
"""


def serve(folder: str, rows: int) -> None:
    """Fill the table, print the port, and answer queries."""
    from chdb.session import Session

    session = Session(folder)
    session.query(TABLE)
    begin = time.monotonic()
    for first in range(0, rows, _BATCH):
        values = {"begin": BEGIN_S * 10**9, "pace": ROWS_PER_S, "first": first, "num": min(_BATCH, rows - first)}
        session.query(INSERT.format(**values))
        print(f"{first + values['num']:,} rows in, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["Content-Length"])).decode()
            head, _, form = query.rpartition(" FORMAT ")
            body = session.query(head, form).bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def read(port: int, rows: int, look_every: int) -> None:
    """Read all rows by windows, and print what it took."""
    from prism.collect import open_source
    from prism.observe.watch.analysis import look_at

    end = BEGIN_S + -(-rows // ROWS_PER_S)
    words = f"clickhouse://127.0.0.1:{port}/default/flows_raw?from={BEGIN_S}&to={end}&window={_WINDOW_S}"
    source = open_source(words)
    begin, cpu, looked_cpu, total, windows, looks, fifths = time.monotonic(), time.process_time(), 0.0, 0, 0, 0, 0
    while not source.is_finished:
        flows = source.poll(0.1)
        total += flows.height
        windows += 1
        if look_every and windows % look_every == 1 % look_every:
            before = time.process_time()
            look_at(flows, None, int(flows["end_ns"].max() or 0))  # type: ignore[arg-type]
            looked_cpu += time.process_time() - before
            looks += 1
        if total * 5 // rows > fifths:
            fifths = total * 5 // rows
            print(f"{total:,} rows: most memory so far {peak_rss_bytes() / 1e9:.2f} GB", flush=True)
    took, used = time.monotonic() - begin, time.process_time() - cpu
    print(
        f"{total:,} of {rows:,} rows in {windows:,} windows, {looks} of them diagnosed: {took:,.0f} s; here "
        f"{used - looked_cpu:,.1f} CPU-s to read and {looked_cpu:,.1f} to diagnose, most memory "
        f"{peak_rss_bytes() / 1e9:.2f} GB; 10^9 rows at this pace: {took * 1e9 / max(total, 1) / 3600:.1f} h, "
        f"{used * 1e9 / max(total, 1) / 3600:.1f} CPU-h; {describe_machine()}"
    )


def main() -> None:
    """Start the server, read, stop the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=100_000_000)
    parser.add_argument("--look-every", type=int, default=0, help="diagnose one window in so many; 0: none")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(asked.rows), "--serve", str(Path(folder) / "db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                read(int(server.stdout.readline()), asked.rows, asked.look_every)
                used = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
                print(f"{used / 1e9:.2f} GB on disk")
            finally:
                server.kill()


if __name__ == "__main__":
    main()
