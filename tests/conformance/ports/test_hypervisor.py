"""What every driver of a hypervisor keeps (``outlive.node.ports.hypervisor``), with whatever faults its subject has."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec.structs import replace
from tests.conformance.claims import PATIENCE_S, claims_of, until
from tests.conformance.ports.harness import HypervisorHarness, perhaps
from tests.conformance.ports.real_libvirt import LIBVIRT
from tests.conformance.ports.simulated import HYPERVISORS

from outlive.base import InUse, Refused, Unavailable, Unknown
from outlive.node.ports import Domain, DomainState, HypervisorPort, MigrationSettings

SUBJECTS = (*HYPERVISORS, LIBVIRT)
claim = claims_of(SUBJECTS)
of_each = pytest.mark.parametrize("subject", [one.parameter for one in SUBJECTS])
VM = "vm-1"
SETTINGS = MigrationSettings()
BEFORE, AFTER = ("precopy", "paused"), ("sent", "last")
"""Where a migration fails: before, and after the last of the guest's state was sent."""


async def _one(port: HypervisorPort) -> Domain | None:
    return next((one for one in await port.list_domains() if one.vm == VM), None)


async def _state(port: HypervisorPort) -> DomainState | None:
    found = await _one(port)
    return found.state if found is not None else None


async def _runs(h: HypervisorHarness, vm: str = VM, host: str = "a") -> None:
    """Wait until the guest runs there: what was asked for may come later, and be seen later."""
    await until(lambda: h.executes(vm, host), f"{vm} runs on {host}", h.settle_s + PATIENCE_S)


async def _created(h: HypervisorHarness, run_id: str = "r1", host: str = "a", *, incoming: bool = False) -> None:
    settings = SETTINGS if incoming else None
    await perhaps(h.driver(host).create(h.vm(VM), run_id=run_id, epoch=7, incoming=settings))
    assert h.processes(VM, host) == 1


async def _listens(h: HypervisorHarness) -> str:
    found = await _one(h.driver("b"))
    return found.listens if found is not None else ""


async def _migrate(h: HypervisorHarness, listens: str, port: HypervisorPort | None = None) -> None:
    await (port or h.driver()).migrate(VM, "b", listens=listens, settings=SETTINGS)


# What is there, and what is not


@claim
async def test_what_was_created_runs_and_is_listed_to_the_next_caller(h: HypervisorHarness) -> None:
    await _created(h)
    await _runs(h)
    h.kill()
    found = await _one(h.driver())
    assert found is not None
    assert (found.run_id, found.epoch, found.state, found.guarded) == ("r1", 7, DomainState.RUNNING, True)


@claim
async def test_domains_come_in_the_order_of_their_names(h: HypervisorHarness) -> None:
    port = h.driver()
    for name in ("vm-3", "vm-1", "vm-2"):
        await perhaps(port.create(h.vm(name), run_id=name, epoch=1))
    assert [one.vm for one in await port.list_domains()] == ["vm-1", "vm-2", "vm-3"]


@claim
async def test_what_is_not_listed_has_no_process_although_the_service_has_lost_track(h: HypervisorHarness) -> None:
    await _created(h)
    h.lose_track(VM)
    port = h.driver()
    found = await _one(port)
    assert found is not None, "a process that the service does not list is there all the same"
    assert found.state is DomainState.RUNNING
    await perhaps(port.destroy(VM))
    assert (h.processes(VM), await _one(port)) == (0, None)


@claim
async def test_a_process_outside_the_slice_is_listed_as_such_and_destroyed_as_any(h: HypervisorHarness) -> None:
    await _created(h)
    h.outside_slice()
    await perhaps(h.driver().create(h.vm("vm-2"), run_id="r2", epoch=7))
    port = h.driver()
    assert [(one.vm, one.guarded) for one in await port.list_domains()] == [(VM, False), ("vm-2", False)]
    for vm in (VM, "vm-2"):
        await perhaps(port.destroy(vm))
        assert h.processes(vm) == 0
    assert await port.list_domains() == ()


