"""Documents that users write: where each begins, and what is wrong with them, by line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import OBJECT_VALUES, BadInput
from outlive.resources import (
    DEPTH,
    PROBLEMS_SHOWN,
    SLICE_EVENTS,
    BadInputs,
    Problem,
    Problems,
    YamlLimits,
    parse_documents,
    parse_json,
    parse_request,
    read_yaml,
)


def test_every_document_of_a_yaml_file_has_its_line() -> None:
    documents = parse_documents(b"a: 1\n---\n---\nb: 2\n", "f.yaml")
    assert [(one.place, one.value) for one in documents] == [("f.yaml:1", {"a": 1}), ("f.yaml:4", {"b": 2})]


def test_a_list_is_taken_apart() -> None:
    raw = b'{"kind": "List", "items": [{"a": 1}, {"b": 2}]}'
    assert [one.value for one in parse_documents(raw, "f")] == [{"a": 1}, {"b": 2}]
    assert parse_documents(raw, "f")[1].place == "f:1: items[1]"


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"a: 1\nb: [1\n", "f:3"),
        (b"a: 1\nb: 2\na: 3\n", "f:3"),
        (b"a:\n  b: 1\n b: 2\n", "f:3"),
        (b"\xff\xfe\xfa", "f:1"),
        (b"\x00", "f:1"),
        (b"!!python/object/apply:os.system [ls]", "f:1"),
        (b'{"a": 1,\n"b": }', "f:2"),
    ],
)
def test_broken_documents_are_refused_with_their_line(raw: bytes, place: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_documents(raw, "f")
    assert caught.value.place == place
    assert caught.value.remedy


def test_aliases_cannot_blow_a_file_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BadInput, match="values"):
        parse_documents("\n".join(lines).encode(), "f")


def test_broken_json_names_its_line() -> None:
    with pytest.raises(BadInput) as caught:
        parse_json(b'{\n"a": 1,\n"b": oops\n}', "f.json")
    assert caught.value.place == "f.json:3"


def test_problems_beyond_the_limit_are_counted() -> None:
    problems = Problems()
    for number in range(PROBLEMS_SHOWN + 3):
        problems.add(f"f:{number}", "wrong", "repair it")
    with pytest.raises(BadInputs) as caught:
        problems.check()
    assert len(caught.value.problems) == PROBLEMS_SHOWN
    assert caught.value.total == PROBLEMS_SHOWN + 3
    assert str(caught.value) == "f:0: wrong (repair it)"


def test_no_problem_raises_nothing() -> None:
    Problems().check()


def test_a_problem_without_a_place_begins_with_what_is_wrong() -> None:
    assert str(Problem("", "all of it", "start anew")) == "all of it (start anew)"
    assert str(Problem("a.yaml:3", "this")) == "a.yaml:3: this"


PLAIN = st.sampled_from(
    ["", "~", "yes", "no", "0o17", "017", "1_000", "1e3", "1.5e+3", ".inf", "12:30", "=", "2026-01-01"]
)
VALUES = st.recursive(
    PLAIN | st.text(max_size=8) | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(VALUES, st.sampled_from([None, True, False]))
def test_a_yaml_file_means_what_it_means_to_pyyaml(value: Any, flow: bool | None) -> None:
    raw = yaml.safe_dump([value], allow_unicode=True, default_flow_style=flow).encode()
    assert parse_documents(raw, "f")[0].value == yaml.safe_load(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"a: &x {p: 1}\nb: *x\n",
        b"a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n",
        b"- &x {p: 1}\n- &y {p: 2, q: 2}\n- {<<: [*x, *y], r: 3}\n",
        b"a: [yes, ~, 0x1F, 1_0, '1', !!str 5, 1:30, 2026-01-01, 2026-01-01T00:00:00Z, .nan2]\n",
        b"1: a\ntrue: b\nnull: c\n",
    ],
)
def test_aliases_merges_and_plain_scalars_are_read_as_pyyaml_does(raw: bytes) -> None:
    assert parse_documents(raw, "f")[0].value == yaml.safe_load(raw)


def test_a_quoted_merge_key_is_a_key_like_any_other() -> None:
    assert parse_documents(b'a: {"<<": {q: 1}}\n', "f")[0].value == {"a": {"<<": {"q": 1}}}


@pytest.mark.parametrize("opened", [b"[", b"- ", b"? ", b"{a: "])
def test_a_text_that_is_nested_too_deeply_is_refused_and_not_the_end_of_the_process(opened: bytes) -> None:
    with pytest.raises(BadInput):
        parse_documents(b"a: " + opened * 100_000 if opened in (b"[", b"{a: ") else opened * 100_000, "f")


def test_a_list_may_have_as_many_levels_as_the_limit() -> None:
    parse_documents(b"- " * DEPTH + b"x", "f")
    with pytest.raises(BadInput, match=f"more than {DEPTH} levels"):
        parse_documents(b"- " * (DEPTH + 1) + b"x", "f")


def test_a_long_scalar_is_text_and_no_number_that_takes_minutes() -> None:
    text = "1:" * 100_000 + "1"
    assert parse_documents(f"a: {text}".encode(), "f")[0].value == {"a": text}
    with pytest.raises(BadInput, match="characters with the tag int"):
        parse_documents(f"a: !!int {text}".encode(), "f")


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        b"a: &a [*a]",
        b"a: *b",
        b"a: !!binary aGk=",
        b"a: !!set {x, y}",
        b"a: !!int x",
        b"[a]: 2",
        b"a: 2026-13-45",
        b"a: {<<: 1}",
        b"x: &a [1,1]\ny: [" + b"*a," * 400_000 + b"]",
    ],
)
def test_what_a_plain_value_does_not_need_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        parse_documents(raw, "f")
    assert caught.value.remedy


@pytest.mark.slow
def test_a_request_is_read_in_slices_and_has_no_aliases() -> None:
    assert asyncio.run(parse_request(b"a: 1\n---\nb: 2\n")) == [{"a": 1}, {"b": 2}]
    with pytest.raises(BadInput, match="alias"):
        asyncio.run(parse_request(b"a: &x 1\nb: *x\n"))
    with pytest.raises(BadInput, match=f"more than {OBJECT_VALUES} values"):
        asyncio.run(parse_request(b"- 1\n" * (OBJECT_VALUES + 1)))
    slices = list(read_yaml(b"- 1\n" * (3 * SLICE_EVENTS), "f", YamlLimits()))
    assert slices.count(None) == 3
