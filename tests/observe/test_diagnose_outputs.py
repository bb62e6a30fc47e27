"""What `prism diagnose --output` writes, and what it prints: whole, right, and fit for whoever reads it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

import prism.cli.terminal
from prism.cli.diagnose import show_diagnosis
from prism.cli.main import app
from prism.drawing.charts import Band, Series, draw_lines
from prism.lab.scenarios import ScenarioRun, load_scenario, make_scenario, write_scenario
from prism.observe import Diagnosis, diagnose
from prism.observe.report.links import LINKS, measure_links
from prism.observe.report.outputs import write_outputs
from prism.observe.report.page import render_report
from prism.observe.report.timeline_picture import choose_scene
from prism.observe.report.topology_picture import mark_culprits
from prism.observe.report.words import MEANINGS, sparkline
from prism.records import SPANS, Culprit, Finding, read_table
from prism.records.findings import FindingKind
from prism.records.topology import TOPOLOGY

FILES = {
    "report.html", "diagnosis.json", "timeline.parquet", "timeline.perfetto-trace", "links.parquet", "topology.csv",
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> ScenarioRun:
    return make_scenario(load_scenario("two-tenants-128"), 0)


@pytest.fixture(scope="module")
def cluster(made: ScenarioRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    write_scenario(made, folder)
    return folder


@pytest.fixture(scope="module")
def found(made: ScenarioRun) -> Diagnosis:
    return diagnose(made.flows, made.topology)


def blame(found: Diagnosis, *culprits: Culprit) -> Diagnosis:
    """The diagnosis with a finding about each culprit, and nothing else."""
    job, steps = found.jobs[0], found.jobs[0].steps
    findings = tuple(
        Finding(kind="slow_compute", job=job.id, culprit=c, start_ns=int(steps["start_ns"][2]),
                end_ns=int(steps["end_ns"][4]), lost_gpu_seconds=12.0, score=0.9, evidence="works 7 % longer")
        for c in culprits
    )  # fmt: skip
    return Diagnosis(jobs=found.jobs, findings=findings, notes=found.notes, traffic=found.traffic)


class Page(HTMLParser):
    """Tags, what they point to, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.pointers: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.pointers += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action", "data", "xlink:href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def pictures(page: str) -> Iterator[ElementTree.Element]:
    for text in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        yield ElementTree.fromstring(text)


@pytest.mark.parametrize("method", ["prism", "paper"])
def test_every_file_is_written_and_agrees_with_what_is_printed(cluster: Path, tmp_path: Path, method: str) -> None:
    arguments = ["diagnose", str(cluster / "flows.parquet"), "--topology", str(cluster / "topology.csv"), "--method",
                 method, "--json", "--output", str(tmp_path / "out")]  # fmt: skip
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert printed["schema"] == "prism.diagnosis/1"
    spans = pl.read_parquet(tmp_path / "out" / "timeline.parquet")
    assert spans.schema == SPANS.required
    assert set(spans["job"]) == {job["id"] for job in printed["jobs"]}
    assert (tmp_path / "out" / "timeline.perfetto-trace").stat().st_size > 10_000
    given = read_table(cluster / "topology.csv", TOPOLOGY)
    assert read_table(tmp_path / "out" / "topology.csv", TOPOLOGY).equals(given)


def test_links_hold_every_byte_once_each_way(found: Diagnosis) -> None:
    links = measure_links(found)
    assert links.schema == LINKS.required
    total = found.traffic.messages["bytes"].sum()
    assert links["bytes_out"].sum() == total == links["bytes_in"].sum()
    assert links.group_by("address").len()["len"].max() <= 60
    assert (links["end_ns"] > links["start_ns"]).all()


def test_links_name_the_jobs_that_use_them(found: Diagnosis) -> None:
    links = measure_links(found)
    for job in found.jobs:
        own = links.filter(pl.col("address").is_in(job.endpoints))
        assert own["jobs"].list.contains(job.id).all()


def test_links_of_nothing_are_none(made: ScenarioRun) -> None:
    assert measure_links(diagnose(made.flows.clear(), made.topology)).is_empty()


def test_the_page_loads_nothing_and_runs_nothing(found: Diagnosis) -> None:
    page = Page(render_report(blame(found, Culprit(type="endpoint", id=found.jobs[0].endpoints[0])), timeline(found)))
    assert not page.pointers
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)


def test_the_page_has_its_pictures_and_they_are_sound(found: Diagnosis) -> None:
    text = render_report(found, timeline(found))
    titles = [picture.findtext("{*}title") or "" for picture in pictures(text)]
    assert "Topology with the culprits marked" in titles
    for job in found.jobs:
        assert any(t.startswith(f"Timeline of {job.id}") for t in titles)
        assert f"{job.id}: length of its steps" in titles
    assert "prefers-color-scheme:dark" in text


def test_names_from_outside_are_escaped_everywhere(made: ScenarioRun) -> None:
    evil = "<b onload=x>&\"'"
    topology = made.topology.with_columns(pl.lit(evil).add(pl.col("host")).alias("host"), pl.lit(evil).alias("switch"))
    found = diagnose(made.flows, topology)
    host = found.jobs[0].hosts[0]
    text = render_report(blame(found, Culprit(type="host", id=host), Culprit(type="switch", id=evil)), timeline(found))
    assert "<b onload" not in text
    assert "&lt;b onload=x&gt;&amp;" in text
    assert list(pictures(text))