@claim
async def test_nothing_is_created_while_the_service_starts_domains_by_itself(h: HypervisorHarness) -> None:
    assert await h.driver().list_problems() == ()
    h.autostart()
    port = h.driver()
    (problem,) = await port.list_problems()
    assert "other" in problem
    with pytest.raises(Refused, match="other"):
        await port.create(h.vm(VM), run_id="r1", epoch=7)
    assert (h.processes(VM), await _one(port)) == (0, None)


@claim
async def test_a_domain_that_outlive_did_not_make_is_listed_with_its_uuid_and_destroyed_by_that(
    h: HypervisorHarness,
) -> None:
    uuid = h.foreign("other")
    await _created(h)
    port = h.driver()
    assert [(one.vm, one.uuid, one.run_id) for one in await port.list_domains()] == [
        ("other", uuid, ""),
        (VM, "", "r1"),
    ]
    with pytest.raises(InUse):
        await port.create(h.vm("other"), run_id="r2", epoch=7)
    await perhaps(port.destroy("other"))
    assert [one.vm for one in await port.list_domains()] == ["other", VM], "a name is anybody's"
    await perhaps(port.destroy("other", uuid=uuid))
    assert [one.vm for one in await port.list_domains()] == [VM]
    await _runs(h)


@claim
async def test_each_listing_is_of_a_moment_after_its_call(h: HypervisorHarness) -> None:
    await _created(h)
    port = h.driver()
    assert await _state(port) is DomainState.RUNNING
    h.crash(VM)
    found = await _one(port)
    assert found is None or (found.state, found.crashed) == (DomainState.OFF, True)


# Creating


@claim
async def test_a_vm_has_one_domain_on_a_host(h: HypervisorHarness) -> None:
    async def create(run_id: str) -> str:
        """The run, unless another one has the domain."""
        with contextlib.suppress(InUse):
            await perhaps(h.driver().create(h.vm(VM), run_id=run_id, epoch=1))
            return run_id
        return ""

    begun = [asyncio.create_task(create(run_id)) for run_id in ("r1", "r2")]  # whichever is heard first
    (made,) = [run_id for one in begun if (run_id := await one)]
    with pytest.raises(InUse):
        await h.driver().create(h.vm(VM), run_id="r3", epoch=1)
    found = await _one(h.driver())
    assert found is not None
    assert found.run_id == made


@claim
async def test_a_create_is_listed_as_starting_until_it_has_ended_also_that_of_a_dead_daemon(
    h: HypervisorHarness,
) -> None:
    task = asyncio.create_task(perhaps(h.driver().create(h.vm(VM), run_id="r1", epoch=7)))
    await asyncio.sleep(0.01)
    h.kill()
    port = h.driver()
    seen: list[DomainState | None] = []
    end_s = asyncio.get_running_loop().time() + max(h.settle_s, PATIENCE_S)
    while asyncio.get_running_loop().time() < end_s:
        before = h.processes(VM)
        seen.append(await _state(port))
        assert seen[-1] is not None or h.processes(VM) == before == 0
        if seen[-1] is not DomainState.STARTING:
            break
        await asyncio.sleep(0.05)
    assert seen[-1] in (DomainState.RUNNING, None), "what the service queues ends, and says so until then"
    if seen[-1] is None:
        await asyncio.sleep(h.settle_s)
        assert h.processes(VM) == 0, "what is not listed never happens any more"
    await asyncio.gather(task, return_exceptions=True)


@claim
async def test_nothing_appears_after_a_destroy_has_returned_whatever_was_under_way(h: HypervisorHarness) -> None:
    task = asyncio.create_task(perhaps(h.driver().create(h.vm(VM), run_id="r1", epoch=7)))
    await asyncio.sleep(0.01)
    h.kill()
    port = h.driver()
    await perhaps(port.destroy(VM))
    assert (h.processes(VM), await _one(port)) == (0, None)
    await asyncio.sleep(h.settle_s)
    assert (h.processes(VM), await _one(port)) == (0, None)
    await asyncio.gather(task, return_exceptions=True)


@claim
async def test_a_refused_create_leaves_no_process(h: HypervisorHarness) -> None:
    h.fail_start(VM)
    port = h.driver()
    with pytest.raises(Refused):
        await port.create(h.vm(VM), run_id="r1", epoch=7)
    assert (h.processes(VM), await _one(port)) == (0, None)
    await _created(h, "r2")


