"""Questions that are alike have the same answer for each caller."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.placement import HOSTS, VMS, fleet_of, host, in_flight, random_fleet, random_request, request, slot

from outlive.base import Random
from outlive.failover import equivalence_key, offer_of
from outlive.failover.planner import PlacementOffer
from outlive.placement import (
    SILENT,
    Engine,
    Fleet,
    Intent,
    PipelineTable,
    PlacementRequest,
    PlacementSettings,
    RunRefused,
)

READ_ONLY = msgspec.structs.replace(SILENT, read_only=True, lock_reservations=True)


def asked_by(vm: str, given: PlacementRequest, **changes: object) -> PlacementRequest:
    """The question whether this VM could be evacuated to the first of its hosts."""
    return msgspec.structs.replace(
        given, resource_id=vm, request_id=vm, intent=Intent.EVACUATE, options=READ_ONLY, **changes
    )


def answer(engine: Engine, asked: PlacementRequest) -> PlacementOffer | type[RunRefused]:
    try:
        return offer_of(engine.rank(asked))
    except RunRefused as error:
        return type(error)


@pytest.mark.slow
def test_vms_whose_questions_are_alike_get_the_same_answer() -> None:
    pipelines = PipelineTable.with_shipped()
    alike = 0
    for seed in range(60):
        random = Random(seed)
        engine = Engine(random_fleet(random), pipelines)
        given = random_request(random, pipeline=random.choice(sorted(pipelines)))
        given = msgspec.structs.replace(given, group=None, weights=())
        on = (random.choice((*HOSTS, "stranger")),)
        found: dict[object, object] = {}
        for vm in VMS:
            asked = asked_by(vm, given, hosts=on, ignore_hosts=(random.choice(HOSTS),))
            key = equivalence_key(engine.fleet, asked)
            assert key is not None
            alike += key in found
            said = answer(engine, asked)
            assert found.setdefault(key, said) == said
    assert alike > 100, "hardly anything was alike, so that nothing was tested"


def fleet(settings: PlacementSettings | None = None) -> Fleet:
    return fleet_of(
        host("h1"),
        host("h2"),
        slot("s", "h1", members=("a", "b", "c")),
        slot("t", "h2", members=("c",)),
        settings=settings,
    )


def key(of: Fleet, vm: str, *, home: str = "elsewhere", **changes: object) -> object:
    return equivalence_key(of, asked_by(vm, request(), **{"hosts": ("h1",), "ignore_hosts": (home,), **changes}))


def test_members_of_a_slot_are_alike_wherever_they_run_but_on_its_host() -> None:
    here = fleet()
    assert key(here, "a") == key(here, "b", home="h2") == key(here, "c") is not None
    assert key(here, "a", home="h1") != key(here, "a")


def test_what_gives_way_to_a_vm_on_that_host_makes_it_different() -> None:
    here = fleet()
    before = key(here, "a")
    here.upsert_reservation(slot("more", "h1", members=("b",)))
    here.upsert_reservation(in_flight("move", "h1", vm="c"))
    assert key(here, "a") == before
    assert len({key(here, vm) for vm in ("a", "b", "c", "stranger")}) == 4


@pytest.mark.parametrize(
    "changes",
    [{"hosts": ("h1", "h2")}, {"hosts": None}, {"options": SILENT}, {"intent": Intent.CREATE}],
    ids=["two hosts", "all hosts", "with effects", "no evacuation"],
)
def test_questions_that_are_not_about_one_host_are_like_no_other(changes: dict[str, object]) -> None:
    asked = msgspec.structs.replace(asked_by("a", request(), hosts=("h1",)), **changes)
    assert equivalence_key(fleet(), asked) is None
