"""Host lists, as Slurm's own expansion gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.machine.hosts import expand_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[08-10]-ib", ["n08-ib", "n09-ib", "n10-ib"]),
        ("n[01-03,7],gpu9", ["n01", "n02", "n03", "n7", "gpu9"]),
        ("b2,b1,b2", ["b2", "b1"]),
        ("10.0.0.[1-2] x", ["10.0.0.1", "10.0.0.2", "x"]),
        ("None assigned", []),
        ("(null)", []),
        ("", []),
        ("n[3-1],n[a-b],ok", ["n[3-1]", "n[a-b]", "ok"]),
        ("n[0-999999999999]", ["n[0-999999999999]"]),
        ("a[1-1000]b[1-1000]c[1-1000]", ["a[1-1000]b[1-1000]c[1-1000]"]),
    ],
)
def test_host_lists_are_expanded_in_their_order(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@given(st.text(alphabet="n[]-,0123456789 ab", max_size=40))
def test_no_text_breaks_the_expansion_and_each_host_is_told_once(text: str) -> None:
    hosts = expand_hosts(text)
    assert len(hosts) == len(set(hosts))


@given(st.lists(st.from_regex(r"[a-z]{1,5}[0-9]{0,3}", fullmatch=True), unique=True, max_size=20))
def test_a_list_of_plain_names_is_those_names(names: list[str]) -> None:
    assert expand_hosts(",".join(names)) == [name for name in names if name.lower() != "none" or len(names) > 1]