@claim
async def test_a_cache_that_is_written_back_after_the_end_of_the_process_is_refused(h: HypervisorHarness) -> None:
    port, vm = h.driver(), h.vm(VM)
    for mode in ("writeback", "writethrough", "unsafe"):
        asked = replace(vm, spec=replace(vm.spec, disk_cache=mode))
        with pytest.raises(Refused, match=f"disk cache {mode}"):
            await port.create(asked, run_id=mode, epoch=7)
        assert h.processes(VM) == 0
    for mode in ("", "none", "directsync"):
        await perhaps(port.create(replace(vm, spec=replace(vm.spec, disk_cache=mode)), run_id="r1", epoch=7))
        assert h.processes(VM) == 1
        await perhaps(port.destroy(VM))


@claim
async def test_nothing_starts_by_itself_after_a_crash_or_a_boot(h: HypervisorHarness) -> None:
    await _created(h)
    h.crash(VM)
    await asyncio.sleep(h.settle_s)
    assert not h.executes(VM)
    await perhaps(h.driver().destroy(VM))
    await _created(h, "r2")
    h.reboot()
    await asyncio.sleep(h.settle_s)
    assert (h.processes(VM), await _one(h.driver())) == (0, None)


# Ending


@claim
async def test_destroying_twice_is_as_destroying_once_and_another_run_is_left_alone(h: HypervisorHarness) -> None:
    await _created(h)
    port = h.driver()
    await perhaps(port.destroy(VM, run_id="another"))
    await _runs(h)
    for _ in range(2):
        await perhaps(port.destroy(VM, run_id="r1"))
        assert h.processes(VM) == 0


@claim
async def test_a_process_that_does_not_end_is_said_to_be_there(h: HypervisorHarness) -> None:
    await _created(h)
    h.hang(VM)
    port = h.driver()
    with pytest.raises((Unavailable, Unknown)):
        await port.destroy(VM)
    assert h.processes(VM) == 1
    assert await _one(port) is not None


@claim
async def test_a_guest_that_shuts_down_is_off_or_gone_and_was_no_crash(h: HypervisorHarness) -> None:
    await _created(h)
    port = h.driver()
    for _ in range(2):
        await perhaps(port.shutdown(VM))

    async def has_ended() -> bool:
        found = await _one(port)
        if found is None or (found.state, found.crashed) == (DomainState.OFF, False):
            return True
        with contextlib.suppress(Refused):  # it ends just now
            await perhaps(port.shutdown(VM))  # who has not booted yet has heard nothing
        return False

    await until(has_ended, "it shuts down, and that is no crash", h.settle_s + PATIENCE_S)


@claim
async def test_what_waits_for_a_guest_is_declined_and_never_ran(h: HypervisorHarness) -> None:
    await _created(h)
    await _created(h, "r2", "b", incoming=True)
    target = h.driver("b")
    with pytest.raises(Refused):
        await target.decline(VM, "another")
    listens = await _listens(h)
    await perhaps(target.decline(VM, "r2"))
    assert h.processes(VM, "b") == 0
    with pytest.raises(Refused):
        await _migrate(h, listens)
    await _runs(h)
    with pytest.raises(Refused):
        await h.driver().decline(VM, "r1")
    await _runs(h)


@claim
async def test_what_ended_while_it_waited_for_a_guest_never_ran_and_is_declined_once(h: HypervisorHarness) -> None:
    await _created(h, incoming=True)
    h.crash(VM)
    port = h.driver()
    assert (h.processes(VM), await _one(port)) == (0, None)
    with pytest.raises(Refused):
        await port.decline(VM, "another")
    await perhaps(port.decline(VM, "r1"))
    with pytest.raises(Refused):
        await port.decline(VM, "r1")
    await _created(h, "r2")
    h.crash(VM)
    await perhaps(h.driver().destroy(VM))
    with pytest.raises(Refused):
        await h.driver().decline(VM, "r2")


# The service


