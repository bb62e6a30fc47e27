"""What a user gets: the JSON of the contract, a page that stands alone, legible charts, CSV behind every figure."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from prism.cli.characterize import characterize_traces
from prism.cli.generate_trace import generate_trace_file
from prism.datacenter.characterize import (
    CharacterizeOptions,
    GeneratorOptions,
    characterize,
    compare,
    generate_trace,
    write_document,
    write_report,
)
from prism.datacenter.characterize.figures import draw_figures
from prism.datacenter.characterize.published import REFERENCES
from prism.drawing.charts import WIDTH, Bars, Series, draw_bars, draw_heat_map, draw_lines, draw_pareto, even_ticks
from prism.errors import BadConfigError, BadFileError, InputError

app = typer.Typer()
app.command("characterize")(characterize_traces)
app.command("generate-trace")(generate_trace_file)


@pytest.fixture
def kalos(tmp_path: Path) -> Path:
    path = tmp_path / "kalos.csv"
    generate_trace(GeneratorOptions(cluster="kalos", jobs=4000)).write_csv(path)
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_json_has_the_keys_of_the_contract(two_hundred_jobs: Path) -> None:
    result = run("characterize", str(two_hundred_jobs), "--cluster", "demo", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "prism.characterization/1"
    assert document["cluster"] == "demo"
    assert (document["jobs"], document["gpu_jobs"], document["mean_gpus"]) == (200, 150, 23.6)
    assert document["median_duration_s"] == 60
    assert document["states"]["by_count"] == {"completed": 110, "failed": 30, "cancelled": 10}
    assert document["states"]["by_gpu_time"]["failed"] == 144_000
    assert document["types"]["by_count"] == {"Eval": 100, "SFT": 30, "Pretrain": 20}
    assert document["types"]["by_gpu_time"]["Eval"] == 6000
    assert document["types"]["duration_s"]["SFT"]["p50"] == 600
    assert document["types"]["queue_s"]["Eval"]["median"] == 49.5
    assert [size["gpus"] for size in document["sizes"]] == [1, 8, 64, 256]
    assert document["sizes"][1]["jobs_pct"] == 20
    assert document["sizes"][1]["gpu_time_pct"] == pytest.approx(100 * 144_000 / 41_622_000)
    assert document["failures"][0]["reason"] == "CUDAError"
    assert set(document["comparison"]["references"]) == set(REFERENCES)


def test_several_traces_are_set_side_by_side(two_hundred_jobs: Path, kalos: Path) -> None:
    result = run("characterize", str(two_hundred_jobs), str(kalos), "--cluster", "east", "--json")
    document = json.loads(result.stdout)
    assert [c["cluster"] for c in document["clusters"]] == ["east", "kalos"]
    differences = document["comparison"]["differences"]
    assert any("median queueing: 17 s in kalos, 44 s in east" in line for line in differences), differences


def test_a_cluster_beyond_all_references_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "slow.csv"
    path.write_text("gpus,state,duration\n" + "512,FAILED,900000\n" * 5)
    lines = compare([characterize(path)]).differences
    assert any("mean GPUs per job 512.00 is above every reference" in line for line in lines)
    assert any("median duration 900,000 s is above every reference" in line for line in lines)
    assert any("jobs completed 0.0 % is below every reference" in line for line in lines)


def test_a_trace_that_bears_a_published_name_is_held_against_it(two_hundred_jobs: Path) -> None:
    lines = compare([characterize(two_hundred_jobs, CharacterizeOptions(cluster="kalos"))]).differences
    assert any("kalos differs from the published Kalos in: GPU jobs 150 (published 19,907)" in line for line in lines)


def test_names_of_one_trace_given_twice_stay_apart(two_hundred_jobs: Path, tmp_path: Path) -> None:
    reports = [characterize(two_hundred_jobs, CharacterizeOptions(cluster="Seren")) for _ in range(2)]
    own = compare(reports).table.filter("own")["cluster"].unique(maintain_order=True).to_list()
    assert own == ["Seren (yours)", "Seren (2)"]
    write_report(reports, compare(reports), tmp_path)
    assert sorted(p.name for p in (tmp_path / "csv").iterdir() if p.is_dir()) == ["Seren", "Seren-2"]


def test_the_terminal_shows_tables_and_notes(kalos: Path, tmp_path: Path) -> None:
    result = run("characterize", str(kalos), "--output", str(tmp_path / "out"))
    assert result.exit_code == 0
    for text in ("SYNTHETIC", "Final states of GPU jobs", "Checkpoint interval", "Philly", "% GPU time >="):
        assert text in result.stdout
    assert (tmp_path / "out" / "report.html").exists()


def test_the_page_stands_alone_and_says_what_is_synthetic(kalos: Path, tmp_path: Path) -> None:
    report = characterize(kalos)
    write_report([report], compare([report]), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "SYNTHETIC DATA" in page
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert not re.search(r"url\((?!#)", page)
    document = json.loads((tmp_path / "report.json").read_text())
    assert document == json.loads(json.dumps(write_document([report], compare([report])), default=str))


def test_every_figure_has_its_numbers_as_csv(kalos: Path, tmp_path: Path) -> None:
    report = characterize(kalos)
    write_report([report], compare([report]), tmp_path)
    figures = draw_figures(report)
    names = {f.name for f in figures}
    assert {
        "duration_cdf_all",
        "duration_cdf_type",
        "queue_cdf_size",
        "sizes",
        "states",
        "types",
        "arrivals",
        "failures",
    } <= names
    for figure in figures:
        assert pl.read_csv(tmp_path / "csv" / "kalos" / f"{figure.name}.csv").height == figure.table.height > 0


def test_charts_are_sound_and_their_text_stays_inside(kalos: Path) -> None:
    for figure in draw_figures(characterize(kalos)):
        if figure.svg is not None:
            check_chart(figure.svg)


def test_charts_of_odd_data_are_sound() -> None:
    names = ["<script>&", "x" * 90, ""]
    check_chart(draw_bars("t", names, [Bars("a", [0, None, 3])], unit="%"))
    check_chart(draw_bars("t", ["a"], [Bars("x", [0.0]), Bars("y", [0.0])], unit="%", stacked=True))
    check_chart(draw_lines("t", [], x_label="x", y_label="y", log_x=True))
    check_chart(draw_lines("t", [Series("one", [5], [7])], x_label="x", y_label="y", log_x=True))
    check_chart(
        draw_lines(
            "t", [Series(f"line {i}", [0, 1, 9], [0, 0, 0]) for i in range(12)], x_label="x", y_label="y", log_x=True
        )
    )
    check_chart(draw_heat_map("t", ["a", "b"], ["1"], [[0.0], [0.0]], unit="jobs"))
    check_chart(draw_pareto("t", ["a", "b"], [0.0, 0.0], unit="h"))


def test_a_pareto_chart_shares_out_the_whole_not_what_is_shown() -> None:
    assert "(50 %)" in draw_pareto("t", ["a", "b", "c"], [50.0, 30.0, 20.0], unit="h", most=1)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 100), (3, 17), (0, 1e9), (0.001, 0.002), (5, 5)])
def test_ticks_are_round_and_within_the_range(low: float, high: float) -> None:
    ticks = even_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-9 <= tick <= high * (1 + 1e-9) for tick in ticks)


def check_chart(svg: str) -> None:
    """Well-formed, described for screen readers, and no text starts or ends outside the picture."""
    root = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.findtext(f"{space}title")
    assert root.findtext(f"{space}desc")
    height = float(root.get("height", "0"))
    groups = [(root, 0.0, 0.0)]
    for group in root.findall(f"{space}g"):
        x, y = (float(v) for v in re.findall(r"[-\d.]+", group.get("transform", "")))
        groups.append((group, x, y))
    for parent, dx, dy in groups:
        for text in parent.findall(f"{space}text"):
            if text.get("transform"):
                continue
            width = 7.6 * len(text.text or "")
            anchor = text.get("text-anchor", "start")
            left = (
                float(text.get("x", "0")) + dx - (width if anchor == "end" else width / 2 if anchor == "middle" else 0)
            )
            assert left > -12, text.text
            assert left + width < WIDTH + 25, text.text
            assert 0 < float(text.get("y", "0")) + dy <= height, text.text


def test_the_generator_command_writes_a_trace_that_characterize_reads(tmp_path: Path) -> None:
    path = tmp_path / "made" / "seren.csv"
    result = run("generate-trace", "Seren", "--num-jobs", "2000", "--seed", "4", "--output", str(path), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["synthetic"] is True
    assert json.loads(run("characterize", str(path), "--json").stdout)["jobs"] == 2000


def test_wrong_use_is_an_input_error(two_hundred_jobs: Path, tmp_path: Path) -> None:
    more = run("characterize", str(two_hundred_jobs), "--cluster", "a", "--cluster", "b")
    assert isinstance(more.exception, BadConfigError)
    assert isinstance(run("characterize", str(tmp_path / "none.csv")).exception, BadFileError)
    assert isinstance(run("characterize", str(two_hundred_jobs), "--save-s", "0").exception, InputError)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert isinstance(run("characterize", str(two_hundred_jobs), "--output", str(blocked)).exception, BadFileError)
    assert isinstance(run("generate-trace", "mars", "--output", str(tmp_path / "x.csv")).exception, BadConfigError)
