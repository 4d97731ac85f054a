"""Section ``links`` of a host's configuration, as far as virtual functions go."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.base import BadInput
from outlive.cli import load_node
from outlive.node.functions import SriovDevice


def load(folder: Path, sriov: str) -> tuple[SriovDevice, ...]:
    file = folder / "node.yaml"
    file.write_text(f"server: {{url: 'http://127.0.0.1:1'}}\nhost: {{name: kvm-1}}\nlinks: {{sriov: [{sriov}]}}\n")
    return load_node(file).links.sriov


def test_no_card_is_touched_that_is_not_named(tmp_path: Path) -> None:
    assert load(tmp_path, "") == ()


def test_cards_have_a_count_and_the_usual_mtu(tmp_path: Path) -> None:
    found = load(tmp_path, "{device: eth0, count: 4}, {device: eth1, count: 2, mtu: 9000}")
    assert [(one.device, one.count, one.mtu) for one in found] == [("eth0", 4, 1500), ("eth1", 2, 9000)]


@pytest.mark.parametrize(
    "sriov",
    [
        "{device: eth0}",
        "{device: eth0, count: -1}",
        "{device: eth0, count: 4, mtu: 10}",
        "{device: '', count: 4}",
        "{device: eth0, count: 4, size: 2}",
        "{device: eth0, count: 4}, {device: eth0, count: 2}",
    ],
)
def test_nonsense_is_refused_with_its_place(tmp_path: Path, sriov: str) -> None:
    with pytest.raises(BadInput, match="sriov"):
        load(tmp_path, sriov)
