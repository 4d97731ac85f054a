"""Selectors are those of Kubernetes, and what is written reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput
from outlive.store import Selector, Term


@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=b", {"a": "b"}, False),
        ("a!=b", {}, True),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c)", {}, False),
        ("a in ()", {"a": ""}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("a notin (b,c)", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("! a", {}, True),
        (" a = b , c != d ", {"a": "b", "c": "e"}, True),
        ("outlive.dev/host=h1,topology.kubernetes.io/zone in (z1)", {"outlive.dev/host": "h1"}, False),
        ("in in (in)", {"in": "in"}, True),
        ("notin", {"notin": "x"}, True),
        ("in=in,notin in (notin)", {"in": "in", "notin": "notin"}, True),
        ("a in (,b)", {"a": ""}, True),
        ("a=,b", {"a": "", "b": "x"}, True),
        ("rack>7", {"rack": "8"}, True),
        ("rack>7", {"rack": "7"}, False),
        ("rack<7", {"rack": "6"}, True),
        ("rack<7", {"rack": "six"}, False),
        ("rack<7", {}, False),
    ],
)
def test_a_selector_selects(text: str, labels: dict[str, str], selected: bool) -> None:
    assert Selector.parse(text).matches(labels) is selected


@pytest.mark.parametrize(
    "text",
    [
        "a=b c",
        "=b",
        "a in b",
        "a in (b",
        "!",
        "a,,b",
        ",a",
        "a,",
        "a=b=c",
        "a>b",
        "a b",
        "a>",
        "!a=b",
        "a in ((b))",
        "-a",
        "a=-b",
        "a/b/c",
        "ä=b",
        "a=" + "b" * 64,
    ],
)
def test_what_is_malformed_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="selector"):
        Selector.parse(text)


KEYS = st.sampled_from(["a", "in", "notin", "outlive.dev/host", "x-y_z.w"])
VALUES = st.sampled_from(["", "a", "1", "in", "x-y_z.w"])
TERMS = st.one_of(
    st.builds(Term, KEYS, st.sampled_from(["in", "notin"]), st.lists(VALUES, min_size=1, max_size=3).map(tuple)),
    st.builds(Term, KEYS, st.sampled_from(["exists", "absent"])),
    st.builds(Term, KEYS, st.sampled_from(["gt", "lt"]), st.integers(0, 10**6).map(lambda value: (str(value),))),
)


@given(st.lists(TERMS, max_size=4).map(lambda terms: Selector(tuple(terms))))
def test_a_selector_reads_back_from_its_text(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector


def test_equal_and_labels_name_exact_values() -> None:
    assert Selector.from_values(b="2", a="1") == Selector.from_labels({"a": "1", "b": "2"}) == Selector.parse("a=1,b=2")
