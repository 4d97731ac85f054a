"""The decisions of one tick share what is worked out of the same objects, and nothing of others."""

from __future__ import annotations

import msgspec
from tests.unit.storage.builders import pod, tick

from outlive.storage.tick import TickInput, view_of


def given_input(**changes: object) -> TickInput:
    return msgspec.convert(tick(**changes), TickInput)


def test_the_same_objects_are_indexed_once_whatever_is_remembered() -> None:
    given = given_input()
    first = view_of(given)
    requests, pods = first.requests(), first.pods_by_claim
    second = view_of(msgspec.structs.replace(given, memory={"firstSeen": {}}))
    assert second.requests() is requests
    assert second.pods_by_claim is pods


def test_other_objects_states_or_options_are_indexed_anew_though_they_are_equal() -> None:
    given = given_input()
    first = view_of(given).requests()
    other = given_input(pods=[pod(), pod("db-1")])
    for name in ("cluster", "snapshot", "options"):
        changed = msgspec.structs.replace(given, **{name: getattr(other, name)})
        assert view_of(changed).requests() is not first
        assert view_of(given).requests() is not first, "only the view before is kept"
    assert [one.metadata.name for one in view_of(other).requests()[0].pods] == ["db-0", "db-1"]
    compat = msgspec.structs.replace(given, profile="compat")
    assert view_of(compat).requests() is not view_of(given).requests()