@claim
async def test_a_stopped_service_answers_nothing_and_guests_run_on(h: HypervisorHarness) -> None:
    await _created(h)
    h.stop_service()
    port = h.driver()
    for call in (
        port.list_domains(),
        port.destroy(VM),
        port.shutdown(VM),
        port.resume(VM, run_id="r1"),
        port.create(h.vm("vm-2"), run_id="r2", epoch=7),
    ):
        with pytest.raises(Unavailable):
            await call
    await _runs(h)
    for _ in range(2):
        await perhaps(port.start_service())
    assert await _state(port) is DomainState.RUNNING
    assert h.processes("vm-2") == 0, "Unavailable: nothing happened, and nothing will"


@claim
async def test_a_host_that_stood_still_goes_on_with_what_it_had(h: HypervisorHarness) -> None:
    await _created(h)
    task = asyncio.create_task(perhaps(h.driver().create(h.vm("vm-2"), run_id="r2", epoch=7)))
    await asyncio.sleep(0.01)
    h.freeze()
    await asyncio.sleep(h.settle_s)
    assert not h.executes(VM)
    assert not h.executes("vm-2")
    h.thaw()
    await asyncio.wait([task])
    port = h.driver()

    async def have_started() -> tuple[Domain, ...]:
        found = await port.list_domains()
        return () if any(one.state is DomainState.STARTING for one in found) else found

    found = await until(have_started, "nothing is starting any more", h.settle_s + PATIENCE_S)
    listed = [(one.vm, one.run_id) for one in found if one.state is DomainState.RUNNING]
    assert (VM, "r1") in listed
    if ("vm-2", "r2") in listed:
        await _runs(h, "vm-2")
    else:
        assert not h.executes("vm-2")


# Migrating


@claim
async def test_a_guest_that_was_sent_runs_there_and_its_source_stays_handed_over(h: HypervisorHarness) -> None:
    await _created(h)
    await _created(h, "r2", "b", incoming=True)
    await perhaps(_migrate(h, await _listens(h)))
    await _runs(h, host="b")
    await asyncio.sleep(h.settle_s)
    assert not h.both_ran(VM)
    assert not h.executes(VM)
    assert await _state(h.driver()) in (DomainState.HANDED_OVER, None)


async def _fails_to_move(h: HypervisorHarness, phase: str) -> bool:
    """A guest runs here, its target listens, and the migration fails in this phase; whether that was ``Refused``."""
    await _created(h)
    await _created(h, "r2", "b", incoming=True)
    listens = await _listens(h)
    h.fail_migration(phase)
    try:
        await perhaps(_migrate(h, listens))
    except Refused:
        return True
    return False


@pytest.mark.parametrize("phase", BEFORE)
@of_each
def test_a_migration_that_fails_before_all_was_sent_leaves_the_guest_here(subject, phase: str, tmp_path) -> None:
    async def failed() -> None:
        async with subject.open(tmp_path) as h:
            assert await _fails_to_move(h, phase)
            await _runs(h)
            assert not h.executes(VM, "b")

    subject.run(failed())


@pytest.mark.parametrize("phase", AFTER)
@of_each
def test_after_all_was_sent_nothing_but_resume_lets_the_source_run(subject, phase: str, tmp_path) -> None:
    async def failed() -> None:
        async with subject.open(tmp_path) as h:
            assert not await _fails_to_move(h, phase)
            h.kill()
            h.stop_service()
            await asyncio.sleep(h.settle_s)
            await perhaps(h.driver().start_service())
            await asyncio.sleep(h.settle_s)
            assert not h.executes(VM), "a failure, a dead daemon or a new service is no word of the target"
            assert await _state(h.driver()) is DomainState.HANDED_OVER
            assert not h.both_ran(VM)

    subject.run(failed())


@claim
async def test_resume_lets_the_named_run_go_on_and_no_other(h: HypervisorHarness) -> None:
    await _created(h)
    await _created(h, "r2", "b", incoming=True)
    listens = await _listens(h)
    h.fail_migration("sent")
    port = h.driver()
    await perhaps(_migrate(h, listens, port))
    await perhaps(h.driver("b").decline(VM, "r2"))
    with pytest.raises(Refused):
        await port.resume(VM, run_id="another")
    assert not h.executes(VM)
    await perhaps(port.resume(VM, run_id="r1"))
    await _runs(h)
    with pytest.raises(Refused):
        await port.resume(VM, run_id="r1")
    assert not h.both_ran(VM)


