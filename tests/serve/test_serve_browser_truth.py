"""In a real browser, on a small folder: what is gone is said, hangs are drawn, focus and scrolling stay the reader's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import find_chromium, open_page, text_of, wait_for
from service import RunningService, run_service
from test_serve_truth import (
    EPOCH_NS,
    PRINTED,
    SECOND,
    finding,
    job_document,
    known,
    write_diagnosis,
    write_evaluation,
    write_watch,
)

from prism.records import SPANS

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]
LINK = '<a href="https://evil.example.com">mmlu</a>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("truth")
    hang = finding("job-1", ("host", "node-1-0"), 10.0, 70.0, kind="hang")
    write_diagnosis(root / "report", [job_document(1, state="stopped"), job_document(2)], [hang])
    span = {"job": "job-1", "rank": 0, "lane": "compute", "kind": "compute", "name": "step", "step": 0,
            "start_ns": EPOCH_NS, "end_ns": EPOCH_NS + 10 * SECOND}  # fmt: skip
    frame = pl.DataFrame([{name: span.get(name) for name in SPANS.required}], schema=SPANS.required)
    frame.write_parquet(root / "report" / "timeline.parquet")
    watched = [known("job-1", ("host", "edge-1"))]
    write_watch(root / "watch", {"job-1": ["10.7.0.1", "10.7.0.2"]}, findings=watched)
    write_evaluation(root / "evaluation", json.dumps({"schema": "prism.evaluation/1", "results": {}}), column=True)
    board = root / "evaluation" / "leaderboard.csv"
    board.write_text(board.read_text().replace("mmlu", '"' + LINK.replace('"', '""') + '"'))
    for kind, document in PRINTED.items():
        (root / f"{kind}.json").write_text(json.dumps({"schema": f"prism.{kind}/1", **document}))
    return root


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with run_service(folder) as running:
        yield running


@pytest.fixture
def changing(folder: Path, tmp_path: Path) -> Iterator[tuple[Path, RunningService]]:
    """The folder and its service for one test that changes files."""
    shutil.copytree(folder, tmp_path / "changing")
    with run_service(tmp_path / "changing") as running:
        yield tmp_path / "changing", running


def test_a_watch_alone_is_not_reported_as_nothing_shared_and_no_step(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=watch~job-1")
    assert "No step was recognised" not in text_of(browser) and "2.93 s is the median" in text_of(browser)
    open_page(browser, f"{service.address}/cluster")
    tiles = text_of(browser, ".tiles").split("\n")
    assert dict(zip(tiles[1::2], tiles[0::2], strict=True))["hosts under suspicion"] == "2"
    assert "Whether links are is not known" in text_of(browser) or "is not known" in text_of(browser)


def test_a_hang_is_drawn_after_the_last_span_and_told_in_words(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    words = browser.execute_script("return document.querySelector('.timeline .unseen').textContent")
    assert "to 1 min 10 s" in words or "to 70 s" in words, words
    assert "hang of host node-1-0" in words
    reddish = """
    const canvas = document.querySelector(".timeline canvas"), c = canvas.getContext("2d");
    const scale = canvas.width / canvas.clientWidth, x = Math.round(0.7 * canvas.width);
    const pixels = c.getImageData(x, Math.round(60 * scale), 60, Math.round(12 * scale)).data;
    let red = 0;
    for (let i = 0; i < pixels.length; i += 4) if (pixels[i] > pixels[i + 1] + 12) red++;
    return red / (pixels.length / 4);
    """
    wait_for("the silence in red", lambda: browser.execute_script(reddish) > 0.5, 600)


def test_a_name_from_a_file_never_becomes_a_link(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/evaluation")
    wait_for("the chart", lambda: browser.execute_script("return document.querySelector('.chart')?.dataset.drawn"))
    assert LINK in text_of(browser)
    assert browser.execute_script("return document.querySelectorAll('a[href*=evil]').length") == 0


def test_falling_bits_per_byte_are_not_red(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/evaluation")
    script = """
    const row = [...document.querySelectorAll("tr")].find((r) => r.innerText.includes("bits_per_byte") && r.innerText.includes("-0.1"));
    return row.querySelector("td:last-child span").title;
    """
    assert browser.execute_script(script) == "better"


def test_every_report_is_shown(browser: Any, service: RunningService) -> None:
    said = {"investigation": "rank 3 is behind", "comparison": "longer", "prediction": "gpu-1", "goodput": "GPU-hours"}
    for kind, words in said.items():
        open_page(browser, f"{service.address}/reports?path={kind}.json")
        assert words in text_of(browser), kind


def test_a_comparison_is_drawn_as_a_waterfall_whose_bars_join(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/reports?path=comparison.json")
    drawn = "return document.querySelector('.chart[aria-label^=Waterfall]')?.dataset.drawn"
    wait_for("the waterfall", lambda: browser.execute_script(drawn))
    script = """
    const chart = document.querySelector(".chart[aria-label^=Waterfall]");
    const bars = [...chart.querySelectorAll("rect")].map((bar) => ["x", "width"].map((name) => +bar.getAttribute(name)));
    return [chart.getAttribute("aria-label"), bars];
    """
    label, bars = browser.execute_script(script)
    assert label.startswith("Waterfall: expected: 10 ms, compute: +2 ms, observed: 12 ms")
    (left, first), (middle, rise), (same, last) = bars
    assert left == same and middle == pytest.approx(left + first, abs=0.2)
    assert middle + rise == pytest.approx(same + last, abs=0.2) and rise > 0


def test_a_refresh_leaves_the_focus_and_arrows_scroll_the_page(
    browser: Any, changing: tuple[Path, RunningService]
) -> None:
    folder, service = changing
    from selenium.webdriver.common.by import By

    open_page(browser, f"{service.address}/job?key=report~job-1")
    window = "return new URLSearchParams(location.search).get('from')"
    before = browser.execute_script(window)
    browser.find_element(By.TAG_NAME, "body").send_keys("\ue014")  # the right arrow
    assert browser.execute_script(window) == before, "the timeline has not the focus"
    browser.execute_script("document.querySelector('select[aria-label=Job]').focus()")
    version = browser.execute_script("return document.getElementById('page').dataset.version")
    write_watch(folder / "watch", {"job-1": ["10.7.0.1", "10.7.0.2"]}, last_s=90.0)
    wait_for(
        "the refresh",
        lambda: browser.execute_script("return document.getElementById('page').dataset.version") != version,
    )
    assert browser.execute_script("return document.activeElement.ariaLabel") == "Job"


def test_what_is_gone_is_reported_and_not_shown_as_live(browser: Any, changing: tuple[Path, RunningService]) -> None:
    folder, service = changing
    open_page(browser, f"{service.address}/job?key=report~job-1")
    (folder / "report" / "diagnosis.json").unlink()
    wait_for("the word", lambda: "gone" in text_of(browser, "#states"), 600)
    dot = "return document.querySelector('.dot').classList.contains('doubt')"
    wait_for("the mark at the top", lambda: browser.execute_script(dot), 600)
