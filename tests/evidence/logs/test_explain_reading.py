"""Reading: files, archives, folders, streams and growing logs; bad ones end in one clear line."""

import gzip
import json
import threading
import time

import pytest
import typer
import zstandard
from typer.testing import CliRunner

from prism.cli.explain import explain
from prism.errors import BadFileError, InputError
from prism.evidence.logs import diagnose, read_job
from prism.evidence.logs.follow import FollowConfig, follow
from prism.evidence.logs.jobs import find_jobs, tabulate_failures
from prism.records.log import LOG

FAILED = "iteration 1 | loss: 2.0\nKeyError: 'labels'\n"
app = typer.Typer()
app.command()(explain)


@pytest.mark.parametrize("name", ["a.log", "a.log.gz", "a.log.zst"])
def test_plain_and_compressed_logs_read_alike(tmp_path, name):
    path = tmp_path / name
    data = FAILED.encode()
    path.write_bytes(
        gzip.compress(data) if name.endswith("gz") else zstandard.compress(data) if name.endswith("zst") else data
    )
    verdict = diagnose(read_job(str(path))).verdict
    assert (verdict.reason, verdict.lines_read, verdict.evidence[0].line) == ("KeyError", 2, 2)


def test_what_is_kept_of_a_job_is_a_log_table(tmp_path):
    path = tmp_path / "rank_3.log"
    path.write_text("[2024-01-01 10:00:00,500] KeyError: 'x'\n")
    frame = read_job(str(path.parent)).frame()
    assert frame.schema == LOG.required
    assert frame.row(0) == ("rank_3.log", 1, 1704103200500000000, 3, None, "KeyError: 'x'")


def test_a_cut_archive_gives_what_it_still_holds(tmp_path):
    path = tmp_path / "a.log.gz"
    body = "".join(f"line {i} {i * 7919 % 104729}\n" for i in range(20_000))
    path.write_bytes(gzip.compress(("KeyError: 'x'\n" + body).encode())[:-2000])
    assert diagnose(read_job(str(path))).verdict.reason == "KeyError"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "absent.log", "no such file"),
        (lambda p: p, "no logs in this folder"),
        (lambda p: (p / "x.gz").write_bytes(b"not gzip") and p / "x.gz", "not a gzip file"),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line(tmp_path, make, message):
    with pytest.raises(BadFileError, match=message):
        read_job(str(make(tmp_path)))


def test_a_growing_log_is_diagnosed_while_it_grows_and_when_it_ends(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("start\n")

    def write():
        with path.open("a") as out:
            for part in (
                "iteration 1 | loss: 2\n",
                "Traceback (most recent call last):\n  File",
                ' "a.py", line 1\nKey',
                "Error: 'x'\n",
            ):
                time.sleep(0.1)
                out.write(part)
                out.flush()

    writer = threading.Thread(target=write)
    writer.start()
    verdicts = [d.verdict for d in follow(str(path), FollowConfig(poll_s=0.02, quiet_s=0.6))]
    writer.join()
    assert [v.reason for v in verdicts][-1] == "KeyError"
    assert verdicts[-1].lines_read == 5
    assert verdicts[-1].evidence[0].line == 5


def test_the_command_prints_one_json_line_per_log_as_the_contract_says(tmp_path):
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text(FAILED)
    two.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    result = CliRunner().invoke(app, [str(one), str(two), "--json"])
    assert result.exit_code == 0, result.output
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    keys = {
        "log",
        "reason",
        "category",
        "confidence",
        "action",
        "hosts",
        "first_rank",
        "evidence",
        "lines_read",
        "lines_kept",
        "mitigation",
    }
    assert keys <= set(first)
    assert (first["reason"], first["category"], first["action"]) == ("KeyError", "script", "stop")
    assert (second["reason"], second["action"]) == ("ECCError", "isolate_and_restart")
    assert first["evidence"][0] == {"line": 2, "text": "KeyError: 'labels'", "origin": "application"}


def test_the_command_reads_the_standard_input():
    result = CliRunner().invoke(app, ["-", "--json"], input=FAILED)
    assert json.loads(result.stdout)["reason"] == "KeyError"


def test_the_command_shows_a_verdict_with_its_lines_to_a_person(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(FAILED)
    result = CliRunner().invoke(app, [str(log)])
    assert "KeyError" in result.stdout
    assert "2  KeyError: 'labels'" in result.stdout


def test_a_folder_of_jobs_ends_in_the_failure_table(tmp_path):
    for name, text in (("a", FAILED), ("b", FAILED), ("c", "TypeError: f() missing\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank_0.log").write_text(text)
    (tmp_path / "d.log").write_text("CUDA out of memory. Tried to allocate 2 GiB\n")
    assert len(find_jobs(str(tmp_path))) == 4
    verdicts = [diagnose(read_job(job)).verdict for job in find_jobs(str(tmp_path))]
    table = tabulate_failures(verdicts)
    assert table.row(0)[:4] == ("script", "KeyError", 2, 50.0)
    result = CliRunner().invoke(app, ["--per-job", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Failures of 4 jobs" in result.stdout


def test_rules_cases_and_healthy_runs_are_remembered_by_the_command(tmp_path):
    memory, log = tmp_path / "memory", tmp_path / "a.log"
    log.write_text("warning: unsupported widget 3 in slot 9\n")
    run = CliRunner()
    assert run.invoke(app, [str(log), "--memory", str(memory), "--resolved", "ValueError"]).exit_code == 0
    assert json.loads(run.invoke(app, [str(log), "--memory", str(memory), "--json"]).stdout)["reason"] == "ValueError"
    learned = run.invoke(app, [str(log), "--memory", str(memory), "--family", "gpt", "--healthy"])
    assert learned.exit_code == 0, learned.output
    assert (memory / "families" / "gpt.json").exists()


@pytest.mark.parametrize("flags", [["--healthy"], ["--resolved", "OSError"], ["--healthy", "--memory", "m"]])
def test_flags_that_need_another_say_which(tmp_path, flags):
    log = tmp_path / "a.log"
    log.write_text("x\n")
    result = CliRunner().invoke(app, [str(log), *flags])
    assert isinstance(result.exception, InputError)
    assert "need" in str(result.exception)