async def _stays_split(h: HypervisorHarness, port: HypervisorPort) -> bool:
    """Whether the rest has not arrived before b stands still; it goes on where it has."""
    h.freeze("b")
    await asyncio.sleep(h.pace)  # what b had sent before has been read
    here = await _one(port)
    if here is not None and here.split:
        return True
    h.thaw("b")
    return False


CRASHES = 8
"""How often a source is lost at most, until something had not been sent yet."""
POST_COPY = MigrationSettings(post_copy=True, bandwidth_mib_s=1, downtime_ms=1)


async def in_post_copy(h: HypervisorHarness, stall_s: float = 0.0, *, held: bool = False) -> asyncio.Task[None]:
    """A guest runs on b and takes the rest of its memory from here; what has not booted needs no post-copy.

    ``stall_s``: of a real driver, after which it ends post-copy of which nothing more arrives. ``held``: b stands still
    when this returns, so that its end does not come before what is to come first.
    """
    port = h.driver()
    if stall_s:
        await port.call("post_copy_stall", {"seconds": stall_s})  # type: ignore[attr-defined]
    await perhaps(port.create(h.busy_vm(VM), run_id="r1", epoch=7))
    for attempt in range(20):
        target = h.driver("b")
        await perhaps(target.create(h.busy_vm(VM), run_id=f"r2-{attempt}", epoch=7, incoming=POST_COPY))
        given = {"listens": await _listens(h), "settings": POST_COPY}
        task = asyncio.create_task(perhaps(port.migrate(VM, "b", **given)))
        while not task.done():
            here, there = await _one(port), await _one(target)
            if here is not None and here.split and there is not None and there.split:
                assert here.state is DomainState.HANDED_OVER
                # its driver lets it go on once enough has arrived
                assert there.state in (DomainState.PAUSED, DomainState.RUNNING)
                if there.state is DomainState.RUNNING and await _stays_split(h, port):
                    with pytest.raises(Refused):
                        await port.resume(VM, run_id="r1")
                    if not held:
                        h.thaw("b")
                    return task
            await asyncio.sleep(0.02 * h.pace)
        await perhaps(target.destroy(VM))
        if isinstance(task.exception(), Refused):
            await _runs(h)
        else:  # it was over before anybody looked
            await perhaps(port.destroy(VM))
            await perhaps(port.create(h.busy_vm(VM), run_id="r1", epoch=7))
        await asyncio.sleep(h.pace)
    pytest.fail("it never came to post-copy")


@claim
async def test_by_post_copy_it_runs_there_before_all_is_sent_and_never_again_here(h: HypervisorHarness) -> None:
    task = await in_post_copy(h)
    await task
    await _runs(h, host="b")
    source, target = h.driver(), h.driver("b")

    async def are_whole() -> bool:
        here, there = await _one(source), await _one(target)
        return (
            here is not None
            and (here.state, here.split) == (DomainState.HANDED_OVER, False)
            and there is not None
            and (there.state, there.split) == (DomainState.RUNNING, False)
        )

    await until(are_whole, "both sides say that all has arrived", h.settle_s + PATIENCE_S)
    await asyncio.sleep(h.settle_s)
    assert await are_whole()
    assert not h.both_ran(VM)


@claim
async def test_a_target_that_is_lost_in_post_copy_leaves_nothing_that_runs_here(h: HypervisorHarness) -> None:
    task = await in_post_copy(h, held=True)
    h.kill()
    h.reboot("b")
    await asyncio.sleep(h.settle_s)
    port = h.driver()
    found = await _one(port)
    assert found is not None
    assert found.state is DomainState.OFF or (found.state is DomainState.HANDED_OVER and found.split)
    with pytest.raises(Refused):
        await port.resume(VM, run_id="r1")
    assert not h.executes(VM)
    await perhaps(port.destroy(VM))
    assert h.processes(VM) == 0
    await asyncio.gather(task, return_exceptions=True)


