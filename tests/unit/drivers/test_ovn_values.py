"""Values of OVSDB's columns, and messages cut anywhere."""

from __future__ import annotations

import errno
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.drivers.ovn import (
    ColumnType,
    JsonConnection,
    apply_change,
    column_type,
    decode,
    encode,
    encode_keys,
    is_empty,
)

MAP = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}
TEXTS = st.sets(st.text(max_size=3), max_size=4)
MAPS = st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=4)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ("string", ColumnType("one", "string")),
        ({"key": "integer"}, ColumnType("one", "integer")),
        ({"key": {"type": "string", "enum": ["set", ["a"]]}, "min": 0, "max": 1}, ColumnType("optional", "string")),
        ({"key": "string", "min": 0, "max": "unlimited"}, ColumnType("set", "string")),
        ({"key": {"type": "uuid", "refTable": "X"}, "min": 0, "max": "unlimited"}, ColumnType("set", "uuid")),
        (MAP, ColumnType("map", "string")),
    ],
)
def test_types_are_read_from_a_schema(document: Any, kind: ColumnType) -> None:
    assert column_type(document) == kind


@pytest.mark.parametrize(
    ("kind", "wire", "value"),
    [
        (ColumnType("one", "string"), "a", "a"),
        (ColumnType("one", "integer"), 7, 7),
        (ColumnType("optional", "string"), "a", "a"),
        (ColumnType("optional", "boolean"), False, False),
        (ColumnType("optional", "boolean"), ["set", []], None),
        (ColumnType("optional", "uuid"), ["uuid", "u1"], "u1"),
        (ColumnType("set", "string"), ["set", ["a", "b"]], ["a", "b"]),
        (ColumnType("set", "uuid"), ["set", [["uuid", "u1"]]], frozenset({"u1"})),
        (ColumnType("map", "string"), ["map", [["a", "1"], ["b", "2"]]], {"a": "1", "b": "2"}),
    ],
)
def test_values_are_read_and_written(kind: ColumnType, wire: Any, value: Any) -> None:
    assert decode(kind, wire) == value
    assert encode(kind, value) == wire


def test_a_set_of_one_is_read_in_its_short_form() -> None:
    assert decode(ColumnType("set", "string"), "a") == ["a"]
    assert decode(ColumnType("set", "uuid"), ["uuid", "u1"]) == frozenset({"u1"})


def test_what_is_empty_is_left_out_and_false_is_a_value_only_where_nothing_may_be() -> None:
    assert is_empty(ColumnType("one", "integer"), 0)
    assert is_empty(ColumnType("one", "string"), "")
    assert is_empty(ColumnType("set", "uuid"), frozenset())
    assert not is_empty(ColumnType("optional", "boolean"), False)


@given(TEXTS, TEXTS)
def test_of_a_set_the_difference_is_told(old: set[str], new: set[str]) -> None:
    kind = ColumnType("set", "string")
    assert apply_change(kind, sorted(old), encode(kind, old ^ new)) == sorted(new)


@given(MAPS, MAPS)
def test_of_a_map_what_became_different_is_told(old: dict[str, str], new: dict[str, str]) -> None:
    kind = ColumnType("map", "string")
    gone = {key: value for key, value in old.items() if key not in new}
    come = {key: value for key, value in new.items() if old.get(key) != value}
    assert apply_change(kind, old, encode(kind, {**gone, **come})) == new


def test_keys_have_the_prefix_of_the_database_there_and_ours_in_rows() -> None:
    kind = ColumnType("map", "string", prefix="net.example")
    row = {"k8s.ovn.org/vm": "cart", "net.example/vm": "of somebody else", "pod": "true", "outlive.dev/host": "hv-a"}
    wire = encode(kind, row)
    assert dict(wire[1]) == {
        "net.example/vm": "cart",
        "k8s.ovn.org/vm": "of somebody else",
        "pod": "true",
        "outlive.dev/host": "hv-a",
    }
    assert decode(kind, wire) == row
    assert encode_keys(kind, ["k8s.ovn.org/vm", "pod"]) == ["set", ["net.example/vm", "pod"]]
    assert encode_keys(ColumnType("map", "string"), ["k8s.ovn.org/vm"]) == ["set", ["k8s.ovn.org/vm"]]


class _Pieces:
    """A stream that gives a piece at each call, and nothing in between."""

    name = "pieces"

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [part for piece in pieces if piece for part in (piece, b"")]

    def recv(self, _: int) -> tuple[int, bytes]:
        if not self._pieces:
            return 0, b""
        piece = self._pieces.pop(0)
        return (0, piece) if piece else (errno.EAGAIN, b"")

    def close(self) -> None:
        pass


@given(st.lists(st.text(alphabet='}{"\\aé', max_size=12), min_size=1, max_size=5), st.data())
def test_messages_are_the_same_wherever_they_are_cut(texts: list[str], data: st.DataObject) -> None:
    sent = [{"id": None, "method": "said", "params": [text, {"a": {"b": text}}]} for text in texts]
    stream = "".join(json.dumps(one, separators=(",", ":")) for one in sent).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    connection, received = JsonConnection(_Pieces(pieces)), []
    while True:
        error, message = connection.recv()
        if not error:
            received.append(message.params)
        elif error != errno.EAGAIN:
            break
    assert received == [one["params"] for one in sent]


def test_rows_of_an_update_stay_text() -> None:
    update = {"id": None, "method": "update3", "params": ["monitor", "t", {"Port": {"u1": {"delete": None}}}]}
    answer = {"id": 1, "error": None, "result": [True, "t", {"Port": {}}]}
    results = {"id": 2, "error": None, "result": [{"rows": []}, None]}
    connection = JsonConnection(
        _Pieces([json.dumps(one, separators=(",", ":")).encode() for one in (update, answer, results)])
    )
    messages = []
    while len(messages) < 3:
        error, message = connection.recv()
        messages += [message] if not error else []
    assert isinstance(messages[0].params[2], msgspec.Raw)
    assert messages[1].result[:2] == [True, "t"]
    assert isinstance(messages[1].result[2], msgspec.Raw)
    assert messages[2].result == [{"rows": []}, None]
