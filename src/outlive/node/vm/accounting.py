"""What the virtual machines of one host take, as it publishes it.

During a live move the source counts the virtual machine as allocated, because it still runs there, and the target as
provisioned, because it is assigned there: both keep room (docs/reference/node-decisions.md#accountnode).
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.numbers import Amount, Number
from outlive.runtime.decisions import Decision


class AccountedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that is on the host, assigned to it, or both. Memory in MiB."""

    uuid: str
    node: str | None
    active_here: bool
    paused: bool = False
    live_memory: Amount = 0
    """What it has now, where it runs."""
    xml_memory: Amount = 0
    """What it is configured to have."""
    vcpus: Amount = 0
    state: str = ""


class AccountInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host and its virtual machines."""

    node: str
    memory_total: Amount
    vms: tuple[AccountedVm, ...]


class AccountResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures. Memory in MiB."""

    allocated: Number
    provisioned: Number
    vcpu_allocated: Number
    domains_count: int
    """Domains that the hypervisor has, paused ones included."""
    running: tuple[str, ...]
    stats_for: tuple[str, ...]
    """Whose statistics may be asked for: a paused domain would let the question hang."""
    overprovisioned: bool


def account_node(given: AccountInput) -> AccountResult:
    """Add up; everything in the order in which it was given."""
    running = [vm for vm in given.vms if vm.active_here and not vm.paused]
    down = [vm for vm in given.vms if vm.node == given.node and (vm.paused or not vm.active_here)]
    allocated = sum(vm.live_memory for vm in running)
    provisioned = allocated + sum(vm.xml_memory for vm in down)
    names = tuple(vm.uuid for vm in running)
    return AccountResult(
        allocated=allocated,
        provisioned=provisioned,
        vcpu_allocated=sum(vm.vcpus for vm in running),
        domains_count=sum(vm.active_here for vm in given.vms),
        running=names,
        stats_for=names,
        overprovisioned=provisioned > given.memory_total,
    )


ACCOUNT_NODE: Final = Decision(
    "account.node", account_node, AccountInput, AccountResult, "What a host's virtual machines take", lambda _: True
)
