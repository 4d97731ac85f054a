"""All mistakes of a value are told, in their places, and none where there is none."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outlive.runtime import DEPTH_LIMIT, MISTAKES_LIMIT, find_mistakes, path_text


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    number: Annotated[int, msgspec.Meta(ge=0)] = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    some_inner: Inner | tuple[Inner, ...] = ()
    by_name: dict[str, list[int]] = {}
    word: Literal["a", "b"] = "a"
    deep: Outer | None = None


def reported(value: object) -> list[str]:
    return [f"{path_text(one.at)}: {one.text}" for one in find_mistakes(value, Outer)]


def test_every_part_that_is_wrong_is_told_in_its_place() -> None:
    value = {
        "someInner": [{"name": 1}, {"number": -1, "colour": "red"}],
        "byName": {"x": [1, "two"], "y": 3},
        "word": "c",
        "other": 0,
    }
    assert reported(value) == [
        "someInner[0].name: Expected `str`, got `int`",
        "someInner[1].number: Expected `int` >= 0",
        "someInner[1].colour: Object contains unknown field `colour`",
        "someInner[1]: Object missing required field `name`",
        "byName.x[1]: Expected `int`, got `str`",
        "byName.y: Expected `array`, got `int`",
        "word: Invalid enum value 'c'",
        "other: Object contains unknown field `other`",
    ]


def test_what_is_wrong_as_a_whole_is_told_as_a_whole() -> None:
    assert reported(3) == [": Expected `object`, got `int`"]
    assert [one.at for one in find_mistakes({"someInner": 3}, Outer)] == [("someInner",)]


def test_there_is_an_end_to_it() -> None:
    assert len(reported({"byName": {str(number): "x" for number in range(10_000)}})) == MISTAKES_LIMIT
    value: dict[str, object] = {"word": 1}
    for _ in range(3 * DEPTH_LIMIT):
        value = {"deep": value}
    assert len(reported(value)) == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["a", "c"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["someInner", "byName", "word", "deep", "name", "number"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_has_mistakes_if_and_only_if_the_decoder_refuses_it(value: object) -> None:
    try:
        msgspec.convert(value, Outer)
    except msgspec.ValidationError:
        assert find_mistakes(value, Outer)
    else:
        assert not find_mistakes(value, Outer)
