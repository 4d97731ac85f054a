"""Documents that users write: where each begins, and what is wrong with them, by line."""

from __future__ import annotations

import pytest

from outlive.base.errors import BadInput
from outlive.resources.documents import PROBLEMS_SHOWN, BadInputs, Problem, Problems, parse_documents, parse_json


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
