"""S1: a VM's disk has at most one writer, and the VM answers at its addresses at most once. And: who runs is held."""

from __future__ import annotations

from outlive.node.ports.hypervisor import DomainState
from outlive.resources import VirtualMachine
from outlive.simulation.invariants.truth import Truth


def one_writer(truth: Truth, vm: str) -> str:
    """S1a. Two hosts whose domain of it runs and is not shut out of its disks."""
    hosts = truth.holding.get(vm, ())
    if len(hosts) < 2:
        return ""
    writers = [
        host for host in truth.running(vm) if truth.disks.reaches_disks(host, truth.hypervisors[host].domains[vm])
    ]
    return f"{' and '.join(writers)} write its disks" if len(writers) > 1 else ""


def never_from_the_past(truth: Truth, vm: str) -> str:
    """S1a, over time: a domain whose state was handed over and ran elsewhere runs again, on disks that went on."""
    for host in truth.holding.get(vm, ()):
        domain = truth.hypervisors[host].domains.get(vm)
        if domain is not None and domain.left and domain.state is DomainState.RUNNING:
            return f"runs on {host} from a state that it had left for another host"
    return ""


def one_presence(truth: Truth, vm: str) -> str:
    """S1b. Two hosts whose domain of it runs and answers; a VM may accept that of a host that is off its disks."""
    hosts = truth.holding.get(vm, ())
    if len(hosts) < 2:
        return ""
    there = [
        host for host in truth.running(vm) if truth.disks.reaches_network(host, truth.hypervisors[host].domains[vm])
    ]
    if len(there) < 2:
        return ""
    excepted = [
        host
        for host in there
        if truth.hypervisors[host].domains[vm].accept_duplicate
        and not truth.disks.reaches_disks(host, truth.hypervisors[host].domains[vm])
    ]
    return f"{' and '.join(there)} answer at its addresses" if len(there) - len(excepted) > 1 else ""


def held_where_it_runs(truth: Truth, name: str, vm: VirtualMachine | None) -> str:
    """What rests under S1: a domain that runs has an entry in ``holders``, until the host is known not to run it.

    A VM that was deleted has no document that could hold an entry; an entry of a host that is fenced may be dropped; a
    store that was restored knows only of hosts that have registered since.
    """
    if vm is None:
        return ""
    for host in truth.running(name):
        domain = truth.hypervisors[host].domains[name]
        if any(one.hypervisor == host and one.run_id == domain.run_id for one in vm.status.holders):
            continue
        member = truth.store.look_member(host)
        if member is not None and member.dead_through >= domain.epoch:
            continue
        shut_out = not truth.disks.reaches_disks(host, domain)
        if not shut_out and host not in truth.lied and not truth.forgotten(host):
            return f"it runs on {host} as run {domain.run_id} of epoch {domain.epoch}, which is not among its holders"
    return ""
