"""Loading one checkpoint for 1 to 8 trials of a node over a narrow storage link, and for several nodes.

    sudo python proving/benchmarks/evaluate_loading.py            # about a minute; needs ip, tc and network namespaces

Real bytes over a real link: storage is a web server in a network namespace of its own, whose cable is held to --mbit
by `tc` (token bucket). "Everyone for himself": each trial pulls the checkpoint into memory of its own. "Once per node":
the trials share Prism's shelf in shared memory; one pulls and verifies, the others wait and map. Time runs from the
moment all processes are up until the last trial has read every byte. Between nodes the network is not held back:
"passed on" lets one node pull from storage and the others from a node that has it. Same HTTP client and server for all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import numpy as np

from machine import describe_machine
from prism.evaluate.run.loading import Shelf, ShelfConfig, open_source
from prism.evaluate.run.loading.peer_server import PeerServer
from prism.evaluate.run.models.tiny import write_safetensors
from prism.lab.testbed.namespaces import Namespaces, why_no_namespaces


def load(address: str, roots: list[Path], passed_on: list[str]) -> int:
    """Bring the checkpoint onto a shelf and read every byte of it; its checksum."""
    source = open_source(address)
    files = source.files()
    lease = Shelf(ShelfConfig(roots=tuple(roots))).lease("model", [*map(open_source, passed_on), source], files)
    checksum = 0
    for file in files:
        checksum = zlib.crc32(np.memmap(lease.folder / file.name, np.uint8, "r"), checksum)
    return checksum


def be_trial(args: argparse.Namespace) -> None:
    """One process: say that it is up, wait for the start, load, say how long it took."""
    shelf = Path(args.shelf)
    print("up", flush=True)
    started = float(sys.stdin.readline())
    address = args.address
    passed_on: list[str] = []
    if args.turn:
        # The coordinator starts a node when another has the model, and tells where it can be had.
        line = sys.stdin.readline().strip()
        passed_on = [line] if line else []
    checksum = load(address, [shelf], passed_on)
    offer = ""
    if args.turn:
        neighbour = PeerServer(lambda key: shelf / key, args.host)
        offer = neighbour.offer("model", open_source(address).files())
    print(json.dumps({"seconds": time.time() - started, "checksum": checksum, "offer": offer}), flush=True)
    sys.stdin.readline()  # keep the copy until all are done


def be_storage(folder: Path, host: str) -> None:
    """Serve the checkpoint until the input closes."""
    from prism.evaluate.run.loading.folder_source import FolderSource

    server = PeerServer(lambda key: folder, host)
    print(server.offer("model", FolderSource(folder).files()), flush=True)
    sys.stdin.readline()


class Processes:
    """Processes in namespaces, spoken to by lines."""

    def __init__(self, net: Namespaces) -> None:
        self._net = net
        self._open: list[subprocess.Popen[str]] = []

    def start(self, host: str, *flags: str) -> subprocess.Popen[str]:
        words = [word.format(host=host) for word in self._net.prefix]
        process = subprocess.Popen(
            [*words, sys.executable, __file__, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._open.append(process)
        return process

    def end(self, kept: int = 0) -> None:
        for process in self._open[kept:]:
            with contextlib.suppress(OSError):
                process.communicate("\n", timeout=20)
        del self._open[kept:]


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def measure_trials(crew: Processes, address: str, count: int, *, shared: bool) -> float:
    """Seconds until the last of some trials of one node has the model."""
    with shelves(1 if shared else count) as folders:
        trials = [
            crew.start("h2", "--trial", "--address", address, "--shelf", str(folders[0 if shared else i]))
            for i in range(count)
        ]
        for trial in trials:
            assert hear(trial) == "up"
        start = time.time()
        for trial in trials:
            say(trial, str(start))
        found = [json.loads(hear(trial)) for trial in trials]
        crew.end(kept=1)
    assert len({one["checksum"] for one in found}) == 1
    return max(one["seconds"] for one in found)


def measure_nodes(
    crew: Processes, address: str, hosts: list[str], addresses: dict[str, str], *, pass_on: bool
) -> float:
    """Seconds until every node has the model: all from storage at once, or the first from storage, then on."""
    with shelves(len(hosts)) as folders:
        nodes = [
            crew.start(
                host, "--trial", "--turn", "--address", address, "--shelf", str(folder), "--host", addresses[host]
            )
            for host, folder in zip(hosts, folders, strict=True)
        ]
        for node in nodes:
            assert hear(node) == "up"
        start = time.time()
        for node in nodes:
            say(node, str(start))
        found = []
        if pass_on:
            say(nodes[0], "")
            found.append(json.loads(hear(nodes[0])))
            for node in nodes[1:]:
                say(node, found[0]["offer"])
        else:
            for node in nodes:
                say(node, "")
        found += [json.loads(hear(node)) for node in nodes[len(found) :]]
        crew.end(kept=1)
    assert len({one["checksum"] for one in found}) == 1
    return max(one["seconds"] for one in found)


@contextlib.contextmanager
def shelves(count: int) -> Iterator[list[Path]]:
    """Empty folders in shared memory."""
    base = Path(tempfile.mkdtemp(prefix="prism-loading-", dir="/dev/shm"))
    try:
        yield [base / f"{number}" for number in range(count)]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=400, help="speed of the storage's cable, in Mb/s")
    parser.add_argument("--megabytes", type=int, default=64, help="size of the checkpoint")
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--storage", type=Path, help=argparse.SUPPRESS)
    for name in ("--address", "--shelf", "--host"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trial:
        be_trial(args)
    elif args.storage:
        be_storage(args.storage, args.host)
    elif (reason := why_no_namespaces()) is not None:
        raise SystemExit(f"cannot measure here: {reason}")
    else:
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Set the network up, and run all cases."""
    with shelves(1) as (folder,), Namespaces(5) as net:
        folder.mkdir(parents=True)
        values = np.random.default_rng(0).random(args.megabytes * 250_000, np.float32)
        write_safetensors(folder / "model.safetensors", {"weights": values})
        narrow = f"tc qdisc add dev eth0 root tbf rate {args.mbit}mbit burst 256kb latency 50ms"
        subprocess.run([w.format(host="h1") for w in net.prefix] + narrow.split(), check=True)
        crew = Processes(net)
        address = hear(crew.start("h1", "--storage", str(folder), "--host", net.addresses["h1"]))
        ideal = args.megabytes * 8 / args.mbit
        print(describe_machine())
        print(f"{args.megabytes} MB over {args.mbit} Mb/s: {ideal:.2f} s at the least (tc token bucket in a namespace)")
        try:
            print(f"\n{'trials on a node':>18}{'everyone for himself':>24}{'once per node':>18}{'ratio':>9}")
            for count in (1, 2, 4, 8):
                apart = measure_trials(crew, address, count, shared=False)
                once = measure_trials(crew, address, count, shared=True)
                print(f"{count:>18}{apart:>22.2f} s{once:>16.2f} s{apart / once:>8.1f}x")
            print(f"\n{'nodes':>18}{'all from storage':>24}{'passed on':>18}{'ratio':>9}")
            for count in (2, 4):
                hosts = list(net.hosts[1 : 1 + count])
                storage = measure_nodes(crew, address, hosts, net.addresses, pass_on=False)
                passed = measure_nodes(crew, address, hosts, net.addresses, pass_on=True)
                print(f"{count:>18}{storage:>22.2f} s{passed:>16.2f} s{storage / passed:>8.1f}x")
        finally:
            crew.end()


if __name__ == "__main__":
    main()
