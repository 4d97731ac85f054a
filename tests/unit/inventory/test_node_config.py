"""The configuration of another node daemon, read into ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import outlive

from outlive.base import BadInput
from outlive.cli import SECTIONS
from outlive.inventory import Imported, read_node_config
from outlive.node.fencing import FencingConfigInput, validate_fencing
from outlive.runtime import load_settings


def network(second: int) -> dict[str, Any]:
    return {
        "domain": "example",
        "device": "bond0",
        "mtu": 9000,
        "ipv4": {
            "netmask": "24",
            "network_address": f"10.{second}.0.0",
            "floating_address": f"10.{second}.0.250",
            "node_ip_selection": "by-id",
        },
    }


def test_a_file_of_an_older_format_is_named_as_one() -> None:
    older = {"pvc": {"node": "hv1", "cluster": {"coordinators": ["hv1"]}, "system": {"intervals": {}}}}
    with pytest.raises(BadInput, match="older format, in which section pvc has everything") as caught:
        read_node_config(older, "pvcnoded.yaml", "hv1")
    assert "upgrade" in caught.value.remedy
    with pytest.raises(BadInput, match="no configuration of that daemon"):
        read_node_config({"services": {}}, "compose.yaml", "hv1")


def document(**changes: Any) -> dict[str, Any]:
    """A whole configuration; ``changes`` by dotted key with ``__`` for the dots, ``None`` takes a key away."""
    made: dict[str, Any] = {
        "path": {"system_log_directory": "/var/log/pvc", "console_log_directory": "/var/log/libvirt"},
        "cluster": {
            "name": "one",
            "all_nodes": ["hv1", "hv2", "hv3", "hv4"],
            "coordinator_nodes": ["hv1", "hv2", "hv3"],
            "networks": {name: network(n) for n, name in enumerate(("upstream", "cluster", "storage"))},
        },
        "database": {"zookeeper": {"port": 2181}},
        "timer": {"vm_shutdown_timeout": 120, "keepalive_interval": 5},
        "fencing": {
            "disable_on_ipmi_failure": False,
            "intervals": {"fence_intervals": 6, "saving_throws": 6, "suicide_intervals": 3},
            "actions": {"successful_fence": "migrate", "failed_fence": "none"},
            "ipmi": {"hostname": "hv{node_id}-bmc.example", "username": "admin", "password": "geheim"},
        },
        "migration": {"target_selector": "vcpus"},
        "logging": {"file_logging": True, "debug_logging": True, "log_colours": True},
        "api": {"listen": {"address": "0.0.0.0", "port": 7370}},
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        place = made
        for word in path:
            place = place.setdefault(word, {})
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    return made


def read(host: str = "hv2", **changes: Any) -> Imported:
    return read_node_config(document(**changes), "pvc.conf", host)


def test_a_whole_configuration() -> None:
    found = read("hv2.example")
    assert found.node == {
        "host": {"name": "hv2", "mode": "coordinator", "addresses": {"cluster": "10.1.0.2", "storage": "10.2.0.2"}},
        "node": {"shutdownLimit": "120s", "memMeans": "provisioned"},
        "log": {"level": "debug", "file": "/var/log/pvc/outlive-node.log"},
        "links": {
            "systemNetworks": {
                name: {"device": "bond0", "address": "by-id", "mtu": 9000}
                for name in ("upstream", "cluster", "storage")
            }
        },
    }
    assert [(one.name, one.spec.mode, one.spec.fencing.address) for one in found.hypervisors] == [
        ("hv1", "coordinator", "hv1-bmc.example"),
        ("hv2", "coordinator", "hv2-bmc.example"),
        ("hv3", "coordinator", "hv3-bmc.example"),
        ("hv4", "hypervisor", "hv4-bmc.example"),
    ]
    timing = found.cluster.spec.fencing.timings["steady"]
    assert (timing.renew_s, timing.silence_s, timing.throws, timing.throw_s) == (5, 30, 6, 5)
    assert (timing.guard_timeout_s, timing.watchdog_s) == (15, 15)
    assert found.cluster.spec.default_selector == "vcpus"
    (warning,) = found.warnings
    assert "the host's own network will be made by its daemon" in warning


@pytest.mark.parametrize(("given", "lines"), [(500, 500), (0, 0), (10**9, 100_000), (-1, 0)])
def test_the_lines_of_consoles_are_kept_as_before(given: int, lines: int) -> None:
    found = read(logging__console_log_lines=given)
    assert found.node["node"]["consoleLines"] == lines
    assert not [one for one in found.dropped if "console_log_lines" in one]


def test_what_has_no_place_is_said_with_the_reason() -> None:
    dropped = dict(line.split(": ", 1) for line in read(colour="red").dropped)
    assert dropped["colour"] == "is not known"
    assert {"database", "api", "fencing.disable_on_ipmi_failure", "fencing.actions", "logging.log_colours"} <= set(
        dropped
    )
    assert not {"timer", "migration.target_selector", "fencing.ipmi.password"} & set(dropped)


@pytest.mark.parametrize("alias", ["suicide_intervals", "suicide_interval", "self_fence_intervals"])
def test_self_fencing_has_three_names(alias: str) -> None:
    assert read(fencing__intervals={alias: 4}).fencing.self_fence_intervals == 4


def test_without_fencing_the_cluster_begins_in_maintenance() -> None:
    found = read(fencing__intervals__fence_intervals=0)
    assert found.cluster.spec.maintenance
    assert validate_fencing(found.fencing).warnings == ("fencing_disabled",)


def test_an_even_number_of_coordinators_is_doubtful() -> None:
    assert "even number" in read(cluster__coordinator_nodes=["hv1", "hv2"]).warnings[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster__all_nodes": None}, "cluster.all_nodes is missing"),
        ({"cluster__all_nodes": ["hv1"]}, "does not have hv2"),
        ({"cluster__coordinator_nodes": ["hv9"]}, "has hv9"),
        ({"timer__keepalive_interval": 0}, "must be above 0"),
        ({"timer__keepalive_interval": "soon"}, "keepalive_interval is str"),
        ({"timer__vm_shutdown_timeout": -1}, "-1 is below 0"),
        ({"fencing__actions__failed_fence": "explode"}, "'explode'"),
        ({"fencing__watchdog": {"mode": "perhaps"}}, "'perhaps'"),
        ({"fencing__ipmi__password": None}, "fencing.ipmi.password is missing"),
        ({"cluster__networks__cluster__ipv4__floating_address": "10.9.0.1"}, "10.9.0.1 is not in"),
        ({"cluster__networks__storage__ipv4__node_ip_selection": "10.9.0.1"}, "neither by-id nor in"),
        ({"cluster__networks__storage__ipv4__netmask": "99"}, "is no network"),
        ({"migration__target_selector": "luck"}, "'luck'"),
        ({"migration__mem_means": "luck"}, "'luck'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(**changes)
    assert words in str(caught.value)
    assert "pvc.conf" in str(caught.value)


@pytest.mark.slow
def test_the_command_writes_files_that_ours_read(tmp_path: Path) -> None:
    source = tmp_path / "pvc.conf"
    source.write_text(yaml.safe_dump(document()))
    said = outlive("import", "node-config", source, "--host", "hv1", "--out", tmp_path)
    assert said.code == 0, said.err
    assert "outlive secret set ipmi" in said.out
    assert "geheim" not in said.out + (tmp_path / "node.yaml").read_text() + (tmp_path / "cluster.yaml").read_text()
    loaded = load_settings(SECTIONS, file=tmp_path / "node.yaml", environ={}, flags={})
    assert (loaded["host"].name, loaded["node"].shutdown_limit) == ("hv1", 120.0)
    state = tmp_path / "state"
    applied = outlive("apply", "-f", tmp_path / "cluster.yaml", "--state-dir", state)
    assert applied.code == 0, applied.err


INPUT = {
    "keepalive_interval": 5,
    "fence_intervals": 6,
    "saving_throws": 6,
    "self_fence_intervals": 0,
    "watchdog_timeout": 15,
}


@pytest.mark.parametrize(
    ("changes", "errors", "warnings", "safe_after", "earliest"),
    [
        ({}, (), (), None, 60),
        ({"failed_fence": "migrate"}, ("failed_fence_needs_self_fence",), (), None, 60),
        (
            {"failed_fence": "migrate", "self_fence_intervals": 7},
            ("failed_fence_needs_watchdog",),
            ("self_fence_exceeds_fence",),
            60,
            60,
        ),
        (
            {"failed_fence": "migrate", "self_fence_intervals": 8, "watchdog_mode": "required"},
            ("self_fence_too_late",),
            ("self_fence_exceeds_fence",),
            65,
            60,
        ),
        ({"fence_intervals": 2, "saving_throws": 3}, (), ("short_detection",), None, 25),
        ({"successful_fence": "none"}, (), ("no_recovery",), None, 60),
        ({"fence_intervals": 0, "failed_fence": "migrate"}, (), ("fencing_disabled",), None, 0),
    ],
)
def test_validate_fencing(
    changes: dict[str, Any],
    errors: tuple[str, ...],
    warnings: tuple[str, ...],
    safe_after: float | None,
    earliest: float,
) -> None:
    result = validate_fencing(FencingConfigInput(**{**INPUT, **changes}))
    assert (result.errors, result.warnings) == (errors, warnings)
    assert (result.safe_after, result.earliest_recovery) == (safe_after, earliest)


def test_virtual_functions_come_along_where_they_are_enabled() -> None:
    """A card is called ``phy`` or ``device`` there."""
    devices = [{"phy": "enp1s0f0", "vfcount": 8, "mtu": 9000}, {"device": "enp1s0f1", "vfcount": 4}]
    networking = {"bridge_device": "bond0", "sriov_enable": True, "sriov_device": devices}
    assert read(guest_networking=networking).node["links"]["sriov"] == [
        {"device": "enp1s0f0", "count": 8, "mtu": 9000},
        {"device": "enp1s0f1", "count": 4},
    ]
    assert "sriov" not in read(guest_networking={**networking, "sriov_enable": False}).node.get("links", {})
    bad = {**networking, "sriov_device": [{"phy": "enp1s0f0", "vfcount": "many"}]}
    with pytest.raises(BadInput, match=r"guest_networking.sriov_device\[0\] cannot be"):
        read(guest_networking=bad)
