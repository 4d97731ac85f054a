from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from outlive.base import Refused
from outlive.failover import (
    GENERAL_PIPELINE,
    HANA_PIPELINE,
    Caller,
    ResolvedSize,
    common_host,
    pins_projects,
    placement_class,
    places_lost,
    resolve_size,
    write_candidates,
)
from outlive.placement import HANA_SPEC, Engine, Fleet, Intent, PipelineTable, PlacementOptions, VmView, facts_of
from outlive.placement.filters import HostDemands, StatusConditions
from outlive.resources import (
    ZONE_LABEL,
    Aggregate,
    Amounts,
    Condition,
    DomainCapabilities,
    FunctionNeed,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    ObjectMeta,
    StorageLoss,
    VirtualFunction,
)

GIB = 2**30
TYPE = "capabilities:hypervisor_type"


def vm(name: str = "v", host: str = "h1", **changes: object) -> VmView:
    view = VmView(
        id=name, host=host, zone="z", project="p", flavor="m4", cpu_milli=2500, memory_bytes=4 * GIB, extra_specs={}
    )
    return msgspec.structs.replace(view, **changes)


GROUPED = ResolvedSize(flavor_name="m8", group_name="g", cpu_milli=8000, memory_bytes=16 * GIB)
HANA = vm(extra_specs={HANA_SPEC: "Required"})
THREE_SKIPS = {"skip_history": True, "skip_inflight": True, "skip_committed_resource_tracking": True}


def options(**more: bool) -> PlacementOptions:
    return PlacementOptions(**THREE_SKIPS, **more)


def test_general_reuse_asks_read_only_with_the_size_and_group_of_the_slot():
    request = Caller().build_reuse_call(vm(), GROUPED, ignore=["h1"], req="r", greq="g").request
    assert (request.pipeline, request.intent) == (GENERAL_PIPELINE, Intent.REUSE_FAILOVER_RESERVATION)
    assert request.options == options(read_only=True)
    assert request.hints == {"_cortex_resource_group": "g"}
    assert (request.need, request.flavor_name) == (Amounts(cpu=8000, memory=16 * GIB), "m8")
    assert (request.resource_id, request.project, request.zone, request.num_instances) == ("v", "p", "z", 1)
    assert (request.ignore_hosts, request.force_hosts, request.hosts) == (("h1",), None, None)
    assert (request.request_id, request.global_request_id) == ("r", "g")
    request.options.check()


def test_general_new_locks_reservations_and_is_not_read_only():
    request = Caller().build_new_call(vm(), resolve_size(vm()), ignore=["h1"]).request
    assert (request.pipeline, request.intent) == (GENERAL_PIPELINE, Intent.RESERVE_FOR_FAILOVER)
    assert request.options == options(lock_reservations=True)
    assert request.hints == {"_cortex_resource_group": "m4"}, "without a group the VM's own flavor"


def test_general_validation_asks_about_one_host_with_the_vms_own_size():
    request = Caller().validate(vm(), "h7", greq="g").request
    assert (request.pipeline, request.intent) == (GENERAL_PIPELINE, Intent.EVACUATE)
    assert request.options == options(read_only=True, lock_reservations=True)
    assert request.hints == {}, "validation says nothing of the group"
    assert (request.hosts, request.ignore_hosts) == (("h7",), ("h1",))
    assert (request.need, request.flavor_name) == (Amounts(cpu=2500, memory=4 * GIB), "m4")
    assert (request.request_id, request.global_request_id) == ("v", "g")
    request.options.check()


def test_an_empty_own_host_is_ignored_as_an_empty_name():
    assert Caller().validate(vm(host=""), "h7").request.ignore_hosts == ("",)


def test_dedicated_calls_have_their_own_pipelines_and_no_options_image_or_group():
    caller = Caller(profile="dedicated")
    reuse = caller.build_reuse_call(vm(), GROUPED, ignore=["h1"]).request
    new = caller.build_new_call(vm(), GROUPED, ignore=["h1"]).request
    validate = caller.validate(vm(), "h7").request
    assert [r.pipeline for r in (reuse, new, validate)] == [
        "kvm-valid-host-reuse-failover-reservation",
        "kvm-new-failover-reservation",
        "kvm-acknowledge-failover-reservation",
    ]
    assert [r.intent for r in (reuse, new, validate)] == [
        Intent.RESERVE_FOR_FAILOVER,
        Intent.RESERVE_FOR_FAILOVER,
        Intent.EVACUATE,
    ]
    for request in (reuse, new, validate):
        assert (request.options, request.image_properties, request.hints) == (PlacementOptions(), {}, {})
        assert (request.need, request.flavor_name) == (Amounts(cpu=2500, memory=4 * GIB), "m4")