@claim
async def test_a_source_that_is_lost_in_post_copy_leaves_a_target_that_says_what_it_lacks(h: HypervisorHarness) -> None:
    for _ in range(CRASHES):
        task = await in_post_copy(h)
        h.crash(VM)
        await asyncio.sleep(h.settle_s)
        target = h.driver("b")
        found = await _one(target)
        assert found is not None
        assert found.state is DomainState.RUNNING
        await perhaps(target.destroy(VM))
        assert h.processes(VM, "b") == 0
        await asyncio.gather(task, return_exceptions=True)
        if found.split:
            return
        await perhaps(h.driver().destroy(VM))
    pytest.fail("all that it lacked was on its way each time")


@claim
async def test_what_waits_for_a_guest_is_not_resumed(h: HypervisorHarness) -> None:
    await _created(h, incoming=True)
    with pytest.raises(Refused):
        await h.driver().resume(VM, run_id="r1")
    assert not h.executes(VM)


@pytest.mark.parametrize("after_s", [0.5, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("who", ["daemon", "service", "target"])
@of_each
def test_if_a_side_is_lost_during_a_migration_both_never_run(subject, after_s: float, who: str, tmp_path) -> None:
    if subject is LIBVIRT and after_s in (2.0, 6.0):
        pytest.skip("real seconds: two moments are enough")

    async def lost() -> None:
        async with subject.open(tmp_path) as h:
            await _created(h)
            await _created(h, "r2", "b", incoming=True)
            task = asyncio.create_task(_migrate(h, await _listens(h)))
            await asyncio.sleep(after_s * h.pace)
            if who == "daemon":
                h.kill()
            elif who == "service":
                h.stop_service()
            else:
                h.reboot("b")
            await asyncio.wait([task], timeout=max(h.settle_s, PATIENCE_S))
            await asyncio.sleep(h.settle_s)
            await perhaps(h.driver().start_service())
            assert not h.both_ran(VM)
            there, here = h.executes(VM, "b"), await _state(h.driver())
            assert here in (
                (DomainState.HANDED_OVER, None) if there else (DomainState.RUNNING, DomainState.HANDED_OVER)
            )
            await asyncio.gather(task, return_exceptions=True)

    subject.run(lost())


# Devices of what runs


@claim
async def test_what_runs_is_given_a_disk_and_loses_it_again(h: HypervisorHarness) -> None:
    await _created(h)
    vm, port = h.vm_with_disk(VM, "sda"), h.driver()
    (disk,) = {*vm.spec.disks} - {*h.vm(VM).spec.disks}

    async def has_lost_it() -> bool:
        return "sda" not in await port.list_devices(VM, run_id="r1")

    for _ in range(2):
        await perhaps(port.attach(vm, "sda", run_id="r1"))
        assert (await port.list_devices(VM, run_id="r1"))["sda"] == disk
    h.kill()
    port = h.driver()
    assert (await port.list_devices(VM, run_id="r1"))["sda"] == disk
    await _runs(h)
    for _ in range(2):
        await perhaps(port.detach(VM, "sda", run_id="r1"))
        await until(has_lost_it, "the disk goes", h.settle_s + PATIENCE_S)
    await _runs(h)


@claim
async def test_no_other_run_and_no_other_device_is_touched(h: HypervisorHarness) -> None:
    await _created(h)
    vm, port = h.vm_with_disk(VM, "sda"), h.driver()
    for run_id, device in (("r2", "sda"), ("r1", "sdb")):
        with pytest.raises(Refused):
            await port.attach(vm, device, run_id=run_id)
    for call in (port.list_devices(VM, run_id="r2"), port.detach(VM, "sda", run_id="r2")):
        with pytest.raises(Refused):
            await call
    assert "sda" not in await port.list_devices(VM, run_id="r1")


@claim
async def test_what_was_given_a_disk_moves_to_a_host_that_makes_it_of_the_same_definition(h: HypervisorHarness) -> None:
    await _created(h)
    vm = h.vm_with_disk(VM, "vdb")
    await perhaps(h.driver().attach(vm, "vdb", run_id="r1"))
    await perhaps(h.driver("b").create(vm, run_id="r2", epoch=7, incoming=SETTINGS))
    await perhaps(_migrate(h, await _listens(h)))
    await _runs(h, host="b")
    assert "vdb" in await h.driver("b").list_devices(VM, run_id="r2")
