"""What every store does with reads: objects, pages, selectors."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.conformance.backends import claim
from tests.conformance.objects import vm, with_project

from outlive.base import Invalid, NotFound
from outlive.resources import HOST_LABEL, VirtualMachine
from outlive.store import Selector, Store, list_all


@claim
async def test_what_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.get(VirtualMachine, "vm-1")
    with pytest.raises(NotFound):
        await store.get(VirtualMachine, "vm-1", fresh=True)


@claim
async def test_a_fresh_read_sees_every_acknowledged_write(store: Store) -> None:
    made = await store.create(vm())
    for number in range(20):
        made = await store.replace(with_project(made, f"p{number}"))
        assert await store.get(VirtualMachine, "vm-1", fresh=True) == made


@claim
async def test_an_empty_listing_is_one_empty_page(store: Store) -> None:
    page = await store.list(VirtualMachine)
    assert page.items == ()
    assert page.token == ""


@claim
async def test_a_listing_is_in_name_order(store: Store) -> None:
    for number in (3, 1, 10, 2):
        await store.create(vm(f"vm-{number}"))
    page = await store.list(VirtualMachine)
    assert [obj.name for obj in page.items] == ["vm-1", "vm-10", "vm-2", "vm-3"]
    assert page.token == ""


@claim
async def test_pages_together_hold_everything_once(store: Store) -> None:
    names = [f"vm-{number:03}" for number in range(25)]
    for name in names:
        await store.create(vm(name))
    seen: list[str] = []
    token, pages = "", 0
    while pages == 0 or token:
        page = await store.list(VirtualMachine, limit=10, token=token)
        assert len(page.items) <= 10
        seen += [obj.name for obj in page.items]
        token, pages = page.token, pages + 1
    assert seen == names
    assert pages == 3


@claim
async def test_pages_are_complete_for_what_stays_while_others_come_and_go(store: Store) -> None:
    for number in range(30):
        await store.create(vm(f"vm-{number:03}"))
    seen: list[str] = []
    token = ""
    while True:
        page = await store.list(VirtualMachine, limit=7, token=token)
        seen += [obj.name for obj in page.items]
        token = page.token
        if not token:
            break
        for obj in page.items[::2]:
            await store.delete(obj.ref)
            await store.create(vm(f"{obj.name}-new"))
    staying = {f"vm-{number:03}" for number in range(30)}
    assert staying <= set(seen)
    assert len(seen) == len(set(seen))


@claim
async def test_list_all_goes_over_all_pages(store: Store) -> None:
    for number in range(12):
        await store.create(vm(f"vm-{number:02}"))
    assert [obj.name async for obj in list_all(store, VirtualMachine)] == [f"vm-{n:02}" for n in range(12)]


@claim
async def test_selectors_choose_by_labels(store: Store) -> None:
    await store.create(vm("a", labels={"zone": "1", "tier": "web"}))
    await store.create(vm("b", labels={"zone": "2"}))
    await store.create(vm("c"))

    async def named(text: str) -> list[str]:
        page = await store.list(VirtualMachine, selector=Selector.parse(text))
        return [obj.name for obj in page.items]

    assert await named("zone=1") == ["a"]
    assert await named("zone!=1") == ["b", "c"]
    assert await named("zone in (1,2)") == ["a", "b"]
    assert await named("zone notin (1)") == ["b", "c"]
    assert await named("zone") == ["a", "b"]
    assert await named("!zone") == ["c"]
    assert await named("zone,tier=web") == ["a"]
    assert await named("") == ["a", "b", "c"]


@claim
async def test_selected_pages_are_complete(store: Store) -> None:
    for number in range(40):
        odd = number % 2 == 1
        indexed = {HOST_LABEL: "h"} if odd else {}
        await store.create(vm(f"vm-{number:03}", labels={"odd": str(int(odd)), **indexed}))
    for labels in ({"odd": "1"}, {HOST_LABEL: "h"}, {HOST_LABEL: "h", "odd": "1"}):
        seen: list[str] = []
        token = ""
        while True:
            page = await store.list(VirtualMachine, selector=Selector.from_labels(labels), limit=6, token=token)
            seen += [obj.name for obj in page.items]
            token = page.token
            if not token:
                break
        assert seen == [f"vm-{number:03}" for number in range(1, 40, 2)]


@claim
async def test_a_listing_by_label_follows_every_acknowledged_write(store: Store) -> None:
    async def there() -> list[str]:
        wanted = Selector.from_labels({HOST_LABEL: "h"})
        return [one.name async for one in list_all(store, VirtualMachine, selector=wanted)]

    made = await store.create(vm("vm-1"))
    assert await there() == []
    labelled = await store.replace(replace(made, metadata=replace(made.metadata, labels={HOST_LABEL: "h"})))
    await store.create(vm("vm-0", labels={HOST_LABEL: "h"}))
    assert await there() == ["vm-0", "vm-1"]
    await store.replace(replace(labelled, metadata=replace(labelled.metadata, labels={})))
    assert await there() == ["vm-0"]
    await store.delete((await store.get(VirtualMachine, "vm-0")).ref)
    assert await there() == []


@claim
async def test_an_empty_page_is_not_asked_for(store: Store) -> None:
    with pytest.raises(Invalid):
        await store.list(VirtualMachine, limit=0)
