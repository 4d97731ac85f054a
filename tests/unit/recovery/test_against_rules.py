"""A VM that is sent against a soft rule gets an event for it; why says against which rules it runs."""

from __future__ import annotations

import msgspec
from tests.support.loops import run_by
from tests.support.recovery import RecoveryCloud, play
from tests.support.sights import SEEN

from outlive.recovery.why import explain
from outlive.resources import AffinityRule, Assigned, Hypervisor, VirtualMachine

SOFT_APART = (AffinityRule(group="db", policy="soft-anti-affinity"),)
SOFT_TOGETHER = (AffinityRule(group="web", policy="soft-affinity"),)
APART = (AffinityRule(group="db", policy="anti-affinity"),)
_replace = msgspec.structs.replace


async def moved(cloud: RecoveryCloud, name: str, host: str) -> None:
    """A user with the permission moved it there."""
    vm = await cloud.memory.get(VirtualMachine, name)
    holder = _replace(vm.status.holders[0], hypervisor=host, member_uid=await cloud.uid(host))
    cloud.running[name] = {host}
    status = _replace(vm.status, assigned=Assigned(hypervisor=host), holders=(holder,))
    await cloud.memory.replace_status(_replace(vm, status=status))
    await cloud.clock.sleep(1)


@run_by(play)
async def test_a_vm_that_is_moved_against_a_soft_rule_has_an_event(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2", "h3")
    await cloud.vm("a", "h1", affinity=SOFT_APART)
    await cloud.vm("b", "h2", affinity=SOFT_APART)
    await cloud.clock.sleep(5)
    await moved(cloud, "a", "h3")
    assert cloud.events.of("AgainstSoftRule") == []
    await moved(cloud, "a", "h2")
    (event,) = cloud.events.of("AgainstSoftRule")
    assert (event.name, event.type) == ("a", "Warning")
    assert "h2 has b of soft anti-affinity group db of a" in event.note


@run_by(play)
async def test_the_first_of_a_group_that_leaves_a_host_together_has_none(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2", "h3")
    for name in ("a", "b"):
        await cloud.vm(name, "h1", affinity=SOFT_TOGETHER)
    await cloud.clock.sleep(5)
    host = await cloud.memory.get(Hypervisor, "h1")
    await cloud.memory.replace(_replace(host, spec=_replace(host.spec, drain=True)))
    await cloud.clock.sleep(1)
    await moved(cloud, "a", "h2")
    assert cloud.events.of("AgainstSoftRule") == []
    await moved(cloud, "b", "h3")
    assert [one.name for one in cloud.events.of("AgainstSoftRule")] == ["b"]


@run_by(play)
async def test_a_recovery_against_a_soft_rule_has_one_event(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1", affinity=SOFT_APART)
    await cloud.vm("b", "h2", affinity=SOFT_APART)
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(5)
    assert [one.name for one in cloud.events.of("AgainstSoftRule")] == ["a"]


@run_by(play)
async def test_why_names_hard_and_soft_rules_that_a_vm_runs_against_and_what_helps(cloud: RecoveryCloud) -> None:
    await cloud.hosts("h1", "h2")
    await cloud.vm("alone", "h1", affinity=APART)
    answer = await explain(cloud.memory, "alone", SEEN)
    assert (answer.remedy, [one for one in answer.chain if "rule" in one.text]) == ("", [])
    await cloud.vm("a", "h2", affinity=(*APART, *SOFT_TOGETHER), host_limit=("h1",))
    await cloud.vm("b", "h2", affinity=APART)
    await cloud.vm("c", "h1", affinity=SOFT_TOGETHER)
    answer = await explain(cloud.memory, "a", SEEN)
    said = [one.text for one in answer.chain if "runs against a rule" in one.text]
    assert all(word in text for word, text in zip(("hostLimit", "group db", "group web"), said, strict=True))
    assert answer.remedy.startswith("outlive vm move a")
