"""The kernel guest itself: what its kernel has and this machine's may lack."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.component("kernel-guest"), pytest.mark.slow]


def test_guest_has_a_card_with_virtual_functions() -> None:
    """Its driver is loaded by name, as nothing loads it by itself."""
    subprocess.run(["modprobe", "igb"], check=True)
    (total,) = Path("/sys/class/net").glob("*/device/sriov_totalvfs")
    assert total.read_text().strip() == "7"


def test_guest_makes_vlan_devices() -> None:
    """The kernel loads what it needs for that by itself."""
    subprocess.run(["ip", "link", "add", "dummy-vlan", "type", "dummy"], check=True)
    subprocess.run(["ip", "link", "add", "link", "dummy-vlan", "name", "vlan7", "type", "vlan", "id", "7"], check=True)
    assert Path("/proc/net/vlan/vlan7").exists()
