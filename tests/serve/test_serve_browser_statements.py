"""In a real browser: what a page says adds up, is fetched once, is read on every screen, and is found behind a token."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import HEIGHT, WIDTH, find_chromium, open_page, set_screen, text_of, wait_for
from served_folder import make_run
from service import RunningService, run_service
from test_serve_truth import finding, job_document, known, write_diagnosis, write_evaluation, write_watch

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]
TOKEN = "t" * 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three looks at four jobs, a watch of a fifth, a run whose failure is in two files, a broken evaluation."""
    root = tmp_path_factory.mktemp("statements")
    for number in range(3):
        at_s = 1000.0 * number
        findings = [
            finding("job-1", ("host", "node-1-0"), at_s),
            finding("job-2", ("endpoint", "10.0.2.3"), at_s, lost_gpu_seconds=8.0),
        ]
        write_diagnosis(root / f"look-{number}", [job_document(n, at_s=at_s) for n in range(1, 5)], findings)
    write_watch(root / "watch", {"job-1": ["10.7.0.1", "10.7.0.2"]}, findings=[known("job-1", ("host", "edge-1"))])
    make_run(root / "runs" / "pretrain")
    decisions = [json.loads(line) for line in (root / "runs/pretrain/decisions.jsonl").read_text().splitlines()]
    verdicts = [line["event"]["verdict"] for line in decisions if "verdict" in line["event"]]
    (root / "verdicts.jsonl").write_text("".join(json.dumps(verdict) + "\n" for verdict in verdicts))
    write_evaluation(root / "evaluation", '{"schema": "prism.eval', column=True)
    return root


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with run_service(folder) as running:
        yield running


def tiles_of(browser: Any) -> dict[str, str]:
    words = text_of(browser, ".tiles").split("\n")
    return dict(zip(words[1::2], words[0::2], strict=True))


def column_of(browser: Any, table: str, column: str) -> list[str]:
    """The cells of a column, by the names of table and column."""
    script = """
    const [name, column] = arguments, table = document.querySelector(`table[aria-label="${name}"]`);
    return [...table.querySelectorAll(`td[data-name="${column}"]`)].map((cell) => cell.innerText.trim());
    """
    found: list[str] = browser.execute_script(script, table, column)
    return found


def test_three_looks_and_a_watch_are_five_jobs_and_the_tiles_add_up_to_their_tables(
    browser: Any, service: RunningService
) -> None:
    open_page(browser, f"{service.address}/cluster")
    tiles = tiles_of(browser)
    jobs = column_of(browser, "Jobs", "job")
    assert sorted(jobs) == ["job-1", "job-1", "job-2", "job-3", "job-4", "runs/pretrain"]
    lost = [float(text) for text in column_of(browser, "Findings", "GPU s lost")]
    assert tiles["jobs"] == str(len(jobs)) and tiles["open findings"] == str(len(lost)) == "3"
    assert float(tiles["GPU s lost to them"]) == sum(lost) == 78
    assert tiles["hosts known"] == str(browser.execute_script("return document.querySelectorAll('.host').length"))
    blamed = "return document.querySelectorAll('.host.blamed, .host.cordoned').length"
    assert tiles["hosts under suspicion"] == str(browser.execute_script(blamed)) == "4"
    ranks = sum(int(text) for text in column_of(browser, "Jobs", "ranks") if text != "–")
    assert tiles["ranks seen"] == str(ranks) == str(4 * 16 + 2)
    counted = browser.execute_script("return document.querySelector('#nav a[aria-current] .count').textContent")
    assert counted == "3", "the menu says the same"


