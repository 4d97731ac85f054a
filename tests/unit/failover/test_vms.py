from __future__ import annotations

import msgspec
import pytest

from outlive.failover import Disagreement, HostView, Locations, host_view, locate, merge
from outlive.placement import (
    FlavorRow,
    ServerRow,
    VmView,
    join_row,
    join_rows,
    list_resources,
    parse_extra_specs,
    view_of_resource,
)
from outlive.resources import (
    Amounts,
    Assigned,
    Holder,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Recovery,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)

GIB = 2**30


def vm(name: str, host: str) -> VmView:
    return VmView(id=name, host=host, source="database")


def host(name: str, *active: str) -> HostView:
    return HostView(name=name, active=active)


def test_vm_that_nobody_reports_counts_where_it_is_to_run_while_it_is_started_or_moved():
    due = VmView(id="m", host="h9", source="resource", status="start", due=True)
    stopped = VmView(id="s", host="h1", source="resource", status="stop")
    for trust in (True, False):
        assert merge([due, stopped], HOSTS, trust_hosts=trust).vms == (due,)
        assert locate(due, None, on_own_host=False, trust_hosts=trust) == due
        assert locate(stopped, None, on_own_host=False, trust_hosts=trust) is None
    there = [*HOSTS, host("h3", "m")]
    assert [one.host for one in merge([due], there, trust_hosts=True).vms] == ["h3"]
    assert merge([due], there, trust_hosts=False).vms == ()


def test_what_a_dead_host_reported_last_does_not_hide_a_vm_that_is_due_elsewhere():
    due = VmView(id="m", host="h1", source="resource", status="start", due=True)
    dead = HostView(name="h3", active=("m",), lost=True)
    assert merge([due], [*HOSTS, dead], trust_hosts=False).vms == (due,)
    assert locate(due, "h3", on_own_host=False, trust_hosts=False, past=True) == due
    seen = Locations(trust_hosts=False)
    seen.put_host(host("h1"))
    seen.put_host(dead)
    assert seen.locate_vm(due) == due


def test_what_a_host_reports_that_may_not_run_a_vm_does_not_hide_where_it_is_due():
    there = [*HOSTS, host("h3", "m")]
    due = VmView(id="m", host="h1", source="resource", status="start", due=True)
    for held, counts in (((), False), (("h1",), True), (("h1", "h3"), False)):
        one = msgspec.structs.replace(due, held=held)
        assert merge([one], there, trust_hosts=False).vms == ((one,) if counts else ())
    down = msgspec.structs.replace(due, held=("h1",), due=False)
    assert merge([down], there, trust_hosts=False).vms == ()


def test_vm_that_is_moved_counts_where_it_goes_once_only_a_host_that_may_not_run_it_reports_it():
    """Its source has sent it away, its target has not said yet that it came; a host that is away listed it long ago."""
    moving = VmView(id="m", host="h2", source="resource", status="migrate", due=True, held=("h1", "h2"))
    source, target, away = host("h1", "m"), host("h2"), host("h0", "m")
    assert merge([moving], [away, source, target], trust_hosts=False).vms == ()
    assert merge([moving], [away, host("h1"), target], trust_hosts=False).vms == (moving,)


def test_vm_says_who_may_run_it_once_its_own_host_may():
    def held(assigned: str, *holders: tuple[str, str]) -> tuple[str, ...]:
        entries = tuple(
            Holder(hypervisor=name, member_uid="u", epoch=1, run_id=name, role=role) for name, role in holders
        )
        status = VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=assigned), holders=entries)
        return view_of_resource(VirtualMachine(metadata=ObjectMeta(name="a"), status=status)).held

    assert held("h2") == ("h2",), "nobody has it: its own host alone may start it"
    assert held("h2", ("h1", "")) == ()
    assert held("h2", ("h1", ""), ("h2", "incoming")) == ("h1", "h2"), "it is being moved"
    assert held("h2", ("h2", ""), ("h1", "")) == ("h1", "h2")


def test_vm_that_nobody_holds_counts_where_it_is_due_though_a_host_that_is_away_had_listed_it():
    status = VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor="h2"))
    due = view_of_resource(VirtualMachine(metadata=ObjectMeta(name="m"), status=status))
    assert merge([due], [host("h0", "m"), host("h2")], trust_hosts=False).vms == (due,)