def test_culprits_are_marked_where_they_are(found: Diagnosis) -> None:
    endpoint, host = found.jobs[0].endpoints[3], found.jobs[0].hosts[1]
    switch = str(found.traffic.endpoints["switch"][0])
    told = blame(
        found,
        Culprit(type="endpoint", id=endpoint),
        Culprit(type="host", id=host),
        Culprit(type="switch", id=switch),
        Culprit(type="link", id=f"{endpoint}>{switch}"),
        Culprit(type="job", id="job-1"),
    )
    marks = mark_culprits(told, told.findings)
    assert (marks.addresses, marks.hosts, marks.switches) == ({endpoint: 1}, {host: 2}, {switch: 3})
    assert marks.links == {(endpoint, switch): 4}
    text = render_report(told, timeline(found))
    assert text.count("blamed-box") >= 3  # the style names it too
    assert f'class="rank blamed">{host_of(found, endpoint)} {endpoint}<' in text


@pytest.mark.parametrize("per_host", [1, 2])
def test_a_stage_is_marked_at_all_its_endpoints_also_where_hosts_hold_several(found: Diagnosis, per_host: int) -> None:
    job = found.jobs[0]
    wanted = {address for address, stage in job.finding_stages.items() if stage == 1}
    laid_out = {
        address: per_host * stage + i % per_host for i, (address, stage) in enumerate(job.finding_stages.items())
    }
    split = replace(job, layout=replace(job.layout, stages=laid_out))
    told = blame(replace(found, jobs=(split, *found.jobs[1:])), Culprit(type="stage", id="1"))
    assert wanted
    assert set(mark_culprits(told, told.findings).addresses) == wanted
    assert split.to_json()["finding_stages"] == job.finding_stages != {}
    scene = choose_scene(split, told.findings, {})
    assert scene is not None
    assert {split.endpoints[rank] for rank in scene.blamed} == wanted


def test_a_page_about_nothing_says_so(made: ScenarioRun) -> None:
    nothing = diagnose(made.flows.clear())
    text = render_report(nothing, SPANS.empty())
    assert "No flows between different endpoints were seen." in text
    assert "No training job was recognised." in text


def test_an_output_that_cannot_be_written_is_one_line(found: Diagnosis, cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    from prism.errors import BadFileError

    with pytest.raises(BadFileError, match="choose another --output"):
        write_outputs(found, SPANS.empty(), tmp_path / "file" / "out")


def test_the_terminal_report_fits_80_columns(found: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    narrow = Console(file=text, width=80, highlight=False, force_terminal=True, color_system=None)
    monkeypatch.setattr(prism.cli.terminal, "console", lambda **_: narrow)
    show_diagnosis(blame(found, Culprit(type="group", id=",".join(found.jobs[0].endpoints))))
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    row = next(line for line in lines if line.strip().startswith("job-1"))
    assert "dp" in row and re.search(r"[▁-█]", row), "a job and its sparkline stand on one line"
    assert any("slow compute: group" in line and "more" in line for line in lines)


def test_ray_is_for_prisms_own_method_only(cluster: Path) -> None:
    result = CliRunner().invoke(
        app, ["diagnose", str(cluster / "flows.parquet"), "--method", "paper", "--engine", "ray"]
    )
    assert result.exit_code == 2


def test_every_kind_of_finding_has_its_meaning() -> None:
    assert set(MEANINGS) == set(get_args(FindingKind))


def test_a_sparkline_is_short_and_starts_at_zero() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 2.0]) == "▅█"
    assert len(sparkline([float(i) for i in range(1000)])) == 12


def test_bands_of_a_chart_lie_inside_it() -> None:
    drawn = draw_lines(
        "t",
        [Series("s", [0, 10], [1, 2])],
        x_label="x",
        y_label="y",
        bands=[Band(-5, 3, "early"), Band(8, 99, "<late>")],
    )
    shades = [r for r in ElementTree.fromstring(drawn).findall(".//{*}rect") if "--band" in r.get("style", "")]
    assert [r.findtext("{*}title") for r in shades] == ["early", "<late>"]
    for shade in shades:
        assert float(shade.get("x", 0)) >= 60
        assert float(shade.get("x", 0)) + float(shade.get("width", 0)) <= 560


@pytest.mark.browser
def test_a_browser_shows_the_page_without_complaint_in_both_schemes(found: Diagnosis, tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver")
    from shutil import which

    if which("chromium") is None or which("chromedriver") is None:
        pytest.skip("needs chromium and chromedriver")
    page = tmp_path / "report.html"
    page.write_text(render_report(blame(found, Culprit(type="host", id=found.jobs[0].hosts[0])), timeline(found)))
    options = webdriver.ChromeOptions()
    options.binary_location = which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1200"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(which("chromedriver")))
    try:
        papers = []
        for scheme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.get(page.as_uri())
            papers.append(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
            assert driver.get_log("browser") == []
            assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 1200, "the page does not scroll sideways"
        assert papers[0] != papers[1]
    finally:
        driver.quit()


def timeline(found: Diagnosis) -> pl.DataFrame:
    from prism.observe import build_timeline

    return build_timeline(found)


def host_of(found: Diagnosis, address: str) -> Any:
    return found.traffic.endpoints.filter(pl.col("address") == address)["host"][0]
