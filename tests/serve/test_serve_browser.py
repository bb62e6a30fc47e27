"""In a real browser: pages on real data, the timeline under the hand, shared links, live updates, pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import (
    FAR_LIMIT,
    GOLDEN,
    HEIGHT,
    MEAN_LIMIT,
    SHOTS,
    WIDTH,
    Shot,
    compare,
    find_chromium,
    open_browser,
    open_page,
    set_screen,
    take_shot,
    wait_for,
    wait_for_charts,
)
from served_folder import SCRIPT, write_progress
from service import RunningService, run_service

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]
PAGES = (
    "/cluster",
    "/job",
    "/failures",
    "/evaluation",
    "/datacenter",
    "/api",
)  # the others: test_serve_browser_live.py


@pytest.fixture(scope="module")
def folder(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder that may change."""
    return Path(shutil.copytree(served, tmp_path_factory.mktemp("live") / "served"))


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with run_service(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def no_console_errors(browser: Any) -> Iterator[None]:
    """No test may leave an error or a warning on the console."""
    browser.get_log("browser")
    yield
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def press(browser: Any, key: str) -> None:
    """A key on the timeline, and the picture that follows."""
    script = """
    const node = document.querySelector(".timeline");
    node.querySelector("canvas").dispatchEvent(new KeyboardEvent("keydown", { key: arguments[0], bubbles: true, cancelable: true }));
    return node.dataset.ready;
    """
    before = browser.execute_script(script, key)
    wait_for(
        "a new picture",
        lambda: browser.execute_script("return document.querySelector('.timeline').dataset.ready") != before,
    )


def window_of(browser: Any) -> tuple[int, int]:
    """The window that the address holds, once it is written."""
    script = "const q = new URLSearchParams(location.search); return [q.get('from'), q.get('to')];"
    return tuple(
        map(int, wait_for("a window in the address", lambda: all(found := browser.execute_script(script)) and found))
    )  # type: ignore[return-value]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_loads_with_its_charts(browser: Any, service: RunningService, page: str) -> None:
    open_page(browser, service.address + page)
    wait_for_charts(browser)
    text = browser.execute_script("return document.getElementById('page').innerText")
    assert "cannot be shown" not in text and len(text) > 200
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), "wider than the screen"


