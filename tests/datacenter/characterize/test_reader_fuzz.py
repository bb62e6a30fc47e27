"""Whatever bytes or JSON a reader is given, it answers with a report or with one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.datacenter.characterize import (
    CharacterizeOptions,
    Profile,
    characterize,
    parse_choices,
    read_profile,
    write_profile,
)
from prism.errors import InputError

SACCT = Path(__file__).parent / "data" / "sacct"
QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

SWF = b"; Version: 2.2\n; UnixStartTime: 1600000000\n1 0 10 3600 8 -1 -1 8 3600 -1 1 3 1 1 1 1 -1 -1\n2 9 1 60 8 -1 -1 8 60 -1 0 3 1 1 1 1 -1 -1\n"
MURI = (
    b"job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,"
    b"resource_time_1,resource_time_2,priority\n0,1,0,5853,dqn,128,2868000,46000,490,446,8,0,1\n"
)
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "1", "creationTimestamp": "2024-05-01T10:00:00Z"},
    "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    "status": {"phase": "Succeeded", "startTime": "2024-05-01T10:00:00Z", "containerStatuses": [
        {"state": {"terminated": {"exitCode": 0, "finishedAt": "2024-05-01T12:00:00Z"}}}]},
}  # fmt: skip
WORKLOAD = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "Workload",
    "metadata": {"name": "a", "creationTimestamp": "2024-05-01T10:00:00Z"},
    "spec": {"podSets": [{"count": 2, "template": {"spec": POD["spec"]}}]},
    "status": {"conditions": [{"type": "Admitted", "status": "True", "lastTransitionTime": "2024-05-01T10:00:00Z"}]},
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {"parallelism": 2, "template": {"spec": POD["spec"]}},
    "status": {"startTime": "2024-05-01T10:00:00Z", "active": 1},
}
PHILLY = {
    "jobid": "a", "status": "Pass", "submitted_time": "2017-10-01 00:00:00", "attempts": [
        {"start_time": "2017-10-01 00:10:00", "end_time": "2017-10-01 01:00:00", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}],
}  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def answer(path: Path, options: CharacterizeOptions | None = None) -> None:
    """Read; the only error that may come names the file and is one line."""
    try:
        characterize(path, options)
    except InputError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error).strip()


@pytest.mark.parametrize("name", ["parsable2.txt", "fixed.txt", "headerless_plain.txt", "sacct.json", "swf", "muri"])
@QUICK
@given(data=st.data())
def test_damaged_tables_give_a_report_or_one_clear_line(tmp_path: Path, name: str, data: st.DataObject) -> None:
    whole = {"swf": SWF, "muri": MURI}.get(name) or (SACCT / name).read_bytes()[:3000]
    text = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=10))
    path = tmp_path / "damaged"
    path.write_bytes(bytes(text))
    answer(path)


def damage(draw: st.DrawFn, value: Any) -> Any:
    """JSON with one part of it replaced by anything, or left out."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        if not draw(st.integers(0, 4)):
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: damage(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(value) - 1))
        return [damage(draw, part) if i == place else part for i, part in enumerate(value)]
    return draw(ANYTHING)


@pytest.mark.parametrize("name", ["pod", "workload", "job", "philly", "sacct"])
@QUICK
@given(data=st.data())
def test_damaged_json_gives_a_report_or_one_clear_line(tmp_path: Path, name: str, data: st.DataObject) -> None:
    sacct = {"jobs": json.loads((SACCT / "sacct.json").read_text())["jobs"][:2]}
    whole: Any = {
        "pod": {"apiVersion": "v1", "kind": "List", "items": [POD, POD]},
        "workload": WORKLOAD,
        "job": JOB,
        "philly": [PHILLY],
        "sacct": sacct,
    }[name]
    path = tmp_path / "damaged.json"
    document = data.draw(st.composite(lambda draw: damage(draw, whole))())
    path.write_text(json.dumps(document))
    answer(path)


@QUICK
@given(text=st.text(max_size=40))
def test_any_map_and_any_column_names_are_taken_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpus,state,duration\n8,done,60\n")
    try:
        choices = parse_choices([text])
    except InputError as error:
        assert "--map" in str(error)
    else:
        answer(path, CharacterizeOptions(choices=choices))
    answer(path, CharacterizeOptions(columns=tuple(text.split(","))))


@QUICK
@given(name=st.text(min_size=1, max_size=12), zone=st.text(max_size=8))
def test_profiles_keep_any_text(tmp_path: Path, name: str, zone: str) -> None:
    profile = Profile(columns=(name, "b"), time_zone=zone or None)
    path = tmp_path / "p.toml"
    try:
        write_profile(profile, path)
    except InputError:
        return
    assert read_profile(path) == profile