def test_vm_that_is_being_recovered_counts_where_it_was_lost_until_it_is_seen_running():
    def place(role: str, seen: str) -> str:
        source = Holder(hypervisor="h1", member_uid="u", epoch=1, run_id="r1", seen="running")
        target = Holder(hypervisor="h2", member_uid="u", epoch=1, run_id="r2", role=role, seen=seen)
        status = VirtualMachineStatus(
            phase="start",
            assigned=Assigned(hypervisor="h2"),
            holders=(source, target),
            recovery=Recovery(fence="f", phase="held", origin="h1", reason="membership-missing"),
        )
        return view_of_resource(VirtualMachine(metadata=ObjectMeta(name="m"), status=status)).host

    assert place("incoming", "") == "h1"
    assert place("incoming", "running") == "h1"
    assert place("", "") == "h1"
    assert place("", "running") == "h2", "it came there before its source was lost"


@pytest.mark.parametrize(
    ("phase", "power_state", "due"),
    [
        ("start", "running", True),
        ("restart", "running", True),
        ("migrate", "running", True),
        ("start", "stopped", False),
        ("stop", "running", False),
        ("fail", "running", False),
        ("ACTIVE", "running", False),
        ("", "running", False),
    ],
)
def test_vm_is_due_while_our_daemons_say_that_it_is_to_run(phase, power_state, due):
    status = VirtualMachineStatus(phase=phase, assigned=Assigned(hypervisor="h1"))
    one = VirtualMachine(metadata=ObjectMeta(name="a"), spec=VirtualMachineSpec(power_state=power_state), status=status)
    assert view_of_resource(one).due is due


VMS = [vm("a", "h1"), vm("b", "h1"), vm("c", "h2"), vm("d", "h9"), vm("e", "h2")]
HOSTS = [host("h2", "c", "b", "x"), host("h1", "a", "c")]


def test_trusting_hosts_a_vm_is_where_the_first_host_by_name_reports_it():
    found = merge(VMS, HOSTS, trust_hosts=True, names={"x": "stranger"})
    assert [(v.id, v.host, v.source) for v in found.vms] == [
        ("a", "h1", "hypervisor"),
        ("c", "h1", "hypervisor"),
        ("b", "h2", "hypervisor"),
    ]
    assert found.duplicates == (Disagreement(vm="c", hypervisor="h2"),)
    assert found.not_in_source == (Disagreement(vm="x", name="stranger", hypervisor="h2"),)
    assert found.nowhere_active == 2


def test_trusting_the_source_its_own_host_must_report_the_vm():
    found = merge(VMS, HOSTS, trust_hosts=False)
    assert [(v.id, v.host, v.source) for v in found.vms] == [("a", "h1", "database"), ("c", "h2", "database")]
    assert (found.on_unknown_hypervisor, found.on_another_hypervisor, found.listed_nowhere) == (1, 1, 1)


def test_the_order_of_hosts_does_not_matter():
    for trust in (True, False):
        assert merge(VMS, HOSTS, trust_hosts=trust) == merge(VMS, HOSTS[::-1], trust_hosts=trust)


def test_empty_lists_give_empty_results():
    assert merge([], HOSTS, trust_hosts=True).vms == ()
    assert merge(VMS, [], trust_hosts=True).vms == ()
    assert merge(VMS, [], trust_hosts=False).vms == ()


def test_one_vm_is_located_as_in_the_whole_list():
    for trust in (True, False):
        whole = {v.id: v for v in merge(VMS, HOSTS, trust_hosts=trust).vms}
        seen = Locations(trust_hosts=trust)
        for one in HOSTS:
            seen.put_host(one)
        for one in VMS:
            assert seen.locate_vm(one) == whole.get(one.id)
        assert seen.locate_vm(None) is None


def test_a_host_that_is_back_does_not_bring_back_what_it_ran_before():
    away = msgspec.structs.replace(VMS[0], host="h9", held=("h9",), due=True)
    back, new = HostView(name="h1", zone="z", active=(away.id,)), HostView(name="h9", zone="z", active=(away.id,))
    for trust in (True, False):
        seen = Locations(trust_hosts=trust)
        seen.put_host(back)
        assert seen.locate_vm(away).host == "h9", "its own document says so, and nobody else has reported it yet"
        seen.put_host(new)
        assert seen.locate_vm(msgspec.structs.replace(away, due=False)).host == "h9"


