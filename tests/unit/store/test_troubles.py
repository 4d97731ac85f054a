"""Which refusals of a server are told: those that last, with the kind and verb that they are about."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.roles.test_up import role

from outlive.base import Conflict, Forbidden, LoopClock, OutliveError, Random, Refused, SeededIds
from outlive.store import OVER_S, MemoryStore, StoreFull, StoreTroubles
from outlive.store.kubernetes import check_version, missing_fields
from outlive.store.kubernetes.served import _Version

VMS = "/apis/outlive.dev/v1alpha1/virtualmachines"
DENIED = Forbidden("vms are forbidden", remedy="give the role")
FULL = StoreFull("database space exceeded", remedy="disarm its alarm")


async def fail_for(troubles: StoreTroubles, seconds: int, error: OutliveError = DENIED, verb: str = "PUT") -> None:
    for _ in range(seconds):
        troubles.note_failure(verb, f"{VMS}/v1", error)
        await asyncio.sleep(1.0)


async def test_a_refusal_is_told_once_it_lasts_and_no_more_once_the_same_request_succeeds() -> None:
    troubles = StoreTroubles(LoopClock())
    await fail_for(troubles, 10)
    assert troubles.lasting_errors() == ()
    assert troubles.current_errors() == (("PUT", VMS, DENIED),), "also what has just begun"
    troubles.note_success("GET", f"{VMS}/v1")
    await fail_for(troubles, 15)
    assert troubles.lasting_errors() == (DENIED,)
    assert troubles.counts == {("PUT", "forbidden"): 25}
    troubles.note_success("PUT", f"{VMS}/another")
    assert troubles.lasting_errors() == troubles.current_errors() == ()


async def test_what_belongs_to_the_work_is_no_trouble_and_shows_that_the_server_answers() -> None:
    troubles = StoreTroubles(LoopClock())
    await fail_for(troubles, 30)
    troubles.note_failure("PUT", f"{VMS}/v2", Conflict("another version"))
    assert troubles.lasting_errors() == ()
    await fail_for(troubles, 30, Conflict("another version"))
    assert troubles.lasting_errors() == ()
    assert set(troubles.counts) == {("PUT", "forbidden")}


async def test_a_half_that_is_refused_is_told_though_the_other_one_is_written() -> None:
    troubles = StoreTroubles(LoopClock())
    for _ in range(25):
        troubles.note_failure("PUT", f"{VMS}/v1/status", DENIED)
        troubles.note_success("PUT", f"{VMS}/v1")
        await asyncio.sleep(1.0)
    assert troubles.lasting_errors() == (DENIED,)


async def test_what_nobody_has_tried_for_long_is_not_told_any_more() -> None:
    troubles = StoreTroubles(LoopClock())
    await fail_for(troubles, 30)
    await asyncio.sleep(OVER_S + 1)
    assert troubles.lasting_errors() == ()
    troubles.note_failure("PUT", VMS, DENIED)
    assert troubles.lasting_errors() == (), "it begins anew"


@pytest.mark.parametrize(("error", "code"), [(DENIED, "store-refuses"), (FULL, "store-not-writable")])
async def test_the_controllers_tell_it_as_a_fault_and_count_it(error: OutliveError, code: str) -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    store.troubles = StoreTroubles(LoopClock())  # type: ignore[attr-defined]
    one = role(store, 1)
    assert await one.show_faults({}) == []
    await fail_for(store.troubles, 30, error)  # type: ignore[attr-defined]
    (found,) = await one.show_faults({})
    assert found["code"] == code
    assert error.message in found["message"]
    assert error.remedy in found["message"]
    assert f'outlive_store_refusals_total{{code="{error.code}",verb="PUT"}} 30.0'.encode() in one.metrics.render()


def test_a_server_that_is_too_old_is_refused_by_its_version() -> None:
    for minor in ("20", "20+", "32"):
        check_version(_Version(major="1", minor=minor))
    check_version(_Version())
    with pytest.raises(Refused, match=r"v1\.19\.7.*1\.20 or later"):
        check_version(_Version(major="1", minor="19+", git_version="v1.19.7"))


def test_a_schema_lacks_what_it_would_drop() -> None:
    text = {"type": "string"}
    ours = {"properties": {"a": text, "m": {"additionalProperties": {"properties": {"b": text}}}, "l": {"items": {}}}}
    assert list(missing_fields(ours, ours)) == []
    assert list(missing_fields(ours, {"properties": {"a": text}})) == [".m", ".l"]
    other = {"properties": {**ours["properties"], "m": {"additionalProperties": {"properties": {}}}}}
    assert list(missing_fields(ours, other)) == [".m[].b"]
    assert list(missing_fields(ours, {"x-kubernetes-preserve-unknown-fields": True})) == []
