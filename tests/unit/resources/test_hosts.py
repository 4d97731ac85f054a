"""Whether a VM may be put onto a host: one answer for recovery and for moves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outlive.resources import (
    Condition,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    ObjectMeta,
    StorageLoss,
    explain_out_of_service,
    lost_places,
)

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def host(spec: HypervisorSpec = HypervisorSpec(), status: HypervisorStatus = HypervisorStatus()) -> Hypervisor:
    return Hypervisor(metadata=ObjectMeta(name="h1"), spec=spec, status=status)


def test_a_host_of_which_nothing_bad_is_known_takes_vms() -> None:
    assert explain_out_of_service(host()) == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (host(status=HypervisorStatus(lost="h1.3.1")), "was lost by fence h1.3.1 and has not come back"),
        (host(status=HypervisorStatus(domain_state="flush")), "is being emptied"),
        (host(HypervisorSpec(drain=True)), "is to be emptied"),
        (host(HypervisorSpec(maintenance="manual")), "is in maintenance (manual)"),
        (host(HypervisorSpec(maintenance="auto")), "is in maintenance (auto)"),
        (
            host(status=HypervisorStatus(conditions=(Condition(type="Ready", status="False"),))),
            "has condition Ready=False",
        ),
        (
            host(status=HypervisorStatus(conditions=(Condition(type="HypervisorDisabled", status="Unknown"),))),
            "has condition HypervisorDisabled=Unknown",
        ),
        (
            host(status=HypervisorStatus(conditions=(Condition(type="Terminating", status="True"),))),
            "has condition Terminating=True",
        ),
    ],
)
def test_a_host_that_takes_no_vm_says_why(given: Hypervisor, why: str) -> None:
    assert explain_out_of_service(given) == why


@pytest.mark.parametrize(
    ("loss", "places"),
    [
        (None, ()),
        (StorageLoss(since=MOMENT, unreached=False, vms=1), ()),
        (StorageLoss(since=MOMENT, unreached=True, places=("rbd:vms",)), ("rbd:vms",)),
        (StorageLoss(since=MOMENT, unreached=True), ("",)),
    ],
)
def test_a_host_is_closed_to_the_places_that_it_does_not_reach_and_to_all_where_it_names_none(
    loss: StorageLoss | None, places: tuple[str, ...]
) -> None:
    given = host(status=HypervisorStatus(storage_lost=loss))
    assert (explain_out_of_service(given), lost_places(given)) == ("", places)