def test_a_stopped_instance_is_not_active():
    resource = Hypervisor(
        metadata=ObjectMeta(name="h1", labels={"topology.kubernetes.io/zone": "z"}),
        status=HypervisorStatus(instances=(Instance(id="a"), Instance(id="b", active=False))),
    )
    assert host_view(resource) == HostView(name="h1", zone="z", active=("a",), stopped=("b",))


def test_rows_without_a_host_or_with_an_unknown_flavor_are_counted_out():
    servers = [
        ServerRow(id="1", host="h1", flavor_name="f"),
        ServerRow(id="2", host="", flavor_name="f"),
        ServerRow(id="3", host="h1", flavor_name="gone"),
    ]
    found = join_rows(servers, [FlavorRow(name="f", vcpus=2, ram_mib=1), FlavorRow(name="f", vcpus=3, ram_mib=1)])
    assert [(v.id, v.cpu_milli, v.memory_bytes) for v in found.vms] == [("1", 3000, 2**20)]
    assert (found.without_host, found.unknown_flavors) == (1, {"gone": 1})
    assert join_row(servers[1], FlavorRow(name="f")) is None
    assert join_row(servers[0], None) is None
    assert join_row(None, FlavorRow(name="f")) is None


def test_of_rows_of_one_id_the_first_counts_and_the_others_are_counted():
    servers = [
        ServerRow(id="1", host="h1", flavor_name="f"),
        ServerRow(id="2", host="", flavor_name="f"),
        ServerRow(id="1", host="h2", flavor_name="gone"),
        ServerRow(id="2", host="h1", flavor_name="f"),
    ]
    found = join_rows(servers, [FlavorRow(name="f", vcpus=2, ram_mib=1)])
    assert [(v.id, v.host) for v in found.vms] == [("1", "h1")]
    assert (found.repeated, found.without_host, found.unknown_flavors) == (2, 1, {})


def test_extra_specs_that_are_no_map_of_text_count_as_none_and_are_named():
    assert parse_extra_specs("") == {}
    assert parse_extra_specs("null") == {}
    assert parse_extra_specs('{"a": "b"}') == {"a": "b"}
    assert parse_extra_specs('{"a": null, "b": "c"}') == {"a": "", "b": "c"}, "one null costs nothing else"
    for bad in ("{", "[]", '{"a": 1}', "7"):
        assert parse_extra_specs(bad) is None
    found = join_rows([ServerRow(id="1", host="h", flavor_name="f")], [FlavorRow(name="f", extra_specs="{")])
    assert found.malformed_extra_specs == ("f",)
    assert found.vms[0].extra_specs == {}


def test_our_own_vms_are_listed_by_name_once_assigned():
    def resource(name: str, host_name: str) -> VirtualMachine:
        return VirtualMachine(
            metadata=ObjectMeta(name=name),
            spec=VirtualMachineSpec(
                flavor="f", project="p", zone="z", resources=Amounts(cpu=1500, memory=GIB, gpu=1, nvme=0)
            ),
            status=VirtualMachineStatus(phase="ACTIVE", assigned=Assigned(hypervisor=host_name) if host_name else None),
        )

    found = list_resources([resource("b", "h1"), resource("c", ""), resource("a", "h2")])
    assert [(v.id, v.host, v.cpu_milli, v.memory_bytes, v.also_needs, v.source) for v in found.vms] == [
        ("a", "h2", 1500, GIB, {"gpu": 1}, "resource"),
        ("b", "h1", 1500, GIB, {"gpu": 1}, "resource"),
    ]
    assert found.without_host == 1


def test_a_vm_that_is_to_run_and_has_no_location_says_why():
    there = [host("h1", "here", "b"), HostView(name="h2", stopped=("down",))]
    vms = [vm("here", "h1"), vm("b", "h2"), vm("gone", "h9"), vm("lost", "h2"), vm("down", "h2")]
    vms.append(msgspec.structs.replace(vm("off", "h9"), stopped=True))
    found = merge(vms, there, trust_hosts=False)
    assert [one.id for one in found.vms] == ["here"]
    assert found.unplaced == {"b": "location-disputed", "gone": "host-of-vm-unknown", "lost": "vm-not-reported"}
    assert merge(vms, there, trust_hosts=True).unplaced == {"gone": "host-of-vm-unknown", "lost": "vm-not-reported"}
