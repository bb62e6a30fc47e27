"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Each worker of the suite has a core to itself. Read by OpenMP when it is first loaded, which is later than this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("prism", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("prism"), max_examples=10)
settings.load_profile("prism")

ROOT = Path(__file__).parents[1]

# Files that take longest by the clock. A worker takes a whole file at a time: begun last, one of these would be waited
# for by all other workers (`--no-loadscope-reorder` in pyproject.toml keeps this order).
LONG_FILES = (
    "evaluate/test_evaluate_command.py",
    "proving/drills/test_drills.py",
    "emulate/test_script_runs.py",
    "lab/testbed/test_lab.py",
    "docs/test_walks.py",
    "recover/test_writer_process.py",
    "recover/test_checkpointer.py",
    "docs/test_tutorials.py",
    "observe/watch/test_watch.py",
    "observe/watch/test_watch_survival.py",
    "serve/test_serve_browser_statements.py",
    "serve/test_serve_browser.py",
    "serve/test_serve_clients.py",
    "serve/test_serve_workers.py",
    "evaluate/test_harness.py",
    "evaluate/test_escapes.py",
    "observe/test_findings.py",
    "datacenter/characterize/test_generated_traces.py",
)


# `make quick` runs the pure tests: files that start no process and load no framework, server or browser. A file is
# judged by its text before it is imported, so that nothing heavy is loaded to find out.
_NOT_PURE = re.compile(
    r"^\s*(?:import|from) (?:torch|subprocess|multiprocessing|ray|selenium|chdb|lm_eval|starlette|fastapi|httpx|pty"
    r"|transformers|lightning|deepspeed|accelerate|confluent_kafka|moto|boto3|proving|prism\.emulate\.inside)\b"
    r"|served_folder|browser|namespaces|Popen|os\.fork|CliRunner|engine_ray|run_walk|runnable_pages",
    re.MULTILINE,
)
# Pure, but longer than ten seconds together on a quiet core.
_LONG_THOUGH_PURE = (
    "simulate/test_background.py", "simulate/test_contention.py", "simulate/test_networks.py",
    "observe/test_accusations.py", "observe/test_diagnosis.py", "observe/test_findings.py", "observe/test_golden.py",
    "observe/test_cause_borders.py", "observe/test_counting.py", "observe/test_coarse_records.py",
    "observe/test_plain_jobs.py", "observe/test_paper_method.py", "observe/watch",
    "datacenter/characterize/test_generated_traces.py", "datacenter/characterize/test_study_laws.py",
    "evaluate/test_endpoint.py", "evaluate/test_engine_contract.py", "evaluate/test_harness_code.py",
    "lab/scenarios/test_random_family.py", "evidence/fusion/test_supervised.py", "docs/",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="pure tests alone, with fewer drawn examples")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is not pure under --quick."""
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    name = str(collection_path.relative_to(ROOT / "tests"))
    return name.startswith(_LONG_THOUGH_PURE) or bool(_NOT_PURE.search(collection_path.read_text())) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`, half as many workers again as cores: a fifth of the time of tests is waiting for processes."""
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, unless a random order is asked for, which is drawn after this."""
    place = {ROOT / "tests" / name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data that is not part of the repository; tests that need it are skipped without it."""
    folder = Path(os.environ.get("PRISM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip('needs public data: set PRISM_DATA, see "Public data for tests" in CONTRIBUTING.md')
    return folder