def test_the_timeline_zooms_and_pans(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    press(browser, "w")
    first = window_of(browser)
    for _ in range(12):
        press(browser, "w")
    wait_for(
        "the zoom in the address", lambda: window_of(browser)[1] - window_of(browser)[0] < (first[1] - first[0]) / 3_000
    )
    close = window_of(browser)
    assert close[0] >= first[0] and close[1] <= first[1], "zooming in stays inside"
    press(browser, "d")
    wait_for("the pan in the address", lambda: window_of(browser)[0] > close[0])
    moved = window_of(browser)
    assert abs((moved[1] - moved[0]) - (close[1] - close[0])) <= 1, "panning keeps the zoom"
    press(browser, "f")
    wait_for("all of it", lambda: window_of(browser)[1] - window_of(browser)[0] > first[1] - first[0])


def test_the_timeline_is_moved_by_mouse_and_wheel(browser: Any, service: RunningService) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    open_page(browser, f"{service.address}/job?key=report~job-1")
    press(browser, "w")
    before = window_of(browser)
    canvas = browser.find_element(By.CSS_SELECTOR, ".timeline canvas")
    ActionChains(browser).drag_and_drop_by_offset(canvas, 200, 0).perform()
    wait_for("the drag", lambda: window_of(browser)[0] < before[0])
    dragged = window_of(browser)
    browser.execute_script(
        "const b = arguments[0].getBoundingClientRect(); arguments[0].dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -200, ctrlKey: true, clientX: b.left + 600, clientY: b.top + 100, bubbles: true, cancelable: true}));",
        canvas,
    )
    wait_for("the wheel", lambda: window_of(browser)[1] - window_of(browser)[0] < dragged[1] - dragged[0])


def test_spans_under_the_pointer_are_shown(browser: Any, service: RunningService) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    open_page(browser, f"{service.address}/job?key=report~job-1")
    canvas = browser.find_element(By.CSS_SELECTOR, ".timeline canvas")
    ActionChains(browser).move_to_element_with_offset(canvas, 60, 40).perform()
    tip = wait_for(
        "the tip",
        lambda: browser.execute_script(
            "const t = document.querySelector('.tip'); return t.style.display === 'block' && t.innerText"
        ),
    )
    assert "rank" in tip and "lasts" in tip


def test_a_shared_link_shows_the_same_to_somebody_else(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1&expected=report%2Fcluster~job-1&hide=unknown")
    for key in "wwwd":
        press(browser, key)
    state = "return [document.querySelector('.where').innerText, document.querySelector('.bar').innerText, document.querySelector('.bar select').value, [...document.querySelectorAll('.chip')].map(c => c.ariaPressed).join()]"
    wait_for("the address", lambda: "from=" in browser.current_url)
    import time

    time.sleep(0.5)
    mine, link = browser.execute_script(state), browser.current_url
    with open_browser() as other:
        open_page(other, link)
        wait_for("the same picture", lambda: other.execute_script(state) == mine, 600)


def test_what_changes_in_the_folder_appears_by_itself(browser: Any, service: RunningService, folder: Path) -> None:
    open_page(browser, f"{service.address}/evaluation")
    assert "42 / 55" in browser.execute_script("return document.querySelector('.tiles').innerText")
    write_progress(folder / "evaluation", done=47)
    wait_for(
        "the new count",
        lambda: "47 / 60" in browser.execute_script("return document.querySelector('.tiles').innerText"),
        30,
    )
    write_progress(folder / "evaluation", done=42)
    wait_for(
        "the old one",
        lambda: "42 / 55" in browser.execute_script("return document.querySelector('.tiles').innerText"),
        30,
    )


def test_a_rank_is_found_by_its_host_and_the_strip_shows_every_rank(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    rows = "return document.querySelector('canvas.minimap').dataset.rows"
    assert wait_for("the strip", lambda: browser.execute_script(rows), 600) == "64"
    host = httpx.get(f"{service.address}/api/job", params={"key": "report~job-1"}, timeout=600).json()["ranks"][-1][
        "host"
    ]
    find = """
    const field = document.querySelector('input[name=place]');
    field.value = arguments[0]; field.form.requestSubmit(); return field.getAttribute('aria-invalid');
    """
    assert browser.execute_script(find, host) == "false"
    assert (
        browser.execute_script(
            find.replace("field.form", "document.querySelector('input[name=place]').form"), "no-such-host"
        )
        == "true"
    )


def test_script_from_a_log_is_shown_and_not_run(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/failures")
    shown = wait_for("the log", lambda: browser.execute_script("return document.querySelector('.log')?.innerText"))
    assert SCRIPT in shown
    open_page(browser, service.address + "/cluster")
    assert SCRIPT in browser.execute_script("return document.getElementById('page').innerText"), (
        "in a finding's evidence"
    )
    assert "pwned" not in browser.title
    assert browser.execute_script("return document.querySelectorAll('#page script').length") == 0


def test_tables_sort_by_a_click_and_are_exported_as_csv(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/evaluation")
    script = """
    const table = [...document.querySelectorAll("table")].find((t) => t.ariaLabel === "Leaderboard");
    const button = [...table.querySelectorAll("th button")].find((b) => b.innerText.startsWith("value"));
    button.click();
    const column = [...table.querySelectorAll("th")].findIndex((th) => th.innerText.startsWith("value"));
    return [...table.querySelectorAll("tbody tr")].map((tr) => Number(tr.children[column].innerText));
    """
    down, up = browser.execute_script(script), browser.execute_script(script)
    assert down == sorted(down, reverse=True) and up == sorted(up) and len(down) > 10
    csv = """
    const done = arguments[arguments.length - 1];
    import("/static/table.js").then((m) => done(m.csv([{name: "a", get: (r) => r[0]}, {name: "b", get: (r) => r[1]}], [["=1+1", 2], ['x "y", z', null]])));
    """
    assert browser.execute_async_script(csv) == 'a,b\r\n\'=1+1,2\r\n"x ""y"", z",\r\n'


def test_keys_change_page_and_theme(browser: Any, service: RunningService) -> None:
    from selenium.webdriver.common.by import By

    open_page(browser, service.address + "/")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("4")
    wait_for("Failures", lambda: browser.title.startswith("Failures"))
    body.send_keys("t")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    body.send_keys("t")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "light"
    browser.execute_script("localStorage.clear()")
    browser.back()
    wait_for("the front page", lambda: browser.title.startswith("Now"))


@pytest.mark.parametrize("page", PAGES[:5])
def test_nothing_sticks_out_on_a_small_screen(browser: Any, service: RunningService, page: str) -> None:
    set_screen(browser, 390, 844)
    try:
        open_page(browser, service.address + page)
        wait_for_charts(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        set_screen(browser, WIDTH, HEIGHT)


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_pages_look_as_they_did(browser: Any, service: RunningService, shot: Shot) -> None:
    pytest.importorskip("PIL", reason="needs pillow")
    mean, far = compare(take_shot(browser, service.address, shot), GOLDEN / f"{shot.name}.png")
    assert mean <= MEAN_LIMIT and far <= FAR_LIMIT, (
        f"{shot.name} differs: {mean:.1f} of 255 on average, {far:.1%} of blocks far off; if it should, "
        "remake the pictures with python tests/serve/remake_pictures.py golden"
    )


def test_the_comparison_of_pictures_sees_what_is_wrong(browser: Any, service: RunningService) -> None:
    pytest.importorskip("PIL", reason="needs pillow")
    light = take_shot(browser, service.address, SHOTS[2])
    mean, far = compare(light, GOLDEN / "cluster.png")
    assert mean > MEAN_LIMIT or far > FAR_LIMIT, "another page is not taken for this one"
    browser.execute_script("for (const node of document.querySelectorAll('canvas')) node.style.visibility = 'hidden';")
    set_screen(browser, WIDTH, 1_800)
    mean, far = compare(browser.get_screenshot_as_png(), GOLDEN / "job.png")
    set_screen(browser, WIDTH, HEIGHT)
    assert mean > MEAN_LIMIT or far > FAR_LIMIT, "a page without its timeline is noticed"
