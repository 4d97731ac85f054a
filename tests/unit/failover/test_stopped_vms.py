"""Everybody agrees on which VMs are down: hosts, recovery, slots, the verifier, status and the command line."""

from datetime import UTC, datetime
from typing import Any

import pytest

from outlive.failover import HostView, Locations
from outlive.failover.verify.fleet import _is_down
from outlive.node.vm import is_at_rest, shown_state
from outlive.placement import view_of_resource
from outlive.resources import (
    Assigned,
    Holder,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    is_down_for_good,
    is_to_run,
)
from outlive.resources.reasons import VmReason

TABLE = [
    # what happened: phase, powerState, reason, deleting -> is to run, is down, as `vm list` shows it
    ("started", "start", "running", "", False, True, False, "start"),
    ("restarts", "restart", "running", "", False, True, False, "restart"),
    ("moves live", "migrate-live", "running", "", False, True, False, "migrate-live"),
    ("moves cold", "migrate", "running", "", False, True, False, "migrate"),
    ("crashed, and is started again", "start", "running", VmReason.CRASHED, False, True, False, "start"),
    ("shuts down by request", "shutdown", "running", "", False, False, True, "shutdown"),
    ("shuts down to be disabled", "shutdown", "running", VmReason.TO_BE_DISABLED, False, False, True, "shutdown"),
    ("stopped by request", "stop", "running", "", False, False, True, "stop"),
    ("disabled by request", "disable", "running", "", False, False, True, "disable"),
    ("stopped by a drain", "stop", "running", VmReason.STOPPED_BY_DRAIN, False, False, True, "stop"),
    ("its start failed for good", "fail", "running", VmReason.START_FAILED, False, False, True, "fail"),
    ("its spec says stopped while it runs", "start", "stopped", "", False, False, True, "shutdown"),
    ("its spec has stopped it", "stop", "stopped", VmReason.STOPPED_BY_SPEC, False, False, True, "stop"),
    ("its spec says running again", "stop", "running", VmReason.STOPPED_BY_SPEC, False, True, False, "start"),
    ("deleted while a host may run it", "start", "running", "", True, False, True, "deleting"),
]


def _vm(phase: str, power: Any, reason: str, deleting: bool, *, holders: tuple[Holder, ...] = ()) -> VirtualMachine:
    deleted = datetime(2026, 1, 1, tzinfo=UTC) if deleting else None
    return VirtualMachine(
        metadata=ObjectMeta(name="vm-1", deletion_timestamp=deleted),
        spec=VirtualMachineSpec(power_state=power),
        status=VirtualMachineStatus(phase=phase, reason=reason, assigned=Assigned(hypervisor="kvm-1"), holders=holders),
    )


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_vm_is_down_for_everybody_or_for_nobody(row: tuple[Any, ...]) -> None:
    _, phase, power, reason, deleting, to_run, down, shown = row
    vm = _vm(phase, power, reason, deleting)
    view = view_of_resource(vm)
    empty = Locations(trust_hosts=False)
    empty.put_host(HostView(name="kvm-1"))
    assert (is_to_run(vm), is_down_for_good(vm), shown_state(vm)) == (to_run, down, shown)
    assert view.stopped is down
    assert (view.held == ()) is down, "an empty host holds no room for it"
    assert is_at_rest(vm) is not to_run
    nowhere = empty.locate_vm(view) is None and empty.unplaced_reason(view) is None
    assert nowhere is down, "neither slots nor a fault for what nobody is to start"
    assert (power == "stopped" or deleting or _is_down(vm.status)) is down, "the verifier reads it alike"


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_what_still_runs_counts_where_it_runs_whatever_is_wanted(row: tuple[Any, ...]) -> None:
    _, phase, power, reason, deleting, *_ = row
    vm = _vm(phase, power, reason, deleting, holders=(Holder(hypervisor="kvm-1", seen="running"),))
    hosts = Locations(trust_hosts=False)
    hosts.put_host(HostView(name="kvm-1", active=("vm-1",)))
    assert hosts.locate_vm(view_of_resource(vm)) is not None
