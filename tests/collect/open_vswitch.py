"""Runs inside a network namespace of its own: an Open vSwitch that samples, packets through it, what our source makes of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
from packet_bytes import ethernet, ip4, ip6, roce, tcp

from prism.collect import open_source

NUM = 20


def frame(body: bytes, **options: int) -> bytes:
    return b"\xff" * 6 + b"\x02" + bytes(5) + ethernet(body, **options)[12:]


def configure(folder: Path, port: int) -> list[subprocess.Popen[bytes]]:
    """Start the switch without its kernel module, with two taps, sampling every packet and polling every second."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    database = f"unix:{folder / 'db.sock'}"
    control = ["ovs-vsctl", f"--db={database}", "--timeout=20"]
    subprocess.run(["ovsdb-tool", "create", "conf.db", "/usr/share/openvswitch/vswitch.ovsschema"], check=True)
    server = subprocess.Popen(["ovsdb-server", "conf.db", f"--remote=p{database}"], **quiet)
    while not (folder / "db.sock").exists():
        time.sleep(0.05)
    subprocess.run([*control, "--no-wait", "init"], check=True)
    switch = subprocess.Popen(["ovs-vswitchd", database, "--disable-system"], **quiet)
    words = "add-br br0 -- set bridge br0 datapath_type=netdev"
    for tap in ("tap1", "tap2"):
        words += f" -- add-port br0 {tap} -- set interface {tap} type=tap"
    agent = [
        "--id=@s",
        "create",
        "sflow",
        "agent=lo",
        f'target="127.0.0.1:{port}"',
        "header=128",
        "sampling=1",
        "polling=1",
    ]
    subprocess.run(
        [*control, *words.split(), "--", *agent, "--", "set", "bridge", "br0", "sflow=@s"], check=True, **quiet
    )
    for name in ("tap1", "tap2"):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    return [switch, server]


def main() -> None:
    folder = Path(sys.argv[1])
    os.chdir(folder)
    for name in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"):
        os.environ[name] = str(folder)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    source = open_source("sflow://127.0.0.1:0")
    processes = configure(folder, source.address[1])
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind(("tap1", 0))
    tagged = frame(ip4("10.0.0.1", "10.0.0.2", 17, roce(7, 77, 1, 1024)), vlans=1)
    plain = frame(ip6("2001:db8::1", "2001:db8::2", 6, tcp(5, 6, bytes(900))), kind=0x86DD)
    flows, counters = [], []
    begin = time.monotonic()
    sent = 0
    while sent < NUM or sum(c.height for c in counters) < 6 or time.monotonic() < begin + 5:
        if sent < NUM:
            wire.send(tagged)
            wire.send(plain)
            sent += 1
        flows.append(source.poll(0.1))
        counters.append(source.take_counters())
    table = pl.concat([f for f in flows if f.height], how="diagonal")
    seen = (
        table.filter(pl.col("src").is_in(["10.0.0.1", "2001:db8::1"])).group_by("src", "qp", "bytes", "exporter").len()
    )
    ports = pl.concat(counters)
    answer = {
        "flows": sorted(map(list, seen.iter_rows()), key=str),
        "ports": ports["port"].n_unique(),
        "octets": ports["in_octets"].max(),
        "malformed": source.counts.num_malformed,
        "lost": source.counts.lost,
    }
    source.close()
    for process in processes:
        process.terminate()
        process.wait(600)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
