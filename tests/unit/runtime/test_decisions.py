"""Decisions: named pure functions that anybody can replay, and a bounded memory of how they were used."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.remembering_log import RememberingLog

from outlive.base import BadInput, LoopClock, NotFound, Refused, request_context
from outlive.resources import Amounts
from outlive.runtime import Decision, DecisionTable, is_error, says_nothing


class Question(msgspec.Struct, frozen=True, rename="camel"):
    free: dict[str, Amounts]
    need: Amounts = msgspec.field(default_factory=lambda: Amounts(cpu=1000))
    limit: int = 2


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    actions: tuple[str, ...] = ()
    total: Amounts = msgspec.field(default_factory=Amounts)


def _fit(question: Question) -> Answer:
    """Hosts where the need fits."""
    if question.limit < 0:
        raise BadInput(f"limit is {question.limit}")
    if question.limit == 99:
        raise Refused("not today")
    fitting = [name for name, free in sorted(question.free.items()) if free.cpu_milli >= question.need.cpu_milli]
    total = sum((question.free[name] for name in fitting), Amounts())
    return Answer(tuple(fitting[: question.limit]), total)


FIT = Decision("example.fit", _fit, Question, Answer, "Where something fits.")
TABLE = DecisionTable([FIT, Decision("example.count", len, list[int], int, "How many.")])


def test_a_decision_goes_from_json_to_json():
    raw = b'{"free": {"h1": {"cpu": "2", "memory": "1Gi"}, "h2": {"cpu": "500m"}}}'
    assert json.loads(TABLE.decide_json("example.fit", raw)) == {
        "actions": ["h1"],
        "total": {"cpu": "2", "memory": "1Gi"},
    }
    assert TABLE.decide_json("example.count", b"[1,2,3]") == b"3"
    assert TABLE.list_names() == ("example.count", "example.fit")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid"),
        (b"{", "invalid"),
        (b"\xff\xfe", "invalid"),
        (b"[]", "invalid"),
        (b"{}", "invalid"),
        (b'{"free": {"h": {"cpu": "lots"}}}', "invalid"),
        (b'{"free": {}, "limit": "x"}', "invalid"),
        (b'{"free": {}, "limit": -1}', "bad-input"),
        (b'{"free": {}, "limit": 99}', "refused"),
        (b"[" * 100_000, "invalid"),
    ],
)
def test_bad_input_gives_a_code_and_nothing_else(raw, code):
    answer = TABLE.decide_json("example.fit", raw)
    assert json.loads(answer) in ({"error": code}, {"error": "bad-input"})
    assert is_error(answer)


@given(st.binary(max_size=100))
def test_no_bytes_at_all_make_a_decision_fail_otherwise(raw):
    json.loads(TABLE.decide_json("example.fit", raw))


def test_null_is_an_absent_member_where_a_decision_says_so():
    table = DecisionTable([Decision("example.fit", _fit, Question, Answer, "", nulls_are_absent=True)])
    raw = b'{"free": {"h1": {"cpu": "2"}, "h2": null}, "limit": null, "need": null}'
    assert json.loads(table.decide_json("example.fit", raw))["actions"] == ["h1"]
    assert is_error(TABLE.decide_json("example.fit", raw))
    assert is_error(table.decide_json("example.fit", b"null"))
    assert is_error(table.decide_json("example.fit", b"[" * 100_000))


def test_an_unknown_decision_names_the_nearest():
    with pytest.raises(NotFound, match=r"did you mean example\.fit"):
        TABLE.decide_json("exmple.fit", b"{}")
    with pytest.raises(NotFound):
        TABLE.build_schema("nothing like it")


def test_two_decisions_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"example\.fit"):
        DecisionTable([FIT, FIT])


def test_the_schema_describes_input_and_output():
    schema = TABLE.build_schema("example.fit")
    assert schema["doc"] == "Where something fits."
    assert schema["input"] == {"$ref": "#/$defs/Question"}
    properties = schema["$defs"]["Question"]["properties"]
    assert properties["need"]["additionalProperties"] == {"type": ["string", "number"]}
    assert schema["$defs"]["Question"]["required"] == ["free"]
    assert "actions" in schema["$defs"]["Answer"]["properties"]
    json.dumps(schema)


class Tree(msgspec.Struct, frozen=True):
    """Holds itself."""

    name: str
    limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    kind: Literal["a", "b"] = "a"
    below: tuple[Tree, ...] = ()
    pair: tuple[int, str] = (1, "x")
    maybe: float | None = None


def test_the_schema_of_a_struct_that_holds_itself_ends():
    table = DecisionTable([Decision("example.tree", lambda tree: tree, Tree, Tree, "Itself.")])
    tree = table.build_schema("example.tree")["$defs"]["Tree"]
    assert tree["properties"]["below"]["items"] == {"$ref": "#/$defs/Tree"}
    assert tree["properties"]["limit"] == {"type": "integer", "minimum": 0, "default": 0}
    assert tree["properties"]["maybe"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert tree["description"] == "Holds itself."


def test_an_answer_that_asks_for_nothing():
    assert says_nothing(Answer())
    assert says_nothing(())
    assert says_nothing(None)
    assert not says_nothing(Answer(("h1",)))
    assert not says_nothing(0)


async def test_listeners_hear_of_each_use_and_whether_its_answer_changed():
    log = RememberingLog(LoopClock(start=0.0))
    full = Question({"h1": Amounts(cpu=2000)})
    none = Question({})
    with request_context(greq="cycle-1"):
        assert log.use(FIT, full).actions == ("h1",)
        log.use(FIT, full)
        log.use(FIT, none)
        await asyncio.sleep(5)
        log.use(FIT, none)
        log.use(FIT, none, subject="vm-1")
    uses = log.uses("example.fit")
    assert [use.changed for use in uses] == [True, False, True, False, True]
    assert [use.empty for use in uses] == [False, False, True, True, True]
    assert uses[3].at == 5.0
    assert uses[0].request == "cycle-1"
    assert uses[3].input_digest == uses[2].input_digest
    assert TABLE.decide("example.fit", uses[0].input) == uses[0].output
    assert log.uses("other") == ()