def test_a_failure_that_two_files_tell_of_counts_once(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/failures")
    tiles = tiles_of(browser)
    assert (tiles["verdicts"], tiles["failures met"]) == ("1", "1")
    assert len(column_of(browser, "Verdicts", "reason")) == 1


def test_corrupt_results_are_reported_and_hide_nothing(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/evaluation")
    assert column_of(browser, "Leaderboard", "dataset"), "the scores that other files hold"
    assert "results.json" in text_of(browser, "#states") or "results.json" in text_of(browser)
    assert "broken" in text_of(browser, "body")
    assert browser.execute_script("return document.querySelector('.dot').className").strip() == "dot doubt"


def test_each_metric_has_a_chart_of_its_own_and_no_gpus_are_counted_where_there_are_none(
    browser: Any, service: RunningService, folder: Path
) -> None:
    """A perplexity of a thousand beside an accuracy on one axis would show the accuracy as a flat line."""
    (folder / "evaluation" / "progress.json").write_text('{"state": "done", "done": 4, "gpus": 0, "gpus_busy": 0}')
    open_page(browser, f"{service.address}/evaluation")
    wait_for("the progress", lambda: "GPUs busy" not in text_of(browser, ".tiles"), 60)
    script = "return [...document.querySelectorAll('.chart')].map((chart) => chart.ariaLabel.split('.')[0])"
    assert sorted(browser.execute_script(script)) == ["acc over steps", "bits_per_byte over steps"]


def test_a_file_that_breaks_while_a_page_is_open_is_reported(
    browser: Any, service: RunningService, folder: Path
) -> None:
    open_page(browser, f"{service.address}/")
    path = folder / "look-1" / "diagnosis.json"
    whole = path.read_text()
    path.write_text(whole[:-20])
    wait_for("the word", lambda: "look-1/diagnosis.json" in (states(browser)), 600)
    path.write_text(whole)
    wait_for("the end of it", lambda: "look-1/diagnosis.json" not in (states(browser)), 600)


def states(browser: Any) -> str:
    return str(browser.execute_script("return document.querySelector('#states')?.textContent ?? ''"))


def test_files_that_are_not_looked_at_are_reported(browser: Any, folder: Path) -> None:
    with run_service(folder, "--most-files", "4") as running:
        open_page(browser, f"{running.address}/")
        assert "Only the first 4 files of the folder are looked at" in text_of(browser, "body")


@pytest.mark.parametrize("page", ["/", "/cluster", "/failures", "/evaluation", "/history", "/job?key=look-2~job-1"])
def test_a_page_is_small_and_fetches_every_document_once(browser: Any, service: RunningService, page: str) -> None:
    script = """
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const again = ["/api/events", "/api/version"]; // asked again and again, for what is new
    return all.filter((e) => !again.some((path) => e.name.includes(path))).map((e) => [e.name, e.encodedBodySize, e.decodedBodySize]);
    """
    loaded: list[tuple[str, int, int]] = []

    def fetches_once() -> bool:
        open_page(browser, service.address + page)
        loaded[:] = browser.execute_script(script)
        return len({name for name, _, _ in loaded}) == len(loaded)

    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    try:
        # A file that another test has changed may be noticed while a page opens, which then fetches it again, once.
        assert any(fetches_once() for _ in range(5)), sorted(name for name, _, _ in loaded)
    finally:
        browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
    assert sum(packed for _, packed, _ in loaded) < 150_000, loaded
    unpacked = [name for name, packed, whole in loaded if whole > 2_000 and packed > 0.7 * whole]
    assert not unpacked, "sent as they are"


@contextmanager
def run_other_site(link: str) -> Iterator[str]:
    """A page of another site that links here, as a chat or a ticket does."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a id="link" href="{link}">look</a>'.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{server.server_address[1]}/"  # another site than 127.0.0.1
        finally:
            server.shutdown()


def test_a_link_from_another_site_finds_its_reader_logged_in(browser: Any, folder: Path) -> None:
    with run_service(folder, "--token", TOKEN) as running, run_other_site(f"{running.address}/cluster") as elsewhere:
        follow = "document.getElementById('link').click()"
        browser.get(elsewhere)
        browser.execute_script(follow)
        wait_for("the login page", lambda: browser.execute_script("return document.querySelector('.login input')"))
        assert "token_needed" not in text_of(browser, "body"), "people see a page, not JSON"
        browser.execute_script("document.querySelector('#token').value = arguments[0]", TOKEN)
        browser.execute_script("document.querySelector('.login button').click()")
        wait_for("the page", lambda: "Cluster" in text_of(browser, "h1"))
        assert TOKEN not in browser.current_url
        browser.get(elsewhere)
        browser.execute_script(follow)
        wait_for("the page, logged in", lambda: "Cluster" in text_of(browser, "h1"))
        browser.delete_all_cookies()


@pytest.mark.parametrize("width", [1440, 1280, 1000, 768, 390])
def test_no_table_is_cut_at_any_width(browser: Any, service: RunningService, width: int) -> None:
    script = """
    return [...document.querySelectorAll(".scroll")].filter((n) => n.scrollWidth > n.clientWidth + 1)
      .map((n) => [n.getAttribute("aria-label"), n.classList.contains("over") && n.tabIndex === 0]);
    """
    set_screen(browser, width, HEIGHT)
    try:
        for page in ("/", "/cluster", "/failures", "/evaluation", "/history"):
            open_page(browser, service.address + page)
            # The page learns of its tables' widths from an observer, which comes after the layout.
            wait_for(f"tables of {page}", lambda: all(said for _, said in browser.execute_script(script)), 600)
            if page == "/cluster" or width < 560:
                assert not browser.execute_script(script), page
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        set_screen(browser, WIDTH, HEIGHT)


def test_columns_that_have_no_room_come_back_by_a_button(browser: Any, service: RunningService) -> None:
    set_screen(browser, 1000, HEIGHT)
    try:
        open_page(browser, f"{service.address}/cluster")
        assert not column_of(browser, "Jobs", "from") and column_of(browser, "Jobs", "what is wrong")
        script = "[...document.querySelectorAll('button')].find((b) => b.textContent.startsWith(arguments[0])).click()"
        browser.execute_script(script, "Show ")
        assert len(column_of(browser, "Jobs", "from")) == 6
        browser.execute_script(script, "Fewer columns")
        assert not column_of(browser, "Jobs", "from")
    finally:
        set_screen(browser, WIDTH, HEIGHT)
