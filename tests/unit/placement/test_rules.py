"""Whether a VM may be brought up on a host: every rule of ``outlive.placement.rules``."""

from __future__ import annotations

import pytest

from outlive.placement import Group, Peers, VmConstraints, demands_of, facts_of, judge
from outlive.resources import (
    NOWHERE,
    ZONE_LABEL,
    AffinityPolicy,
    AffinityRule,
    Aggregate,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    ObjectMeta,
    PreferredHosts,
    VirtualMachine,
    VirtualMachineSpec,
)
from outlive.resources.reasons import PlaceReason, render


def rule(group: str, policy: AffinityPolicy) -> AffinityRule:
    return AffinityRule(group=group, policy=policy)


APART, TOGETHER = rule("db", "anti-affinity"), rule("web", "affinity")


def code(vm: VmConstraints, host: str, peers: Peers) -> str:
    refusal = judge(vm, host, peers).refusal
    return refusal.code if refusal is not None else ""


def test_a_member_of_an_anti_affinity_group_stays_off_the_hosts_of_the_others():
    peers = Peers([Group(rule=APART, members={"a": ("h1",), "b": ("h2", "h3")})])
    vm = VmConstraints(id="a", rules=(APART,))
    assert code(vm, "h1", peers) == ""
    assert code(vm, "h2", peers) == code(vm, "h3", peers) == PlaceReason.ANTI_AFFINITY
    refusal = judge(vm, "h2", peers).refusal
    assert refusal is not None
    assert render(refusal).text == "h2 has b of anti-affinity group db of a, or is to get it"


def test_a_member_of_an_affinity_group_goes_where_others_are_and_anywhere_while_they_are_nowhere():
    peers = Peers()
    vm = VmConstraints(id="a", rules=(TOGETHER,))
    assert code(vm, "h9", peers) == ""
    peers.put("b", (TOGETHER,), ("h2",))
    assert code(vm, "h2", peers) == ""
    assert code(vm, "h9", peers) == PlaceReason.AFFINITY
    peers.put("b", (TOGETHER,), ())
    assert code(vm, "h9", peers) == ""


def test_several_rules_bind_together():
    peers = Peers([Group(rule=APART, members={"b": ("h2",)}), Group(rule=TOGETHER, members={"c": ("h2", "h3")})])
    vm = VmConstraints(id="a", rules=(APART, TOGETHER))
    assert [code(vm, host, peers) for host in ("h1", "h2", "h3")] == [
        PlaceReason.AFFINITY,
        PlaceReason.ANTI_AFFINITY,
        "",
    ]


def test_soft_rules_refuse_nothing_and_are_told():
    soft = rule("db", "soft-anti-affinity"), rule("web", "soft-affinity")
    peers = Peers([Group(rule=soft[0], members={"b": ("h2",)}), Group(rule=soft[1], members={"c": ("h3",)})])
    vm = VmConstraints(id="a", rules=soft)
    verdicts = {host: judge(vm, host, peers) for host in ("h1", "h2", "h3")}
    assert all(verdict.allowed for verdict in verdicts.values())
    assert [[one.code for one in verdicts[host].against] for host in verdicts] == [
        [PlaceReason.SOFT_AFFINITY],
        [PlaceReason.SOFT_ANTI_AFFINITY, PlaceReason.SOFT_AFFINITY],
        [],
    ]
    assert max(verdicts, key=lambda host: verdicts[host].merit) == "h3"


def test_the_same_group_with_another_policy_is_another_group():
    peers = Peers([Group(rule=rule("db", "soft-anti-affinity"), members={"b": ("h2",)})])
    assert judge(VmConstraints(id="a", rules=(APART,)), "h2", peers).allowed


def test_strict_preferred_hosts_limit_a_vm_and_others_only_weigh():
    weights = {"h1": 10, "h2": 5}
    strict = VirtualMachineSpec(preferred_hosts=PreferredHosts(weights=weights, strict=True))
    vm = demands_of(VirtualMachine(metadata=ObjectMeta(name="a"), spec=strict))
    assert [judge(vm, host).allowed for host in ("h1", "h2", "h3")] == [True, True, False]
    loose = VmConstraints(id="a", preferred=weights)
    assert [judge(loose, host).weight for host in ("h1", "h2", "h3")] == [10, 5, 0]
    assert VirtualMachineSpec(host_limit=("h2", "h9"), preferred_hosts=strict.preferred_hosts).allowed_hosts == ("h2",)
    assert VirtualMachineSpec(host_limit=("h9",), preferred_hosts=strict.preferred_hosts).allowed_hosts == NOWHERE


@pytest.mark.parametrize(
    ("vm", "why"),
    [
        (VmConstraints(id="a", zone="z2", project="p"), "the host is in zone z1"),
        (VmConstraints(id="a", project="q"), "the host is for 2 other project(s), not for q"),
        (VmConstraints(id="a", project="p2"), "its aggregates are for 1 other project(s), not p2"),
        (
            VmConstraints(id="a", project="p", extra_specs={"trait:GPU": "required"}),
            "trait GPU is required and missing",
        ),
        (
            VmConstraints(id="a", project="p", extra_specs={"trait:OLD": "forbidden"}),
            "trait OLD is forbidden and present",
        ),
        (VmConstraints(id="a", zone="z1", project="p"), ""),
    ],
)
def test_a_host_must_be_what_the_vm_asks_for(vm: VmConstraints, why: str):
    host = Hypervisor(
        metadata=ObjectMeta(name="h1", labels={ZONE_LABEL: "z1"}),
        spec=HypervisorSpec(allowed_projects=("p", "p2"), custom_traits=("OLD",)),
        status=HypervisorStatus(aggregates=(Aggregate(name="x", metadata={"filter_tenant_id": "p"}),)),
    )
    if vm.project == "p" and not why:
        host = Hypervisor(metadata=host.metadata, spec=HypervisorSpec(allowed_projects=("p",)))
    refusal = judge(vm, "h1", facts=facts_of(host)).refusal
    assert (str(refusal.fields["why"]) if refusal is not None else "").startswith(why)
    assert (refusal is None) == (why == "")


def test_rules_of_a_vm_are_those_of_its_server_group_and_the_further_ones_each_once():
    spec = VirtualMachineSpec(server_group="db", server_group_policy="anti-affinity", affinity=(TOGETHER, APART))
    assert spec.affinity_rules == (APART, TOGETHER)
    assert VirtualMachineSpec(server_group="db").affinity_rules == ()
