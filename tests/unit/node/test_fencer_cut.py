"""A cut is written, read back, kept until the epoch is dead, and lifted when the host is back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import Interposed, SleepyClock, site

from outlive.base import LoopClock, NotFound, Random, Unavailable
from outlive.drivers.ovn import ArrivedPorts
from outlive.drivers.storage import Cuts as StorageCuts
from outlive.node.fencing import Isolation, split_by_storage
from outlive.node.ports import CutReport
from outlive.resources import Assigned, Cluster, Cut, Fault, FenceRecord, Membership, ObjectRef, Pause, VirtualMachine
from outlive.runtime import fault_name
from outlive.store import FaultStore


class Cuts:
    """Who can shut hosts out: of what ``reach`` says, for ``lasts_s``."""

    def __init__(self, *, reach=lambda one: True, lasts_s: float | None = 600.0) -> None:
        self.reach = reach
        self.lasts_s = lasts_s
        self.out: dict[str, tuple[tuple[str, ...], float]] = {}
        self.calls = 0
        self.gaps = 0
        """Renewals that came after the cut had ended."""
        self.mode = "ok"
        self.through = {}
        self.lifted = []

    def select(self, scope):
        return tuple(one for one in scope if self.reach(one))

    async def cut(self, host, epoch, scope):
        await asyncio.sleep(0.05)
        if self.mode == "dead":
            raise Unavailable("no monitor answers")
        if self.mode == "broken":
            raise KeyError("monitor")
        self.calls += 1
        now = LoopClock().monotonic()
        self.gaps += host in self.out and now >= self.out[host][1]
        self.through[host] = max(epoch, self.through.get(host, 0))
        self.out[host] = (tuple(one for one in scope if self.reach(one)), now + (self.lasts_s or 1e9))

    async def read_back(self, host, epoch):
        await asyncio.sleep(0.05)
        if self.mode == "fenced":
            raise Unavailable("no monitor answers")
        scope, _ = self.out.get(host, ((), 0.0))
        scope = () if self.mode == "forgets" else scope
        return CutReport(scope=scope, evidence="blocklist of the storage cluster", expires_in_s=self.lasts_s)

    async def wait_isolated(self, scope):
        await asyncio.sleep(0.05)
        return tuple(one for one in scope if self.reach(one))

    async def lift(self, host, epoch):
        self.lifted.append((host, epoch))
        if self.through.get(host, 0) <= epoch:
            self.out.pop(host, None)

    async def list_hosts(self):
        return {host: self.through[host] for host, (scope, _) in self.out.items() if scope}


async def _site(s, cuts: Cuts, **how) -> None:
    await s.hosts("a", "b", "c")
    await s.host("d", bmc="")
    await s.vm("vm1", holder="d", disks=("one", "two"), ports=("net",))
    await s.vm("vm2", holder="c", disks=("other",), ports=())
    s.watch("a", cut=cuts, **how)
    await asyncio.sleep(20)


async def test_cut_that_cannot_be_read_back_proves_nothing():
    async with site() as s:
        cuts = Cuts()
        cuts.mode = "forgets"
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        record = await s.record("d")
        assert record.cut.scope == ()
        assert "read back" in record.fence.unproven_why


@pytest.mark.slow
async def test_cut_is_renewed_before_it_ends_for_as_long_as_the_epoch_is_not_dead():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        await _is_cut(s, cuts)
        await asyncio.sleep(1800)
        assert cuts.calls >= 15
        assert cuts.gaps == 0
        assert (await s.record("d")).fence.phase == "unconfirmed"


@pytest.mark.slow
async def test_isolation_ends_once_the_host_has_joined_in_a_new_boot():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        await _is_cut(s, cuts)
        await asyncio.sleep(1200)
        assert cuts.gaps == 0
        assert "d" in cuts.out
        await s.come_back("d")
        await asyncio.sleep(10)
        assert "d" not in cuts.out
        assert set(cuts.lifted) == {("d", 1)}
        assert (await s.record("d")).cut.through == 0


async def test_isolation_is_not_ended_by_a_coordinator_that_cannot_let_the_host_in_to_all_of_it():
    async with site() as s:
        cuts = Cuts()
        await _is_cut(s, cuts)
        cuts.reach = lambda one: one.startswith("disk:")  # its network settings are gone
        await s.come_back("d")
        await asyncio.sleep(30)
        assert cuts.lifted == []
        assert "port:net" in (await s.record("d")).cut.scope
        cuts.reach = lambda one: True
        await asyncio.sleep(30)
        assert cuts.lifted == [("d", 1)]
        assert not (await s.record("d")).cut.through


async def test_isolation_is_not_announced_by_a_host_that_can_shut_nobody_out_of_what_is_meant():
    async with site() as s:
        here = Isolation(StorageCuts({"rbd": Cuts(reach=lambda one: False), "port": ArrivedPorts()}), s.store)
        assert await here.explain_impossible("d", 1, ("port:net", "disk:file:/a"))
        there = Isolation(StorageCuts({"rbd": Cuts(reach=lambda one: False), "port": Cuts()}), s.store)
        assert await there.explain_impossible("d", 1, ("port:net", "disk:file:/a")) == ""


@pytest.mark.slow
async def test_order_to_isolate_that_comes_after_the_host_was_let_in_is_taken_back():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        await _is_cut(s, cuts)
        scope = (await s.record("d")).cut.scope
        await s.come_back("d")
        await s.until("d", lambda record: record.epoch == 2 and not record.cut.through)
        assert "d" not in cuts.out
        await asyncio.sleep(300)
        await cuts.cut("d", 1, scope)  # as storage carries it out late, for a fencer that stood still meanwhile
        await asyncio.sleep(90)
        assert "d" not in cuts.out
        assert (await s.record("d")).cut.through == 0


@pytest.mark.parametrize(("dead_through", "ends"), [(1, True), (0, False)])
async def test_isolation_of_which_the_record_is_gone_ends_where_it_isolates_only_dead_epochs(
    dead_through: int, ends: bool
):
    """The Membership was deleted, or the store went back to a backup that does not have the cut."""
    async with site() as s:
        cuts = Cuts(lasts_s=None)
        await _is_cut(s, cuts)
        current = await s.store.get(Membership, "d", fresh=True)
        await s.write(current, state="Held", epoch=2, dead_through=dead_through, cut=Cut(), fence=FenceRecord())
        s.renew("d")
        await asyncio.sleep(90)
        assert ("d" not in cuts.out) == ends
        assert (await _fault(s, "isolation-unrecorded") == "") == ends


async def test_fault_of_an_isolation_without_a_record_ends_with_it():
    async with site() as s:
        cuts = Cuts(lasts_s=None)
        await _is_cut(s, cuts)
        current = await s.store.get(Membership, "d", fresh=True)
        await s.write(current, state="Held", epoch=1, dead_through=0, cut=Cut(), fence=FenceRecord())
        s.renew("d")
        await asyncio.sleep(90)
        assert "through epoch 1" in await _fault(s, "isolation-unrecorded")
        await cuts.lift("d", 1)  # by hand
        await asyncio.sleep(90)
        assert await _fault(s, "isolation-unrecorded") == ""


async def test_host_whose_settings_cannot_be_read_does_not_keep_the_isolation_of_the_next_one():
    async with site() as s:
        cuts, store = Cuts(), Interposed(s.store)
        await _site(s, cuts, store=store)
        store.fail("c", Unavailable("no answer"))
        for name in ("c", "d"):
            current = await s.store.get(Membership, name, fresh=True)
            await s.write(current, epoch=2, dead_through=1, cut=Cut(through=1, scope=("disk:one",)))
        await asyncio.sleep(10)
        assert set(cuts.lifted) == {("d", 1)}
        store.reading = None
        await asyncio.sleep(10)
        assert set(cuts.lifted) == {("c", 1), ("d", 1)}


async def test_isolation_is_announced_before_the_first_order_and_not_where_nobody_can_isolate():
    async with site() as s:
        cuts = Cuts()
        cuts.mode = "fenced"
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        record = await s.record("d")
        assert (cuts.calls, record.cut.through) == (0, 0)
        cuts.mode = "dead"
        await s.until("d", lambda record: record.cut.through == 1)
        assert (await s.record("d")).cut.scope == ()


async def test_isolation_is_not_announced_where_the_driver_shuts_nobody_out_of_any_disk_of_the_host():
    """Files, on a coordinator with Ceph: the host may come back in the same boot."""
    async with site() as s:
        cuts = Cuts(reach=lambda one: False)
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        await asyncio.sleep(60)
        assert (await s.record("d")).cut.through == 0
        assert cuts.calls == 0


async def test_isolation_of_a_host_that_has_booted_does_not_end_while_the_cluster_is_paused():
    async with site() as s:
        await s.policy()
        cuts = Cuts()
        await _is_cut(s, cuts)
        cluster = await s.store.get(Cluster, "default", fresh=True)
        status = msgspec.structs.replace(cluster.status, pause=Pause())
        await s.store.replace_status(msgspec.structs.replace(cluster, status=status))
        await s.come_back("d")
        await asyncio.sleep(30)
        assert "d" in cuts.out
        cluster = await s.store.get(Cluster, "default", fresh=True)
        status = msgspec.structs.replace(cluster.status, pause=None)
        await s.store.replace_status(msgspec.structs.replace(cluster, status=status))
        await asyncio.sleep(10)
        assert "d" not in cuts.out


async def test_cut_stays_as_long_as_a_dead_host_is_away():
    async with site() as s:
        cuts = Cuts(lasts_s=None)
        await _site(s, cuts)
        s.silence("d")
        fence = await s.until("d", lambda record: record.cut.scope != ()) and (await s.record("d")).fence.id
        await s.change_fencing("d", operator_proof=f"{fence}|ann|unplugged")
        await s.until_dead("d", limit_s=10)
        await asyncio.sleep(60)
        assert "d" in cuts.out
        await s.come_back("d")
        await asyncio.sleep(10)
        assert "d" not in cuts.out


async def test_cut_that_fails_is_tried_again():
    async with site() as s:
        cuts = Cuts()
        cuts.mode = "dead"
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        cuts.mode = "ok"
        await s.until("d", lambda record: record.cut.through == 1, limit_s=15)


async def test_driver_that_breaks_proves_nothing_and_ends_no_fence():
    async with site() as s:
        cuts = Cuts()
        cuts.mode = "broken"
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed", limit_s=60)
        assert "KeyError" in (await s.record("d")).fence.unproven_why
        cuts.mode = "ok"
        await s.until("d", lambda record: record.cut.through == 1, limit_s=60)


async def _recovered(s, name: str) -> None:
    """Recovery has given the VM to another host."""
    vm = await s.store.get(VirtualMachine, name, fresh=True)
    status = msgspec.structs.replace(vm.status, holders=(), assigned=Assigned(hypervisor="c"))
    await s.store.replace_status(msgspec.structs.replace(vm, status=status))


@pytest.mark.slow
async def test_cut_is_kept_for_disks_that_others_use_since():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        await _is_cut(s, cuts)
        await _recovered(s, "vm1")
        await asyncio.sleep(1200)
        scope, until = cuts.out["d"]
        assert set(scope) == {"disk:one", "disk:two", "port:net"}
        assert until > LoopClock().monotonic()
        assert cuts.gaps == 0


@pytest.mark.slow
async def test_cut_is_kept_in_maintenance():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        await _is_cut(s, cuts)
        await s.policy(cluster={"maintenance": True})
        await asyncio.sleep(1200)
        assert cuts.out["d"][1] > LoopClock().monotonic()
        assert cuts.gaps == 0


@pytest.mark.slow
async def test_cut_is_kept_while_the_store_is_away():
    async with site() as s:
        cuts = Cuts(lasts_s=600.0)
        store = FaultStore(s.store, clock=LoopClock(), random=Random(3))
        await _is_cut(s, cuts, store=store)
        await asyncio.sleep(30)
        store.network.cut()
        await asyncio.sleep(1200)
        assert cuts.out["d"][1] > LoopClock().monotonic()
        assert cuts.gaps == 0


@pytest.mark.parametrize("slept_s", [0.0, 700.0])
async def test_isolation_that_ended_while_its_fencer_slept_proves_nothing(slept_s: float):
    async with site() as s:
        cuts, clock = Cuts(lasts_s=600.0), SleepyClock()
        store = FaultStore(s.store, clock=LoopClock(), random=Random(3))
        await _site(s, cuts, store=store, clock=clock)
        s.silence("d")
        while not cuts.calls:  # noqa: ASYNC110 - the very moment counts
            await asyncio.sleep(0.01)
        store.network.cut()  # the proof is not written before the fencer sleeps
        await asyncio.sleep(1.0)
        clock.slept_s = slept_s
        store.network.heal()
        await asyncio.sleep(20.0)
        assert ((await s.record("d")).cut.scope == ()) == (slept_s > 0)
        await asyncio.sleep(70.0)
        assert (await s.record("d")).cut.scope != ()


class HangingStore(FaultStore):
    """A store that does not answer any more, once ``hangs`` is set."""

    hangs = False

    async def _travel(self) -> None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        await super()._travel()


async def _is_cut(s, cuts: Cuts, **how) -> None:
    await _site(s, cuts, **how)
    s.silence("d")
    await s.until("d", lambda record: record.cut.scope != ())


async def _fault(s, code: str) -> str:
    """The message of that fault of the host; empty where there is none that is not over."""
    try:
        found = await s.store.get(Fault, fault_name(code, ObjectRef(kind="Hypervisor", name="d")), fresh=True)
    except NotFound:
        return ""
    return "" if found.ended else found.message


async def test_cut_of_which_a_part_is_lost_while_the_host_is_condemned_is_told_at_once_and_proves_nothing_more():
    async with site() as s:
        cuts = Cuts()
        await _is_cut(s, cuts)
        cuts.reach = lambda one: one != "disk:two"
        await asyncio.sleep(70)
        assert "disk:two could not be read back" in await _fault(s, "cut-failing")
        assert "disk:two" in (await s.record("d")).fence.unproven_why
        assert (await s.record("d")).cut.scope == ("disk:one", "disk:two", "port:net")
        cuts.reach = lambda one: True
        await asyncio.sleep(70)
        assert await _fault(s, "cut-failing") == ""


async def test_cut_that_loses_a_part_and_gains_another_never_forgets_what_it_lost():
    """The lost disk may have been given to another host on the strength of the cut."""
    async with site() as s:
        cuts = Cuts()
        await _is_cut(s, cuts)
        await _recovered(s, "vm1")
        await s.vm("vm3", holder="d", disks=("three",), ports=())
        cuts.reach = lambda one: one != "disk:two"
        await asyncio.sleep(70)
        assert "disk:two" in (await s.record("d")).cut.scope
        cuts.reach = lambda one: True
        await asyncio.sleep(70)
        assert (await s.record("d")).cut.scope == ("disk:one", "disk:three", "disk:two", "port:net")


async def test_cut_that_ends_sooner_than_another_fencer_could_take_it_over_proves_nothing():
    async with site() as s:
        await _site(s, Cuts(lasts_s=120.0))
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        record = await s.record("d")
        assert record.cut.scope == ()
        assert "ends 120 s after it was renewed, and has to last 480 s" in record.fence.unproven_why


@pytest.mark.slow
async def test_cut_is_renewed_in_time_though_every_write_and_fault_hangs():
    async with site() as s:
        cuts = Cuts()
        store = HangingStore(s.store, clock=LoopClock(), random=Random(3))
        await _is_cut(s, cuts, store=store)
        cuts.reach = lambda one: one != "disk:two"  # so that there is something to tell
        store.hangs = True
        before = cuts.calls
        await asyncio.sleep(600)
        assert cuts.calls >= before + 8


# What the host of a start knows of it


class NobodyIsolates(Cuts):
    """A driver that isolates nobody."""

    def select(self, scope):
        return ()

    async def wait_isolated(self, scope):
        raise NotFound("nobody isolates hosts here")


@pytest.mark.parametrize(
    ("driver", "waits_for"),
    [
        (None, "disk:one"),
        (NobodyIsolates(), "disk:one"),
        (Cuts(reach=lambda one: one.startswith("disk:")), "port:net"),
        (Cuts(), ""),
    ],
    ids=["no driver", "a driver of nothing", "a driver of disks only", "a driver of both"],
)
async def test_start_is_refused_where_the_drivers_of_its_host_do_not_answer_for_what_others_have_isolated(
    driver, waits_for
):
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        vm = await s.vm("vm1", holder="d", disks=("one", "two"), ports=("net",))
        other = await s.vm("vm2", holder="c", disks=("other",), ports=())
        here = Isolation(driver, s.store)
        await here.wait_isolated(vm)  # nobody is isolated
        member = await s.store.get(Membership, "d")
        cut = Cut(through=1, scope=("disk:one", "disk:two", "port:net"))
        isolated = msgspec.structs.replace(member, record=msgspec.structs.replace(member.record, cut=cut))
        isolated = await s.store.replace(isolated)
        if waits_for:
            with pytest.raises(Unavailable, match=f"d is isolated from .*{waits_for}"):
                await here.wait_isolated(vm)
        else:
            await here.wait_isolated(vm)
        await here.wait_isolated(other)
        over = msgspec.structs.replace(isolated.record, dead_through=1)
        await s.store.replace(msgspec.structs.replace(isolated, record=over))
        await here.wait_isolated(vm)  # nothing of that epoch is left that could write


class OneIsDown(Cuts):
    """Two storages, of which ``b`` takes no orders and gives no answers."""

    async def cut(self, host, epoch, scope):
        if any(one.startswith("disk:b:") for one in scope):
            raise Unavailable("storage b does not answer")
        await super().cut(host, epoch, scope)

    async def read_back(self, host, epoch):
        report = await super().read_back(host, epoch)
        return msgspec.structs.replace(report, unanswered="storage b does not answer")

    async def wait_isolated(self, scope):
        if any(one.startswith("disk:b:") for one in scope):
            raise Unavailable("storage b does not answer")
        return await super().wait_isolated(scope)


async def test_a_storage_that_is_down_prevents_no_isolation_from_another_and_is_credited_with_none():
    async with site() as s:
        await s.hosts("a", "b", "c")
        await s.host("d", bmc="")
        await s.vm("vm1", holder="d", disks=("a:one", "a:two"), ports=())
        await s.vm("vm2", holder="d", disks=("b:three",), ports=())
        s.watch("a", cut=OneIsDown())
        await asyncio.sleep(20)
        s.silence("d")
        await s.until("d", lambda record: record.cut.scope != ())
        assert (await s.record("d")).cut.scope == ("disk:a:one", "disk:a:two")


@pytest.mark.parametrize(
    ("scope", "groups"),
    [
        (("port:p",), (("port:p",),)),
        (("disk:rbd:v/a", "port:p"), (("disk:rbd:v/a", "port:p"),)),
        (("disk:drbd:x", "disk:rbd:v/a", "disk:rbd:v/b"), (("disk:drbd:x",), ("disk:rbd:v/a", "disk:rbd:v/b"))),
    ],
)
def test_each_storage_gets_an_order_of_its_own(scope, groups):
    assert split_by_storage(scope) == groups
