"""Who runs a VM: judges find a violation that was planted, and let what is right pass."""

from __future__ import annotations

from tests.support.judges import judged, make_holder, make_member, make_vm, put_domain
from tests.support.virtual_hosts import Bench, small_vm

from outlive.node.ports import DomainState
from outlive.simulation.hypervisors import domain_of


def test_two_running_domains_are_two_writers_and_two_presences() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        put_domain(bench, "h2", "r2")

    assert judged(story) == ["S1a", "S1b"]


def test_domain_that_is_shut_out_of_disks_and_network_is_neither() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        put_domain(bench, "h2", "r2")

    assert judged(story) == []


def test_domain_that_is_shut_out_of_its_disks_alone_still_answers() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root",))
        put_domain(bench, "h2", "r2")

    assert judged(story) == ["S1b"]


def test_vm_that_accepts_duplicates_is_excepted_where_it_is_off_its_disks() -> None:
    async def story(bench: Bench) -> None:
        vm = small_vm(accept_duplicate=True)
        put_domain(bench, "h1", vm=vm)
        bench.disks.cut("h1", 1, ("disk:vm-1-root",))
        put_domain(bench, "h2", "r2", vm=vm)

    assert judged(story) == []


def test_lifted_cut_is_looked_at_like_any_event() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
        put_domain(bench, "h2", "r2")
        bench.disks.lift("h1", 1)

    assert judged(story) == ["S1a", "S1b"]


def test_host_that_goes_on_after_its_vm_was_started_elsewhere_is_found() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        bench.hypervisors["h1"].pause()
        put_domain(bench, "h2", "r2")
        assert bench.broken() == []
        bench.hypervisors["h1"].go_on()

    assert judged(story) == ["S1a", "S1b"]


def test_domain_that_runs_again_after_its_state_ran_elsewhere_is_found() -> None:
    async def story(bench: Bench) -> None:
        put_domain(bench, "h1")
        source = bench.hypervisors["h1"]
        bench.hypervisors["h2"].domains["vm-1"] = domain_of(small_vm(), "r2", 1, DomainState.INCOMING)
        await source.migrate("vm-1", "h2")
        await bench.hypervisors["h2"].destroy("vm-1", "")
        assert bench.broken() == []
        await source.resume("vm-1", run_id="r1")

    assert judged(story) == ["S1a"]


def test_running_domain_without_an_entry_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm(make_holder("h2")), make_member("h1"), make_member("h2")])
        put_domain(bench, "h1")

    assert judged(story) == ["held"]
