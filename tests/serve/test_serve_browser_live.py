"""In a real browser: the front page and the History, channels, the wall, a range dragged on the timeline, a tap."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import HEIGHT, WIDTH, find_chromium, open_browser, open_page, set_screen, text_of, wait_for
from service import RunningService, run_service
from small_folder import make_small_folder
from test_serve_truth import write_watch

from prism.recover.progress import attempt_dir

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]
READY = "return document.querySelector('.timeline').dataset.ready"


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/SECRET", got
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_small_folder(tmp_path_factory.mktemp("live"), characterized=False)
    (root / "investigation.html").write_text("<h1>the page of the investigation</h1>")
    shutil.copy(root / "investigation.json", attempt_dir(root / "runs" / "pretrain", 1))
    policies = {"first-come": {"mean_queue_s": 90.0, "p99_queue_s": 1_200.0, "by_cluster": {}}}
    (root / "place.json").write_text(json.dumps({"schema": "prism.placement/1", "policies": policies}))
    return root


@pytest.fixture(scope="module")
def service(
    folder: Path, receiver: tuple[str, list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    aside = tmp_path_factory.mktemp("state")
    (aside / "alerts.yaml").write_text(
        json.dumps({"channels": [{"name": "hook", "type": "webhook", "url": receiver[0]}]})
    )
    with run_service(folder, "--state", str(aside), "--alerts", str(aside / "alerts.yaml")) as running:
        yield running


def click(browser: Any, text: str) -> None:
    script = (
        "[...document.querySelectorAll('#page button, #page a')].find((n) => n.textContent === arguments[0]).click()"
    )
    browser.execute_script(script, text)


def test_the_front_page_follows_an_incident_from_its_report_to_its_end(
    browser: Any, service: RunningService, folder: Path
) -> None:
    open_page(browser, f"{service.address}/")
    wait_for("the incident", lambda: "carries transfers more slowly" in text_of(browser), 600)
    open_page(browser, f"{service.address}/incident?id={incident_of(browser, service, 'slow_link')}")
    assert "look at its cable" in text_of(browser), "what to do"
    link = browser.execute_script("return document.querySelector('.evidence a').href")
    assert "/job?key=watch" in link and "from=1779999999000000000" in link, "to the very seconds"


def test_an_incident_is_taken_up_by_one_key_and_closed(browser: Any, service: RunningService) -> None:
    from selenium.webdriver.common.by import By

    open_page(browser, f"{service.address}/")
    wait_for(
        "an incident", lambda: browser.execute_script("return document.querySelectorAll('.sick > li').length"), 600
    )
    first = browser.execute_script("return document.querySelector('.sick > li').dataset.id")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("j")
    assert browser.execute_script("return document.activeElement.dataset.id") == first
    browser.switch_to.active_element.send_keys("a")
    wait_for("who took it up", lambda: "taken up by" in text_of(browser), 600)
    open_page(browser, f"{service.address}/incident?id={first}")
    click(browser, "It is over")
    wait_for("its end", lambda: "closed by" in text_of(browser), 600)


def test_a_channel_is_tried_and_no_page_holds_its_address(
    browser: Any, service: RunningService, receiver: tuple[str, list[Any]]
) -> None:
    open_page(browser, f"{service.address}/")
    click(browser, "Test")
    wait_for("the answer", lambda: "the test was taken" in text_of(browser))
    assert any(body["status"] == "test" for body in receiver[1])
    assert "SECRET" not in browser.page_source


def incident_of(browser: Any, service: RunningService, kind: str) -> str:
    found = httpx.get(f"{service.address}/api/incidents", timeout=600).json()
    return next(one["id"] for one in (*found["now"], *found["past"]) if one["kind"] == kind)


def test_the_wall_has_neither_menus_nor_forms(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/?wall=1")
    seen = "return ['#nav', '#foot', 'form'].map((s) => document.querySelector(s)?.offsetHeight || 0)"
    assert browser.execute_script(seen) == [0, 0, 0]
    big = "return parseFloat(getComputedStyle(document.querySelector('.tile b')).fontSize)"
    assert browser.execute_script(big) >= 40
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_history_is_searched_compared_and_remarked_on(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/history")
    assert "Days" in text_of(browser) and "NVLinkError" in text_of(browser)
    browser.execute_script("document.querySelector('input[name=q]').value = 'node-2'")
    click(browser, "Search")
    wait_for("the hosts", lambda: "Hosts" in text_of(browser) and "q=node-2" in browser.current_url)
    click(browser, "node-2")
    wait_for("the host", lambda: "Host node-2" in text_of(browser, "h1"))
    assert "NVLinkError" in text_of(browser)
    browser.execute_script("document.querySelector('input[name=text]').value = 'riser was swapped'")
    click(browser, "Write")
    wait_for("the remark", lambda: "riser was swapped" in text_of(browser, "section[aria-label=Remarks]"))
    open_page(browser, f"{service.address}/history")
    click(browser, "this")
    wait_for("the first side", lambda: "first=" in browser.current_url and "with this" in text_of(browser))
    click(browser, "with this")
    wait_for("both", lambda: "Side by side" in text_of(browser))
    assert "second over first" in text_of(browser)


def test_an_investigation_leads_to_its_own_page_and_to_its_json(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/reports?path=investigation.json")
    links = browser.execute_script(
        "return [...document.querySelectorAll('#page .head a')].map((a) => [a.textContent, a.getAttribute('href')])"
    )
    assert dict(links).keys() == {"Its own page", "JSON"}
    browser.get(service.address + dict(links)["Its own page"])
    assert "the page of the investigation" in browser.page_source


def test_a_run_leads_to_the_page_of_its_investigation(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/failures?run=runs%2Fpretrain~run")
    script = (
        "return [...document.querySelectorAll('a')].find((a) => a.textContent === 'attempt 1')?.getAttribute('href')"
    )
    wait_for("the link", lambda: browser.execute_script(script))
    browser.get(service.address + browser.execute_script(script))
    wait_for("the verdict", lambda: "rank 3 is behind" in text_of(browser))


def test_a_range_is_dragged_and_the_strip_below_moves_the_window(browser: Any, service: RunningService) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    open_page(browser, f"{service.address}/job?key=report~job-1")
    canvas = browser.find_element(By.CSS_SELECTOR, ".timeline canvas")
    top = -canvas.size["height"] // 2 + 8
    actions = ActionChains(browser).move_to_element_with_offset(canvas, -100, top).click_and_hold()
    actions.move_by_offset(60, 0).move_by_offset(60, 0).release().perform()
    frame = "const d = document.querySelector('.minimap').dataset; return [Number(d.from), Number(d.to)]"
    wait_for("the zoom", lambda: 100 <= browser.execute_script(frame)[1] - browser.execute_script(frame)[0] <= 140)
    before = browser.execute_script(frame)
    strip = browser.find_element(By.CSS_SELECTOR, ".minimap")
    ActionChains(browser).move_to_element_with_offset(strip, 300, 0).click().perform()
    wait_for("the window there", lambda: browser.execute_script(frame)[0] > before[0] + 100)


def test_a_tap_shows_the_spans_under_the_finger(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    script = """
    const canvas = document.querySelector(".timeline canvas"), box = canvas.getBoundingClientRect();
    const at = { pointerId: 7, pointerType: "touch", isPrimary: true, bubbles: true, clientX: box.left + 0.5 * box.width, clientY: box.top + 33 + 15 };
    canvas.setPointerCapture = () => {};
    for (const name of ["pointerdown", "pointerup", "pointerleave"]) canvas.dispatchEvent(new PointerEvent(name, at));
    """
    browser.execute_script(script)
    tip = "const t = document.querySelector('.tip'); return t.style.display === 'block' && t.innerText"
    assert "hang" in wait_for("the tip", lambda: browser.execute_script(tip))


@pytest.mark.parametrize("page", ["/", "/history", "/reports", "/hours", "/cluster"])
def test_nothing_sticks_out_on_a_phone(browser: Any, service: RunningService, page: str) -> None:
    set_screen(browser, 390, 844)
    try:
        open_page(browser, service.address + page)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        set_screen(browser, WIDTH, HEIGHT)


def test_a_ninth_window_of_one_browser_opens_and_is_told_of_a_change(service: RunningService, folder: Path) -> None:
    """A browser keeps six connections to a service, so that windows which all listened would lock a seventh out."""
    with open_browser() as many:
        for number in range(8):
            if number:
                many.switch_to.new_window("window")
            open_page(many, f"{service.address}/")
        time.sleep(15.0)  # windows listen from their tenth second on
        many.switch_to.new_window("window")
        open_page(many, f"{service.address}/history")
        before = many.execute_script("return Number(document.getElementById('page').dataset.version)")
        write_watch(folder / "later", {"job-9": ["10.9.0.1", "10.9.0.2"]}, findings=[])
        for handle in many.window_handles:
            many.switch_to.window(handle)
            wait_for(
                "the change",
                lambda: many.execute_script("return Number(document.getElementById('page').dataset.version)") > before,
            )
