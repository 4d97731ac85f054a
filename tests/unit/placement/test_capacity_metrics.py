"""What flavor groups have to sell, as metrics under the names that dashboards know."""

from __future__ import annotations

from outlive.placement.capacity_metrics import capacity_metrics
from outlive.resources import (
    Amounts,
    Condition,
    FlavorCapacity,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    ObjectMeta,
)
from outlive.runtime import Metrics

GIB = 2**30


def rendered(*groups: FlavorGroupCapacity) -> list[str]:
    metrics = Metrics()
    metrics.register_collector(lambda: capacity_metrics(groups))
    return metrics.render().decode().splitlines()


def test_every_figure_has_its_name() -> None:
    flavor = FlavorCapacity(
        flavor_name="f", placeable_hosts=1, placeable_vms=2, total_capacity_hosts=3, total_capacity_vm_slots=4
    )
    status = FlavorGroupCapacityStatus(
        flavors=(flavor,),
        committed_capacity=5,
        committed_capacity_bytes=6 * GIB,
        smallest_flavor_name="f",
        free_capacity=Amounts(memory=7 * GIB),
        exclusively_free_capacity=Amounts(memory=GIB // 2),
        exclusively_free_slots=8,
        running_instances=9,
        conditions=(Condition(type="Ready", status="True"),),
    )
    spec = FlavorGroupCapacitySpec(flavor_group="g", availability_zone="z")
    lines = rendered(FlavorGroupCapacity(metadata=ObjectMeta(name="g-z"), spec=spec, status=status))
    group, flavored = '{az="z",flavor_group="g"}', '{az="z",flavor_group="g",flavor_name="f"}'
    for name, labels, figure in (
        ("capacity_vm_slots_empty_datacenter", flavored, "4.0"),
        ("capacity_vm_slots_placeable", flavored, "2.0"),
        ("capacity_hosts_empty_datacenter", flavored, "3.0"),
        ("capacity_hosts_placeable", flavored, "1.0"),
        ("committed_gib", group, "6.0"),
        ("committed_reservations", group, "5.0"),
        ("running_instances", flavored, "9.0"),
        ("free_capacity_gib", flavored, "7.0"),
        ("exclusively_free_capacity_gib", flavored, "0.5"),
        ("exclusively_free_slots", flavored, "8.0"),
        ("capacity_ready", group, "1.0"),
    ):
        assert f"outlive_committed_resource_{name}{labels} {figure}" in lines


def test_what_is_not_known_yet_is_not_ready_and_has_no_figures() -> None:
    spec = FlavorGroupCapacitySpec(flavor_group="g", availability_zone="z")
    lines = rendered(FlavorGroupCapacity(metadata=ObjectMeta(name="g-z"), spec=spec))
    assert 'outlive_committed_resource_capacity_ready{az="z",flavor_group="g"} 0.0' in lines
    assert not any(line.startswith("outlive_committed_resource_running_instances{") for line in lines)
