"""The end of the tour: the dashboard over all results, opened in a browser or saved as pictures."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prism.errors import PrismError

PAGES = {
    "cluster": "/",
    "job": "/job",
    "failures": "/failures",
    "evaluation": "/evaluation",
    "datacenter": "/datacenter",
}
_PATIENCE_S = 60.0  # with a page
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def serving(folder: Path, port: int | None) -> Iterator[str]:
    """Run `prism serve` on the folder, at a free port unless one is given; yields its address."""
    port = port or _find_free_port()
    command = [sys.executable, "-P", "-m", "prism", "serve", str(folder), "--port", str(port), "--no-token", "--quiet"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait()


def take_screenshots(address: str, folder: Path) -> list[Path]:
    """A picture of every page, if a browser is installed."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, page in PAGES.items():
        picture = folder / f"{name}.png"
        # If the browser hangs, its picture is missing, but the tour continues.
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
            suppress(subprocess.TimeoutExpired),
        ):
            subprocess.run(
                [browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}",
                 "--window-size=1400,1000", "--virtual-time-budget=6000", f"--screenshot={picture}", address + page],
                capture_output=True, timeout=_PATIENCE_S, check=False,
            )  # fmt: skip
        if picture.exists():
            pictures.append(picture)
    return pictures


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise PrismError(f"the dashboard did not answer at {address}")
