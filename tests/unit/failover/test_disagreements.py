"""What the VM source and the hosts disagree about is logged by name, up to a limit, and counted in full."""

from __future__ import annotations

import structlog

from outlive.base import SystemClock, SystemIds
from outlive.failover import FailoverSettings, HostView, OnHypervisors, gather, merge
from outlive.failover.report import NAMED_IN_A_CYCLE, count_disagreements, log_disagreements
from outlive.placement import FlavorRow, ServerRow, VmList, join_rows
from outlive.resources import Hypervisor, ObjectMeta
from outlive.store import MemoryStore


def seen(
    listing: VmList, *hosts: HostView, trust: bool = False, names: dict[str, str] | None = None
) -> tuple[VmList, OnHypervisors]:
    return listing, merge(listing.vms, hosts, trust_hosts=trust, names=names)


def logged(observation: tuple[VmList, OnHypervisors]) -> list[dict[str, object]]:
    with structlog.testing.capture_logs() as entries:
        log_disagreements(*observation)
    return [dict(entry) for entry in entries]


def events(entries: list[dict[str, object]], name: str) -> list[dict[str, object]]:
    return [entry for entry in entries if entry["event"] == name]


async def test_a_look_reads_hosts_before_it_asks_the_source_for_vms():
    store = MemoryStore(SystemClock(), SystemIds())
    await store.create(Hypervisor(metadata=ObjectMeta(name="h1")))

    async def list_vms() -> VmList:
        await store.create(Hypervisor(metadata=ObjectMeta(name="h2")))
        return VmList()

    gathered = await gather(store, FailoverSettings(), list_vms=list_vms)
    assert tuple(host.name for host in gathered.observation.hosts) == ("h1",)


def test_a_stranger_is_named_with_its_host_and_the_total_told():
    entries = logged(seen(VmList(), HostView(name="h1", active=("ghost",)), names={"ghost": "web"}))
    (warning,) = events(entries, "vm.not_in_source")
    assert (warning["vm"], warning["name"], warning["hypervisor"]) == ("ghost", "web", "h1")
    assert warning["log_level"] == "warning"
    (total,) = events(entries, "vms.disagree")
    assert (total["not_in_source"], total["active_nowhere"]) == (1, 0)


def test_many_strangers_are_named_up_to_a_limit_and_counted_in_full():
    observation = seen(VmList(), HostView(name="h1", active=tuple(f"g{n:03}" for n in range(100))))
    entries = logged(observation)
    assert len(events(entries, "vm.not_in_source")) == NAMED_IN_A_CYCLE
    assert events(entries, "vms.disagree")[0]["not_in_source"] == 100
    assert count_disagreements(*observation)["not-in-source"] == 100


def test_a_vm_on_two_hosts_is_named_with_the_second():
    entries = logged(seen(VmList(), HostView(name="h1", active=("v",)), HostView(name="h2", active=("v",)), trust=True))
    assert [entry["hypervisor"] for entry in events(entries, "vm.on_another_host_too")] == ["h2"]


def test_the_three_reasons_for_dropping_a_vm_are_counted():
    servers = [ServerRow(id=f"v{n}", host=host, flavor_name="f") for n, host in enumerate(("gone", "h2", "h2", "h1"))]
    listing = join_rows(servers, [FlavorRow(name="f", vcpus=1, ram_mib=1)])
    observation = seen(listing, HostView(name="h1", active=("v1", "v3")), HostView(name="h2"))
    (reported,) = events(logged(observation), "vms.not_confirmed")
    assert (reported["unknown_hypervisor"], reported["another_hypervisor"], reported["nowhere"]) == (1, 1, 1)
    counted = count_disagreements(*observation)
    assert [counted[kind] for kind in ("on-unknown-hypervisor", "on-another-hypervisor", "listed-nowhere")] == [1, 1, 1]


def test_flavors_and_rows_that_could_not_be_used_are_told():
    servers = [
        ServerRow(id="a", host="h1", flavor_name="odd"),
        ServerRow(id="b", host="h1", flavor_name="nope"),
        ServerRow(id="c", host="h1", flavor_name="nope"),
        ServerRow(id="c", host="h1", flavor_name="odd"),
    ]
    entries = logged(seen(join_rows(servers, [FlavorRow(name="odd", vcpus=1, ram_mib=1, extra_specs="[")])))
    assert events(entries, "flavors.malformed_extra_specs")[0]["flavors"] == ["odd"]
    (flavor,) = events(entries, "flavor.unknown")
    assert (flavor["flavor"], flavor["vms"], flavor["log_level"]) == ("nope", 2, "debug")
    assert events(entries, "vms.rows_left_out")[0]["repeated"] == 1


def test_where_everything_agrees_nothing_is_logged():
    listing = join_rows([ServerRow(id="a", host="h1", flavor_name="f")], [FlavorRow(name="f", vcpus=1, ram_mib=1)])
    observation = seen(listing, HostView(name="h1", active=("a",)))
    assert logged(observation) == []
    assert not any(count_disagreements(*observation).values())
