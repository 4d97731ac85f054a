"""What drbdsetup prints: taken whole or not at all, whatever else is in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.builders import decide, resource

from outlive.storage import BadEvent, EventStream, read_event


def parse(document: object) -> Any:
    text = document if isinstance(document, str) else json.dumps(document)
    return decide("parse_status", {"document": text})


@pytest.mark.parametrize(
    "document",
    [
        "", " ", "{}", "[", "[]]", "[] x", "\ufeff[]", "[{}],", "[{},]", "[NaN]", '[{"x": NaN}]', '[{"x": 01}]',
        "// []", '[{"name": 7}]', '[{"suspended": "yes"}]', '[{"suspended": 1}]', '[{"devices": {}}]',
        '[{"devices": [{"quorum": 1}]}]', '[{"devices": [{"quorum": "yes"}]}]', '[{"connections": [7]}]',
        '[{"connections": [{"name": []}]}]', '[{"role": null, "name": true}]', '"text"', "7",
        '[{"force-io-failures": "no"}]', '[{"name": 7, "name": "a"}]', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_document_with_a_fault_is_refused_whole(document: str) -> None:
    assert parse(document) == {"error": "bad-document"}


def test_what_is_absent_or_null_is_the_default_and_what_is_not_read_may_be_anything() -> None:
    (empty,) = parse("[null]")["resources"]
    assert empty == parse("[{}]")["resources"][0] == parse('[{"name": null, "devices": null}]')["resources"][0]
    assert parse("null")["resources"] == parse("[\n]\n\n")["resources"] == []
    (one,) = parse('[{"name": "a", "name": "b", "devices": [null], "node-id": "x", "admin-lock": {"held": [1e999]}}]')[
        "resources"
    ]
    assert one["name"] == "b"
    assert one["devices"] == [{"quorum": False, "diskState": ""}]
    huge = '[{"connections": [{"ap-in-flight": 18446744073709551608, "peer_devices": 7, "peer-node-id": 1e3}]}]'
    assert len(parse(huge)["resources"][0]["connections"]) == 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=8))
def test_members_that_are_not_read_never_change_the_answer(value: Any) -> None:
    plain = {"name": "a", "role": "Primary", "devices": [{"quorum": True}], "connections": [{"name": "b"}]}
    more = {**plain, "paths": value, "devices": [{"quorum": True, "size": value}]}
    assert parse([more]) == parse([plain])


@given(st.binary(max_size=60))
def test_rubbish_is_never_taken_for_a_state(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    answer = parse(text)
    assert answer == {"error": "bad-document"} or json.loads(text) in ([], None) or isinstance(json.loads(text), list)


def test_the_quorum_option_is_a_text_or_not_given() -> None:
    shown = '[{"resource": "a", "options": {"quorum": "majority", "auto-promote": false}}, {"resource": "b"}, null]'
    found = decide("parse_show", {"document": shown})["configs"]
    assert found == [
        {"resource": "a", "quorum": "majority"},
        {"resource": "b", "quorum": ""},
        {"resource": "", "quorum": ""},
    ]
    for wrong in ('[{"options": {"quorum": 2}}]', '[{"options": []}]', '[{"resource": 1}]', ""):
        assert decide("parse_show", {"document": wrong}) == {"error": "bad-document"}


def test_only_what_is_configured_counts_and_the_last_of_a_name() -> None:
    configs = [{"resource": "a", "quorum": "off"}, {"resource": "b"}, {"resource": "a", "quorum": "majority"}]
    states = [{"name": "a", "role": "Secondary"}, {"name": "a", "role": "Primary"}, {"name": "c"}]
    merged = decide("merge", {"configs": configs, "states": states})["resources"]
    assert [(one["name"], one["quorum"], one["present"], one["role"]) for one in merged] == [
        ("a", "majority", True, "Primary"),
        ("b", "", False, ""),
    ]


def facts(**changes: Any) -> Any:
    return decide("facts", {"state": resource(**changes), "promotionSource": "events2"})


def test_a_resource_without_anything_is_promotable_by_the_letter_and_proves_nothing() -> None:
    found = facts(devices=[], connections=[])
    assert found == {"primary": False, "hasQuorum": True, "mayPromote": True, "mayTakeOver": False}


def test_being_primary_with_quorum_is_a_proof() -> None:
    assert facts(role="Primary")["mayTakeOver"] is True


def test_the_events_stream_replaces_the_disk_and_not_the_quorum() -> None:
    diskless = [{"quorum": True, "diskState": "Diskless"}]
    assert facts(devices=diskless)["mayTakeOver"] is False
    assert facts(devices=diskless, streamMayPromote=True)["mayTakeOver"] is True
    assert facts(devices=[{"quorum": False}], streamMayPromote=True)["mayTakeOver"] is False


@pytest.mark.parametrize("profile", ["hardened", "compat"])
def test_a_poll_runs_status_then_show_and_fails_as_a_whole(profile: str) -> None:
    given: dict[str, Any] = {"profile": profile, "loaded": True}
    first = decide("poll", given)
    assert first["next"]["argv"] == ["drbdsetup", "status", "--json"]
    assert first["next"]["limitS"] == (10 if profile == "hardened" else None)
    status = {"argv": first["next"]["argv"], "exit": 0, "stdout": '[{"name": "a"}]'}
    second = decide("poll", {**given, "answers": [status]})
    assert second["next"]["argv"] == ["drbdsetup", "show", "--json"]
    show = {"argv": second["next"]["argv"], "exit": 0, "stdout": '[{"resource": "a"}]'}
    found = decide("poll", {**given, "answers": [status, show]})
    assert [one["name"] for one in found["resources"]] == ["a"]
    for answers, failed in (
        ([{**status, "exit": 20}], "command-failed"),
        ([{**status, "exit": None}], "command-failed"),
        ([{**status, "exit": None, "timedOut": True}], "timed-out"),
        ([{**status, "stdout": ""}], "bad-document"),
        ([status, {**show, "stdout": ""}], "bad-document"),
    ):
        result = decide("poll", {**given, "answers": answers})
        assert (result["failed"], result["resources"], result["next"]) == (failed, None, None)
        assert result["ends"] is (profile == "compat")


def test_without_drbd_nothing_runs_and_there_are_no_resources() -> None:
    result = decide("poll", {"loaded": False})
    assert (result["next"], result["resources"]) == (None, [])


def test_events_tell_what_may_be_promoted_once_the_dump_is_complete() -> None:
    stream = EventStream()
    assert not stream.take("exists resource name:r0 role:Secondary suspended:no may_promote:yes promotion_score:10102")
    assert stream.may_promote("r0") is None
    assert stream.take("exists -")
    assert stream.may_promote("r0") is True
    assert not stream.take("change peer-device name:r0 peer-node-id:1 conn-name:n2 volume:0 peer-disk:UpToDate")
    assert stream.take("2026-11-26T16:41:31.911447+00:00 change resource name:r0 may_promote:no promotion_score:0")
    assert stream.may_promote("r0") is False
    stream.take("rename resource name:r0 new_name:r1")
    assert (stream.may_promote("r0"), stream.may_promote("r1")) == (None, False)
    stream.take("destroy resource name:r1")
    assert stream.may_promote("r1") is None


@pytest.mark.parametrize(
    "line", ["", "rubbish", "exists", "change resource role:Primary", "change device x", "burn device name:a"]
)
def test_a_line_that_is_not_understood_makes_everything_unknown(line: str) -> None:
    stream = EventStream()
    stream.take("exists resource name:r0 may_promote:yes")
    stream.take("exists -")
    with pytest.raises(BadEvent):
        stream.take(line)
    assert stream.may_promote("r0") is None


def _transcripts() -> list[Path]:
    shared = os.environ.get("OUTLIVE_SHARED")
    return sorted(Path(shared, "data/drbd").glob("n?/*.status.json")) if shared else []


@pytest.mark.skipif(not _transcripts(), reason="there are no transcripts: OUTLIVE_SHARED names none")
def test_recorded_states_of_a_real_drbd_are_read() -> None:
    for path in _transcripts():
        base = path.name.removesuffix(".status.json")
        show = path.with_name(f"{base}.show.json").read_text()
        answers = [{"exit": 0, "stdout": path.read_text()}, {"exit": 0, "stdout": show}]
        found = decide("poll", {"loaded": True, "answers": answers})
        assert found["failed"] is None, path
        lines = path.with_name(f"{base}.events2").read_text().splitlines()
        events = [read_event(line) for line in lines if line]
        roles = {event.members["name"]: event.members["role"] for event in events if event.object == "resource"}
        assert {one["name"]: one["role"] for one in found["resources"]} == roles, path
