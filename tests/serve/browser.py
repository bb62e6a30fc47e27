"""A real browser without a window, and pictures of pages that can be compared between machines."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
WIDTH, HEIGHT = 1280, 900
BLOCK = 20  # pixels of a screenshot that one pixel of a golden picture stands for
# Fonts differ between machines: letters move by a few pixels and lines may break elsewhere. A golden picture is the
# page averaged over blocks of 20 pixels, which keeps where things are and of which colour, not which letters. Mean
# difference of blocks, of 255, and the share of blocks that differ by more than 48. An empty card in place of a
# chart, a missing table or another theme differ by several times as much.
MEAN_LIMIT = 7.0
FAR_LIMIT = 0.06


@dataclass(frozen=True)
class Shot:
    """A page to picture."""

    name: str
    path: str
    dark: bool = False
    width: int = WIDTH


SHOTS = (
    Shot("now", "/"),
    Shot("cluster", "/cluster"),
    Shot("job", "/job?key=report~job-1"),
    Shot("failures", "/failures"),
    Shot("evaluation", "/evaluation"),
    Shot("datacenter", "/datacenter"),
    Shot("job-dark", "/job?key=report~job-1&expected=report%2Fcluster~job-1", dark=True),
    Shot("cluster-narrow", "/cluster", width=390),
    Shot("now-narrow", "/", width=390),
)


def find_chromium() -> tuple[str, str] | None:
    """The browser and its driver, if both are installed."""
    found = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    return (found[0], found[1]) if found[0] and found[1] else None


@contextmanager
def open_browser(width: int = WIDTH, height: int = HEIGHT, *, flags: Sequence[str] = ()) -> Iterator[Any]:
    """A new browser with nothing remembered."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    found = find_chromium()
    assert found is not None
    options = Options()
    options.binary_location = found[0]
    plain = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    for flag in (*plain, *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(found[1]))
    try:
        set_screen(browser, width, height)
        yield browser
    finally:
        browser.quit()


def set_screen(browser: Any, width: int, height: int, *, dark: bool = False) -> None:
    """Size of the screen and the theme that it asks for."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 600.0) -> Any:
    """Wait with folded hands."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:g} s for {what}")


def open_page(browser: Any, url: str) -> None:
    """Open a page and wait until all in sight is drawn."""
    browser.get("about:blank")
    browser.get(url)
    path = "/" + url.split("/", 3)[3].partition("?")[0]
    wait_for(
        f"page {path}", lambda: browser.execute_script("return document.getElementById('page').dataset.page") == path
    )
    wait_for("the timeline", lambda: browser.execute_script(_TIMELINE_READY))


def text_of(browser: Any, selector: str = "#page") -> str:
    """What a person reads there."""
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))


def wait_for_charts(browser: Any) -> None:
    """Wait until every chart of a page that is wholly in sight is drawn."""
    wait_for("the charts", lambda: browser.execute_script(_CHARTS_READY))


def take_shot(browser: Any, address: str, shot: Shot) -> bytes:
    """The top 1,800 pixels of a page as PNG."""
    set_screen(browser, shot.width, 1_800, dark=shot.dark)
    open_page(browser, address + shot.path)
    wait_for_charts(browser)
    time.sleep(0.5)  # a legend's place is settled after the chart says that it is drawn
    image: bytes = browser.get_screenshot_as_png()
    set_screen(browser, WIDTH, HEIGHT)
    return image


def shrink(image: bytes) -> Any:
    """A screenshot averaged over blocks."""
    from PIL import Image

    page = Image.open(io.BytesIO(image)).convert("RGB")
    return page.resize((page.width // BLOCK, page.height // BLOCK), Image.Resampling.BOX)


def compare(image: bytes, golden: Path) -> tuple[float, float]:
    """Mean difference of blocks from a golden picture, of 255, and the share that is far off."""
    import numpy as np
    from PIL import Image

    now = np.asarray(shrink(image), dtype=np.int16)
    with Image.open(golden) as kept:
        before = np.asarray(kept.convert("RGB"), dtype=np.int16)
    assert now.shape == before.shape, f"{golden.name}: {now.shape} instead of {before.shape}"
    difference = np.abs(now - before).mean(axis=2)
    return float(difference.mean()), float((difference > 48).mean())


_TIMELINE_READY = """
const nodes = [...document.querySelectorAll(".timeline")];
return nodes.every((node) => node.dataset.ready);
"""
_CHARTS_READY = """
return [...document.querySelectorAll(".chart")].every((node) => node.dataset.drawn || node.getBoundingClientRect().top > innerHeight);
"""