def test_new_uses_the_pipeline_of_the_vm():
    size = resolve_size(HANA)
    assert Caller().build_new_call(HANA, size, ignore=[]).request.pipeline == HANA_PIPELINE
    assert Caller().build_reuse_call(HANA, size, ignore=[]).request.pipeline == HANA_PIPELINE
    assert Caller().validate(HANA, "h7").request.pipeline == HANA_PIPELINE
    assert (
        Caller().build_new_call(vm(extra_specs={HANA_SPEC: "forbidden"}), size, ignore=[]).request.pipeline
        == GENERAL_PIPELINE
    )


def test_a_missing_hypervisor_type_is_filled_in():
    assert Caller().validate(vm(), "h7").request.extra_specs == {TYPE: "QEMU"}
    assert Caller().validate(vm(extra_specs={TYPE: "CH"}), "h7").request.extra_specs == {TYPE: "CH"}


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        (None, {"img_hv_type": "kvm"}),
        ("QEMU", {"img_hv_type": "kvm"}),
        ("qemu", {"img_hv_type": "kvm"}),
        ("CH", {"img_hv_type": "kvm"}),
        ("ch", {"img_hv_type": "kvm"}),
        ("VMware vCenter Server", {"hypervisor_type": "vmware"}),
        ("Ironic", {"hypervisor_type": "baremetal"}),
        ("Qemu", {}),
        ("ironic", {}),
    ],
)
def test_the_image_is_made_up_from_the_hypervisor_type(kind: str | None, image: dict[str, str]):
    asked = vm(extra_specs={TYPE: kind} if kind else {})
    assert Caller().build_reuse_call(asked, resolve_size(asked), ignore=[]).request.image_properties == image


def test_candidates_are_all_hosts_but_the_ignored_ones_in_name_order():
    call = Caller().build_new_call(vm(), resolve_size(vm()), ignore=["h2"])
    assert write_candidates(call, ["h3", "h2", "h1"]).request.hosts == ("h1", "h3")
    assert write_candidates(Caller().validate(vm(), "h7"), ["h3", "h7"]).request.hosts == ("h7",)
    with pytest.raises(Refused, match="no host besides h2"):
        write_candidates(call, ["h2"])


def test_one_class_is_one_answer():
    base = placement_class(vm(), GROUPED, with_project=False)
    assert base == placement_class(vm("w", "h9", project="q"), GROUPED, with_project=False)
    assert base != placement_class(vm(), resolve_size(vm()), with_project=False)
    assert base != placement_class(vm(zone="y"), GROUPED, with_project=False)
    assert base != placement_class(vm(extra_specs={"trait:X": "required"}), GROUPED, with_project=False)
    project = placement_class(vm(), GROUPED, with_project=True)
    assert project != placement_class(vm(project="q"), GROUPED, with_project=True)
    assert placement_class(vm(zone="a|b"), GROUPED, with_project=True) != project


def test_a_vm_asks_for_the_places_of_its_disks_that_some_host_does_not_reach_and_is_of_its_own_class_then() -> None:
    lost = StorageLoss(since=datetime(2026, 1, 1, tzinfo=UTC), unreached=True, places=("rbd:vms",))
    losing = Hypervisor(metadata=ObjectMeta(name="h"), status=HypervisorStatus(storage_lost=lost))
    here, there = (msgspec.structs.replace(vm(), disks=(disk,)) for disk in ("rbd:vms/a", "rbd:web/b"))
    caller = Caller(lost=lambda: places_lost([losing]))
    asked = [caller.build_new_call(one, resolve_size(one), ignore=()).request.places for one in (here, there)]
    assert asked == [("rbd:vms",), ()]
    assert caller.validate(here, "h").request.places == ()
    classes = {
        placement_class(one, GROUPED, with_project=False, places=caller.lost_places_of(one)) for one in (here, there)
    }
    assert len(classes) == 2
    refusal = StatusConditions().find_refusal(HostDemands(True, False, ("rbd:vms",)), facts_of(losing))
    assert refusal is not None
    assert refusal.code == "storage-unreached"
    assert StatusConditions().find_refusal(HostDemands(True, False), facts_of(losing)) is None


