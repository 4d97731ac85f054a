"""JSON merge patch and JSON patch."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.api import TooLarge, json_patch, merge_patch
from outlive.base import BadInput, Conflict, Invalid

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~", max_size=3)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_the_standard_tables_it(document: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(document, patch) == expected


@pytest.mark.slow
@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_changes_neither_document_nor_itself_and_is_idempotent(document: Any, patch: Any) -> None:
    before = copy.deepcopy((document, patch))
    once = merge_patch(document, patch)
    assert (document, patch) == before
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": [1, 2], "m": {"k/x": 1}, "b": 1}),
        ([{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2], "m": {"k/x": 1}}),
        ([{"op": "add", "path": "/a/-", "value": 9}], {"a": [1, 2, 9], "m": {"k/x": 1}}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2], "m": {"k/x": 1}}),
        ([{"op": "replace", "path": "/m/k~1x", "value": 2}], {"a": [1, 2], "m": {"k/x": 2}}),
        ([{"op": "move", "from": "/a/0", "path": "/m/y"}], {"a": [2], "m": {"k/x": 1, "y": 1}}),
        ([{"op": "copy", "from": "/m", "path": "/n"}], {"a": [1, 2], "m": {"k/x": 1}, "n": {"k/x": 1}}),
        ([{"op": "test", "path": "/a", "value": [1, 2.0]}], {"a": [1, 2], "m": {"k/x": 1}}),
        ([{"op": "replace", "path": "", "value": 7}], 7),
    ],
)
def test_each_operation_does_what_the_standard_says(operations: Any, expected: Any) -> None:
    assert json_patch({"a": [1, 2], "m": {"k/x": 1}}, operations) == expected


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ({"op": "add"}, BadInput),
        ([7], BadInput),
        ([{"op": "boil", "path": "/a"}], BadInput),
        ([{"op": "add", "path": "a", "value": 1}], BadInput),
        ([{"op": "add", "path": "/a"}], BadInput),
        ([{"op": "replace", "path": "/zzz", "value": 1}], Invalid),
        ([{"op": "remove", "path": "/zzz"}], Invalid),
        ([{"op": "remove", "path": "/a/5"}], Invalid),
        ([{"op": "remove", "path": "/a/01"}], Invalid),
        ([{"op": "add", "path": "/a/0/x", "value": 1}], Invalid),
        ([{"op": "move", "from": "/m", "path": "/m/x"}], Invalid),
        ([{"op": "test", "path": "/a", "value": [1]}], Conflict),
        ([{"op": "test", "path": "/zzz", "value": None}], Conflict),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(operations: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        json_patch({"a": [1, 2], "m": {}}, operations)
    assert type(caught.value) is error


@pytest.mark.slow
@given(DOCUMENTS, st.lists(st.sampled_from(["", "/a", "/b", "/a/0", "/a/-", "/a/a"]), min_size=1, max_size=4))
def test_a_json_patch_never_changes_the_document_it_was_given(document: Any, paths: list[str]) -> None:
    before = copy.deepcopy(document)
    operations = [{"op": "add", "path": path, "value": {"a": [1]}} for path in paths]
    with contextlib.suppress(BadInput, Conflict):
        json_patch(document, operations)
    assert document == before


def test_a_patch_that_copies_a_value_into_itself_ends_at_the_budget() -> None:
    operations = [{"op": "add", "path": "/a", "value": ["x" * 100]}]
    operations += [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(100)]
    with pytest.raises(TooLarge, match="copies over"):
        json_patch({}, operations)


def test_a_copy_is_a_value_of_its_own() -> None:
    operations = [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/-", "value": 2}]
    assert json_patch({"a": [1]}, operations) == {"a": [1], "b": [1, 2]}
