"""In a real browser: pages of what `investigate`, `compare`, `predict` and `place` print, as they print it today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import find_chromium, open_page, wait_for_charts
from printed_files import CHOICE, print_documents
from service import RunningService, run_service
from test_serve_truth import PRINTED, finding, job_document, write_diagnosis

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("printed")
    print_documents(root, tmp_path_factory.mktemp("aside"))
    hang = finding("job-1", ("host", "node-1-0"), 10.0, 70.0, kind="hang")
    write_diagnosis(root / "report", [job_document(1, state="stopped")], [hang])
    (root / "goodput.json").write_text(json.dumps({"schema": "prism.goodput/1", **PRINTED["goodput"]}))
    (root / "placement-choice.json").write_text(json.dumps(CHOICE))
    return root


@pytest.fixture(scope="module")
def service(printed: Path) -> Iterator[RunningService]:
    with run_service(printed, "--price", "2.5", "--currency", "€") as running:
        yield running


def read_page(browser: Any, service: RunningService, path: str) -> str:
    """The text of a page that was drawn without an error."""
    open_page(browser, f"{service.address}{path}")
    wait_for_charts(browser)
    text: str = browser.execute_script("return document.getElementById('page').innerText")
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not severe and "cannot be shown" not in text and "undefined" not in text and "NaN" not in text, (
        severe,
        text,
    )
    return text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("investigation", ("hang: a rank did not come to a collective", "rank 1", "flight_recorder")),
        ("comparison", ("compute", "a step, expected", "From expected to observed", "other ranks")),
        ("prediction", ("Riskiest parts", "node-0", "in 8 of 10 cases", "Reliability", "past AUC")),
        (
            "advice",
            ("Take out before a long run", "run7", "checkpoint every", "Reliability", "risk above which it pays"),
        ),
        ("replay", ("What the advice would have saved", "Young-Daly", "best fixed interval", "GPU-hours lost")),
        ("placement", ("Queues by policy", "p99 wait", "ran elsewhere", "worst owner's slowdown", "By GPUs")),
        ("placement-choice", ("Where run7 could run", "east", "8 GPUs are free", "does not fit")),
    ],
)
def test_every_report_is_shown_as_its_command_prints_it(
    browser: Any, service: RunningService, kind: str, words: tuple[str, ...]
) -> None:
    text = read_page(browser, service, f"/reports?path={kind}.json")
    for word in words:
        assert word.lower() in text.lower(), (word, text)


def test_an_investigation_is_shown_as_sure_as_it_is(browser: Any, service: RunningService, printed: Path) -> None:
    sure = json.loads((printed / "investigation.json").read_text())["verdict"]["confidence"]
    assert f"{100 * sure:.0f} %" in read_page(browser, service, "/reports?path=investigation.json")


def test_lost_time_is_money_where_a_price_is_given(browser: Any, service: RunningService) -> None:
    import httpx

    lost_s = httpx.get(f"{service.address}/api/cluster", timeout=600).json()["counts"]["lost_gpu_seconds"]
    money = f"€{lost_s / 3600 * 2.5:.2g}"
    for page in ("/cluster", "/job?key=report~job-1", "/history"):
        assert money in read_page(browser, service, page), (page, money)
    assert "€3\nfor what did not train" in read_page(browser, service, "/reports?path=goodput.json")