def test_a_vm_asks_for_its_virtual_functions_and_is_of_its_own_class_then() -> None:
    """A host without an equal one is refused, and so is one where another VM has it or is to get it."""
    need = FunctionNeed(name="eth0v0", kind="hostdev", pci="0000:01:10.0")
    with_one = msgspec.structs.replace(vm(), functions=(need,))
    caller = Caller()
    for call in (
        caller.build_new_call(with_one, resolve_size(with_one), ignore=()),
        caller.build_reuse_call(with_one, resolve_size(with_one), ignore=()),
        caller.validate(with_one, "h"),
    ):
        assert call.request.functions == (need,)
    assert len({placement_class(one, GROUPED, with_project=False) for one in (vm(), with_one)}) == 2

    def refused(**function: str) -> str:
        given = {"name": "eth0v0", "physical_function": "eth0", "pci": "0000:01:10.0", **function}
        status = HypervisorStatus(virtual_functions=(VirtualFunction(**given),))
        host = Hypervisor(metadata=ObjectMeta(name="h"), status=status)
        demands = HostDemands(True, False, (), with_one.id, (need,))
        refusal = StatusConditions().find_refusal(demands, facts_of(host))
        return refusal.code if refusal is not None else ""

    assert refused() == ""
    assert refused(used_by=with_one.id) == ""
    assert refused(used_by="another") == "function-in-use"
    assert refused(reserved_by="another") == "function-in-use"
    assert refused(name="eth0v1") == "function-missing"
    assert refused(pci="0000:01:10.1") == "function-missing"


def test_a_host_common_to_the_whole_class_is_left_out_of_its_search():
    assert common_host([vm("a"), vm("b")]) == ("h1",)
    assert common_host([vm("a"), vm("b", "h2")]) == ()


def test_the_project_matters_once_a_host_is_pinned():
    free = Hypervisor(metadata=ObjectMeta(name="h"))
    allowed = msgspec.structs.replace(free, spec=HypervisorSpec(allowed_projects=("p",)))
    tagged = msgspec.structs.replace(
        free, status=HypervisorStatus(aggregates=(Aggregate(name="a", metadata={"filter_tenant_id": "p"}),))
    )
    assert not pins_projects([free])
    assert pins_projects([free, allowed])
    assert pins_projects([free, tagged])


def test_no_text_in_extra_specs_makes_a_class_look_like_another():
    tricky = vm(extra_specs={"note": f"1;{HANA_SPEC}=required"})
    honest = vm(extra_specs={"note": "1", HANA_SPEC: "required"})
    assert placement_class(tricky, GROUPED, with_project=True) != placement_class(honest, GROUPED, with_project=True)


def test_every_call_for_a_vm_of_an_external_customer_names_its_domain_and_a_class_has_one_domain() -> None:
    aside, plain = Hypervisor(metadata=ObjectMeta(name="aside")), Hypervisor(metadata=ObjectMeta(name="open"))
    fleet = Fleet()
    for number, one in enumerate((plain, aside)):
        traits = ("CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE",) * number
        capacity = Amounts(cpu=64_000, memory=256 * GIB)
        machine = DomainCapabilities(hypervisor_type="kvm")
        ready = (Condition(type="Ready", status="True"),)
        status = HypervisorStatus(
            capacity=capacity, allocation=Amounts(cpu=0), traits=traits, domain_capabilities=machine, conditions=ready
        )
        labels = {ZONE_LABEL: "z"}
        fleet.upsert_host(
            msgspec.structs.replace(one, metadata=ObjectMeta(name=one.name, labels=labels), status=status)
        )
    fleet.domains.learn("d1", name="iaas-acme", project="p")
    fleet.domains.learn("d2", name="monsoon", project="q")
    engine = Engine(fleet, PipelineTable.with_shipped())
    caller = Caller(domain_of=engine.external_domain)
    mine, foreign = vm(), vm(project="q")
    for call in (caller.build_reuse_call(mine, GROUPED, ignore=()), caller.build_new_call(mine, GROUPED, ignore=())):
        assert call.request.hints["domain_name"] == "iaas-acme"
        assert engine.rank(call.request).hosts == ("aside",)
    assert caller.validate(mine, "open").request.hints == {"domain_name": "iaas-acme"}
    assert engine.rank(caller.validate(mine, "open").request).hosts == ()
    assert engine.rank(caller.validate(mine, "aside").request).hosts == ("aside",)
    assert "domain_name" not in caller.build_new_call(foreign, GROUPED, ignore=()).request.hints
    assert set(engine.rank(caller.build_new_call(foreign, GROUPED, ignore=()).request).hosts) == {"open", "aside"}
    domains = {one.project: caller.domain_of(one.project) for one in (mine, foreign)}
    assert domains == {"p": "iaas-acme", "q": ""}
    assert len({placement_class(mine, GROUPED, with_project=False, domain=one) for one in domains.values()}) == 2
