"""Who runs a VM: judges find a violation that was planted, and let what is right pass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.judges import finds, judged, make_holder, make_member, make_vm, put_domain
from tests.support.virtual_hosts import Bench, small_vm

from outlive.node.ports import DomainState
from outlive.resources import BadInputs
from outlive.simulation import domain_of, read_scenario


@finds("S1a", "S1b")
async def test_two_running_domains_are_two_writers_and_two_presences(bench: Bench) -> None:
    put_domain(bench, "h1")
    put_domain(bench, "h2", "r2")


@finds()
async def test_domain_that_is_shut_out_of_disks_and_network_is_neither(bench: Bench) -> None:
    put_domain(bench, "h1")
    bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
    put_domain(bench, "h2", "r2")


@finds("S1b")
async def test_domain_that_is_shut_out_of_its_disks_alone_still_answers(bench: Bench) -> None:
    put_domain(bench, "h1")
    bench.disks.cut("h1", 1, ("disk:vm-1-root",))
    put_domain(bench, "h2", "r2")


@finds()
async def test_vm_that_accepts_duplicates_is_excepted_where_it_is_off_its_disks(bench: Bench) -> None:
    vm = small_vm(accept_duplicate=True)
    put_domain(bench, "h1", vm=vm)
    bench.disks.cut("h1", 1, ("disk:vm-1-root",))
    put_domain(bench, "h2", "r2", vm=vm)


@finds("S1a", "S1b")
async def test_lifted_cut_is_looked_at_like_any_event(bench: Bench) -> None:
    put_domain(bench, "h1")
    bench.disks.cut("h1", 1, ("disk:vm-1-root", "port:vm-1-net"))
    put_domain(bench, "h2", "r2")
    bench.disks.lift("h1", 1)


@finds("S1a", "S1b")
async def test_host_that_goes_on_after_its_vm_was_started_elsewhere_is_found(bench: Bench) -> None:
    put_domain(bench, "h1")
    bench.hypervisors["h1"].pause()
    put_domain(bench, "h2", "r2")
    assert bench.broken() == []
    bench.hypervisors["h1"].go_on()


@finds("S1a")
async def test_domain_that_runs_again_after_its_state_ran_elsewhere_is_found(bench: Bench) -> None:
    put_domain(bench, "h1")
    source = bench.hypervisors["h1"]
    bench.hypervisors["h2"].domains["vm-1"] = domain_of(small_vm(), "r2", 1, DomainState.INCOMING)
    await source.migrate("vm-1", "h2")
    await bench.hypervisors["h2"].destroy("vm-1", "")
    assert bench.broken() == []
    await source.resume("vm-1", run_id="r1")


@finds("held")
async def test_running_domain_without_an_entry_is_found(bench: Bench) -> None:
    bench.store.load([make_vm(make_holder("h2")), make_member("h1"), make_member("h2")])
    put_domain(bench, "h1")


@pytest.mark.parametrize(("shared", "broken"), [((), True), (("h1",), True), (("h1", "h2"), False)])
def test_two_vms_that_write_one_disk_are_two_writers_unless_both_share_it(
    shared: tuple[str, ...], broken: bool
) -> None:
    async def story(bench: Bench) -> None:
        for host, name in (("h1", "vm-1"), ("h2", "vm-2")):
            vm = small_vm(name)
            spec = replace(vm.spec, disks=("disk",), shared_disks=("disk",) if host in shared else ())
            put_domain(bench, host, f"r-{name}", vm=replace(vm, spec=spec))

    assert judged(story) == (["S1a"] if broken else [])


def test_a_cluster_in_which_two_vms_have_one_disk_that_they_do_not_share_is_refused(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "scenarios/pair-that-shares-a-disk-loses-one-host"
    shutil.copytree(source, tmp_path / "pair")
    text = (tmp_path / "pair/cluster.yaml").read_text()
    (tmp_path / "pair/cluster.yaml").write_text(text.replace('sharedDisks: ["rbd:vms/shared"]', "sharedDisks: []", 1))
    with pytest.raises(BadInputs, match="'rbd:vms/shared' is one of VM db-1 as well"):
        read_scenario(tmp_path / "pair")
