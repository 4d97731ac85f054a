"""One helper changes an object whatever others write meanwhile and whatever answers are lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.loops import run

from outlive.base import Conflict, LoopClock, Random, SeededIds, Unavailable, Unknown
from outlive.resources import Cluster, ObjectMeta, Pipeline, VirtualMachine, VirtualMachineStatus
from outlive.store import MemoryStore, change_spec, change_status, compare_and_swap, read, swap

_replace = msgspec.structs.replace


class LossyStore(MemoryStore):
    """Loses the answers of the next ``lost`` writes after they were applied, or before with ``dropped``."""

    lost = 0
    dropped = 0
    writes = 0

    async def replace_status(self, obj: Any) -> Any:
        self.writes += 1
        if self.dropped:
            self.dropped -= 1
            raise Unknown("the answer was lost")
        written = await super().replace_status(obj)
        if self.lost:
            self.lost -= 1
            raise Unknown("the answer was lost")
        return written


def store() -> LossyStore:
    return LossyStore(LoopClock(), SeededIds(Random(1)))


async def vm_in(kept: LossyStore) -> VirtualMachine:
    return await kept.create(VirtualMachine(metadata=ObjectMeta(name="a")))


def to_phase(phase: str) -> Any:
    def change(vm: VirtualMachine | None) -> VirtualMachine | None:
        assert vm is not None
        return None if vm.status.phase == phase else _replace(vm, status=_replace(vm.status, phase=phase))

    return change


async def change_phase(kept: LossyStore, phase: str) -> VirtualMachine | None:
    return await compare_and_swap(kept, VirtualMachine, "a", to_phase(phase), clock=LoopClock())


@pytest.mark.parametrize(("lost", "dropped", "writes"), [(0, 0, 1), (1, 0, 1), (0, 1, 2), (0, 3, 4)])
def test_a_change_is_written_once_although_answers_are_lost(lost: int, dropped: int, writes: int) -> None:
    async def story() -> tuple[str, int]:
        kept = store()
        await vm_in(kept)
        kept.lost, kept.dropped = lost, dropped
        vm = await change_phase(kept, "start")
        assert vm is not None
        return vm.status.phase, kept.writes

    assert run(story()) == ("start", writes)


async def test_a_change_that_never_gets_through_ends_with_an_error() -> None:
    kept = store()
    await vm_in(kept)
    kept.dropped = 100
    with pytest.raises(Unavailable):
        await change_phase(kept, "start")
    assert kept.writes == 6


def test_an_object_that_does_not_exist_is_created_by_a_change_that_makes_one() -> None:
    async def story() -> tuple[bool, bool]:
        kept = store()
        made = await compare_and_swap(
            kept,
            Cluster,
            "default",
            lambda found: Cluster(metadata=ObjectMeta(name="default")) if found is None else None,
            clock=LoopClock(),
        )
        nothing = await compare_and_swap(kept, Pipeline, "x", lambda found: None, clock=LoopClock())
        return made is not None and bool(made.metadata.uid), nothing is None

    assert run(story()) == (True, True)


def test_a_swap_whose_answer_was_lost_is_settled_by_reading() -> None:
    async def story() -> tuple[str, str]:
        kept = store()
        vm = await vm_in(kept)
        kept.lost = 1
        written = await swap(kept, _replace(vm, status=_replace(vm.status, phase="start")))
        kept.dropped = 1
        with pytest.raises(Unknown):
            await swap(kept, _replace(written, status=_replace(written.status, phase="stop")))
        found = await read(kept, VirtualMachine, "a")
        assert found is not None
        return written.status.phase, found.status.phase

    assert run(story()) == ("start", "start")


async def test_a_swap_of_an_old_version_is_a_conflict() -> None:
    kept = store()
    vm = await vm_in(kept)
    await change_phase(kept, "start")
    with pytest.raises(Conflict):
        await swap(kept, _replace(vm, status=_replace(vm.status, phase="stop")))


def test_a_status_is_changed_of_an_object_that_exists_and_no_other_is_made() -> None:
    async def story() -> tuple[str, object, object]:
        kept = store()
        await vm_in(kept)

        def start(vm: VirtualMachine) -> VirtualMachineStatus:
            return _replace(vm.status, phase="running")

        after = await change_status(kept, VirtualMachine, "a", start, clock=LoopClock())
        none = await change_status(kept, VirtualMachine, "b", start, clock=LoopClock())
        assert after is not None
        return after.status.phase, none, await read(kept, VirtualMachine, "b")

    assert run(story()) == ("running", None, None)


@pytest.mark.parametrize("status", [None, VirtualMachineStatus()])
def test_a_status_that_stays_as_it_is_is_not_written(status: VirtualMachineStatus | None) -> None:
    async def story() -> tuple[int, bool]:
        kept = store()
        before = await vm_in(kept)
        after = await change_status(kept, VirtualMachine, "a", lambda _: status, clock=LoopClock())
        return kept.writes, after == before

    assert run(story()) == (0, True)


def test_a_spec_is_changed_and_the_status_is_not_touched() -> None:
    async def story() -> tuple[str, str]:
        kept = store()
        await vm_in(kept)
        await change_phase(kept, "running")
        await change_spec(
            kept, VirtualMachine, "a", lambda vm: _replace(vm.spec, display_name="web"), clock=LoopClock()
        )
        after = await read(kept, VirtualMachine, "a")
        assert after is not None
        return after.spec.display_name, after.status.phase

    assert run(story()) == ("web", "running")


@pytest.mark.parametrize(("lost", "noted"), [(0, 1), (1, 0)])
def test_a_cache_gets_the_write_that_was_acknowledged(lost: int, noted: int) -> None:
    """A write whose answer was lost comes to the cache with the changes of the store."""

    async def story() -> list[tuple[str, str]]:
        kept = store()
        before, seen = await vm_in(kept), list[tuple[str, str]]()
        kept.lost = lost

        def note(vm: VirtualMachine, *, replaced: str) -> None:
            assert replaced == before.metadata.resource_version != vm.metadata.resource_version
            seen.append((vm.name, vm.status.phase))

        await compare_and_swap(kept, VirtualMachine, "a", to_phase("running"), clock=LoopClock(), note=note)
        await compare_and_swap(kept, VirtualMachine, "a", to_phase("running"), clock=LoopClock(), note=note)
        return seen

    assert run(story()) == [("a", "running")] * noted
