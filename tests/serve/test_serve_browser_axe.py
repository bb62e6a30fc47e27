"""axe on every page in both themes: nothing keeps people with other eyes or hands out. Palettes and contrast besides."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import HEIGHT, WIDTH, find_chromium, open_page, set_screen, wait_for_charts
from printed_files import CHOICE, print_documents
from service import RunningService, run_service
from small_folder import make_small_folder

pytest.importorskip("selenium", reason="needs selenium")
PAGES = (
    "/", "/?wall=1", "/cluster", "/hours", "/incident?id=i-1", "/job?key=report~job-1", "/failures", "/evaluation", "/datacenter", "/reports?path=investigation.json",
    "/reports?path=comparison.json", "/reports?path=prediction.json", "/reports?path=goodput.json", "/reports?path=advice.json",
    "/reports?path=replay.json", "/reports?path=placement.json", "/reports?path=placement-choice.json", "/history", "/history?q=node", "/api",
)  # fmt: skip


def find_axe() -> Path | None:
    """axe's script: a newer one where the environment names it, else that of the package axe-core-python."""
    if named := os.environ.get("PRISM_AXE"):
        return Path(named)
    found = find_spec("axe_core_python")
    return None if found is None or found.origin is None else Path(found.origin).parent / "axe.min.js"


pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
    pytest.mark.skipif(find_axe() is None, reason="needs axe: pip install axe-core-python"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = make_small_folder(tmp_path_factory.mktemp("axe"))
    print_documents(folder, tmp_path_factory.mktemp("aside"))
    (folder / "placement-choice.json").write_text(json.dumps(CHOICE))
    alerts = tmp_path_factory.mktemp("alerts") / "alerts.yaml"
    alerts.write_text("channels: [{name: hook, type: webhook, url: 'http://127.0.0.1:9/SECRET'}]\n")
    state = tmp_path_factory.mktemp("state")
    with run_service(folder, "--state", str(state), "--alerts", str(alerts)) as running:
        yield running


def run_axe(browser: Any) -> list[str]:
    """What axe holds against the page, a line each."""
    axe = find_axe()
    assert axe is not None
    browser.execute_script(axe.read_text())
    script = """
    const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ["violations"] }).then((r) => done(r.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message || "")).join(" | ")}`)), (e) => done([String(e)]));
    """
    found: list[str] = browser.execute_async_script(script)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_on_any_page_in_both_themes(browser: Any, service: RunningService, page: str) -> None:
    browser.set_script_timeout(600)
    held: dict[str, list[str]] = {}
    for dark in (False, True):
        set_screen(browser, WIDTH, HEIGHT, dark=dark)
        open_page(browser, service.address + page)
        wait_for_charts(browser)
        if found := run_axe(browser):
            held["dark" if dark else "light"] = found
    set_screen(browser, WIDTH, HEIGHT)
    assert held == {}, json.dumps(held, indent=1)


def test_axe_finds_nothing_on_the_login_page_and_sees_what_is_wrong(browser: Any, tmp_path: Path) -> None:
    with run_service(tmp_path, "--token", "t" * 20) as running:
        browser.get(running.address + "/")
        assert run_axe(browser) == []
        browser.execute_script("document.querySelector('label').remove()")
        assert run_axe(browser), "a field without a name is held against the page"
