"""Overcommit by traits: later mappings win, and without any mapping nothing is touched."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import ValidationError, convert
from tests.support.field_writers import WriterStore
from tests.support.placement import host

from outlive.base import LoopClock, Random, SeededIds
from outlive.placement import OvercommitController, OvercommitMapping, PlacementSettings, overcommit_of
from outlive.resources import Hypervisor
from outlive.runtime import Informer, OrderedTaskGroup
from outlive.store import MemoryStore

MAPPINGS = (
    OvercommitMapping(overcommit={"cpu": 4.0, "memory": 1.2}, hasnt_trait="CUSTOM_HANA"),
    OvercommitMapping(overcommit={"cpu": 1.0}, has_trait="CUSTOM_DEDICATED"),
)


def test_matching_mappings_apply_in_order() -> None:
    assert overcommit_of((), MAPPINGS) == {"cpu": 4.0, "memory": 1.2}
    assert overcommit_of(("CUSTOM_DEDICATED",), MAPPINGS) == {"cpu": 1.0, "memory": 1.2}
    assert overcommit_of(("CUSTOM_HANA",), MAPPINGS) == {}
    assert overcommit_of(("CUSTOM_HANA", "CUSTOM_DEDICATED"), MAPPINGS) == {"cpu": 1.0}


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"overcommit": {"cpu": 2.0}}, "exactly one"),
        ({"overcommit": {"cpu": 2.0}, "hasTrait": "A", "hasntTrait": "B"}, "exactly one"),
        ({"overcommit": {"cpu": 0.9}, "hasTrait": "A"}, "ratio 0.9"),
        ({"overcommit": {"cpu": 1e9}, "hasTrait": "A"}, "ratio 1000000000.0"),
        ({"overcommit": {"gpu": 2.0}, "hasTrait": "A"}, "'gpu' is not known"),
    ],
)
def test_mappings_are_checked(mapping: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        convert({"overcommitMappings": [mapping]}, PlacementSettings)


async def test_ratios_of_a_host_follow_its_traits() -> None:
    clock, random = LoopClock(), Random(1)
    store = MemoryStore(clock, SeededIds(random))
    hosts = Informer(store, Hypervisor, clock=clock, random=random)
    async with OrderedTaskGroup() as group:
        task = group.create_task(hosts.run(), name="hosts")
        made = host("h1", traits=["CUSTOM_DEDICATED"])
        created = await store.create(made)
        await store.replace_status(Hypervisor(metadata=created.metadata, spec=created.spec, status=made.status))
        await clock.sleep(1)
        controller = OvercommitController(WriterStore(store, writer="placement"), hosts, MAPPINGS)
        await controller.reconcile("h1")
        kept = await store.get(Hypervisor, "h1")
        assert kept.spec.overcommit == {"cpu": 1.0, "memory": 1.2}
        await controller.reconcile("h1")
        assert (await store.get(Hypervisor, "h1")).metadata.resource_version == kept.metadata.resource_version
        await controller.reconcile("nobody")
        task.cancel()
