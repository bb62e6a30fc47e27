"""A check as documents: JSON, SARIF for code scanning, JUnit for test reports."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from prism.emulate.checking import CheckReport
from prism.emulate.problems import Problem
from prism.machine.files import replacing
from prism.version import __version__

SCHEMA = "prism.check/1"
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    "hang": "Ranks wait for calls that never come",
    "mismatch": "Ranks call different things where they should call the same",
    "unsupported": "The script cannot be checked",
}


def describe_check(report: CheckReport) -> dict[str, Any]:
    """The document of `prism check --json`."""
    problems = [
        {"text": one.text, "ranks": list(one.ranks), "file": one.file, "line": one.line} for one in report.problems
    ]
    if report.verdict == "unsupported":
        problems = [{"text": report.reason, "ranks": [], "file": None, "line": None}]
    return {
        "schema": SCHEMA,
        "world_size": report.world_size,
        "verdict": report.verdict,
        "ranks_run": report.ranks_run,
        "problems": problems,
        "wall_s": round(report.wall_s, 2),
    }


def write_sarif(report: CheckReport, path: Path, script: str) -> None:
    """What code scanning of GitHub, GitLab and editors reads; paths are relative to the folder of the call."""
    results = [
        {"ruleId": one.verdict, "level": "error", "message": {"text": one.text}, "locations": [_locate(one, script)]}
        for one in report.problems
    ]
    if report.verdict == "unsupported":
        location = {"physicalLocation": {"artifactLocation": {"uri": _uri(script)}}}
        results = [
            {"ruleId": "unsupported", "level": "warning", "message": {"text": report.reason}, "locations": [location]}
        ]
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in _RULES.items()]
    driver = {"name": "prism check", "version": __version__, "rules": rules}
    document = {"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    with replacing(path) as part:
        part.write_text(json.dumps(document, indent=1) + "\n")


def _locate(problem: Problem, script: str) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(problem.file or script)}}
    if problem.line is not None:
        place["region"] = {"startLine": problem.line}
    return {"physicalLocation": place}


def _uri(file: str) -> str:
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_uri() if path.is_absolute() else path.as_posix()


def write_junit(report: CheckReport, path: Path, script: str) -> None:
    """One test case, failed where calls do not meet and in error where they cannot be compared."""
    bad, cannot = str(int(bool(report.problems))), str(int(report.verdict == "unsupported"))
    suite = ET.Element(
        "testsuite", name="prism check", tests="1", failures=bad, errors=cannot, time=f"{report.wall_s:.2f}"
    )
    name = f"{script} on {report.world_size} ranks"
    case = ET.SubElement(suite, "testcase", classname="prism.check", name=name, time=f"{report.wall_s:.2f}")
    for one in report.problems:
        at = {"file": one.file, "line": str(one.line)} if one.file else {}
        ET.SubElement(case, "failure", {"type": one.verdict, "message": one.text, **at}).text = one.text
    if report.verdict == "unsupported":
        ET.SubElement(case, "error", type="unsupported", message=report.reason).text = report.reason
    with replacing(path) as part:
        ET.ElementTree(suite).write(part, encoding="utf-8", xml_declaration=True)
