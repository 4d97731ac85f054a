"""The units of packaging/systemd are what systemd takes, and start what the command line has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from outlive.cli import COMMANDS
from outlive.guard import options

FOLDER = Path(__file__).parents[3] / "packaging" / "systemd"
NETWORKS = FOLDER.parent / "outlive-node-networks.conf"
UNITS = sorted(FOLDER.iterdir())
INSTALL = Path(__file__).parents[3] / "docs" / "how-to" / "install.md"
PROGRAM = "/opt/outlive/bin/outlive"


@pytest.mark.component("systemd")
def test_systemd_takes_them(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze") or ""
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "outlive" in line]
    assert said == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_programs_that_they_start_take_these_options(unit: Path) -> None:
    for line in re.findall(rf"^Exec\w+={PROGRAM} (.*)$", unit.read_text().replace("\\\n", " "), re.M):
        name, *words = line.split()
        given = [word for word in words if word.startswith("--")]
        if name == "guard":
            known = set(options.make_parser()._option_string_actions)
        else:
            command = COMMANDS[name].load(name)
            context = typer.Context(command)
            known = {option for parameter in command.get_params(context) for option in parameter.opts}
        assert set(given) <= known, line


def _words(unit: Path, key: str) -> set[str]:
    return {word for line in re.findall(rf"^{key}=(.*)$", unit.read_text(), re.M) for word in line.split()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_who_is_to_end_before_guests_has_the_target_that_orders_them_active(unit: Path) -> None:
    """systemd orders units by a target only while that is active, and nobody else wants this one."""
    target = "virt-guest-shutdown.target"
    assert (target in _words(unit, "After")) == (target in _words(unit, "Wants"))
    assert (target in _words(unit, "After")) == (unit.name in ("outlive-node.service", "outlive-drain.service"))


@pytest.mark.parametrize("name", ["outlive-drain.service", "outlive-ready.service"])
def test_what_asks_for_a_drain_or_readiness_is_for_who_enables_it_and_has_half_an_hour(name: str) -> None:
    unit = FOLDER / name
    assert _words(unit, "ConditionPathExists") == {"/etc/outlive/drain.env"}
    assert _words(unit, "TimeoutStartSec") == {"30min"}
    assert {"outlive-node.service", "network-online.target"} <= _words(unit, "After")
    assert _words(unit, "RemainAfterExit") == {"yes"}
    if "drain" in name:
        assert _words(unit, "TimeoutStopSec") == {"30min"}
        assert {"libvirtd.service", "virtqemud.service", "ssh.service", "ceph.target"} <= _words(unit, "After")


NETWORK_RIGHTS = {
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETUID",
    "CAP_SETGID",
}
"""What links, announcements, DHCP, names and metadata take; tests/integration/test_bare_metal.py runs a daemon with the
unit's capabilities alone."""


def test_the_daemon_may_make_and_serve_networks_where_its_drop_in_says_so() -> None:
    unit = FOLDER / "outlive-node.service"
    for key, needed in (("CapabilityBoundingSet", NETWORK_RIGHTS), ("RestrictAddressFamilies", {"AF_PACKET"})):
        assert _words(unit, key) | _words(NETWORKS, key) >= needed
        assert _words(NETWORKS, key).isdisjoint(_words(unit, key)), "what other hosts need is in the unit"
    assert _words(NETWORKS, "ProtectKernelTunables") == {"no"}, "it sets net.ipv4.ip_forward"
    assert NETWORKS.name in INSTALL.read_text()


@pytest.mark.component("systemd")
def test_systemd_takes_the_daemon_with_its_drop_in(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze") or ""
    units = [one for one in UNITS if one.name in ("outlive-node.service", "outlive-guard.service", "outlive.target")]
    for unit in units:
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, sys.executable))
    folder = tmp_path / "outlive-node.service.d"
    folder.mkdir()
    text = NETWORKS.read_text().replace("/opt/outlive/bin/python", sys.executable)
    (folder / "networks.conf").write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / "outlive-node.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line or "outlive" in line] == []


EXPOSURE = 4.0
"""Of systemd-analyze security: 0 is closed, 10 open."""


@pytest.mark.component("systemd")
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_each_service_is_locked_up_as_far_as_its_job_allows(unit: Path) -> None:
    analyze = shutil.which("systemd-analyze") or ""
    done = subprocess.run(
        [analyze, "security", "--offline=yes", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    found = re.search(r"Overall exposure level for .*: ([0-9.]+) ", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) < EXPOSURE
    told, why = _exceptions()[unit.stem]
    assert abs(told - float(found[1])) < 0.25, "the manual says another figure; versions of systemd differ a little"
    assert why


def _exceptions() -> dict[str, tuple[float, str]]:
    """By unit what the manual says of it: how far it is open, and because of what."""
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \| ([0-9.]+) \| (.+) \|$", INSTALL.read_text(), re.M)
    return {name: (float(open_), why) for names, open_, why in rows for name in re.findall(r"`([a-z-]+)`", names)}


def test_no_unit_needs_a_token_of_the_role_operator_on_a_host() -> None:
    """A host's own token empties it: tests/attacks/test_roles.py."""
    assert "OUTLIVE_TOKEN=@/etc/outlive/node.token" in INSTALL.read_text()
    for unit in UNITS:
        assert re.search(r"role operator|operator.s token|token create", unit.read_text()) is None, unit.name
