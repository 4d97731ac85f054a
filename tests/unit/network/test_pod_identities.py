"""Who may write network annotations: names by their prefixes, and the file of further ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.base import BadInput, LoopClock
from outlive.drivers.kubernetes import IdentitiesFile, read_identities
from outlive.network import DEFAULT_IDENTITIES

FILE = """
identities:
- prefix: "system:node-of-ovn:"
  node: true
- prefix: "team:"
  keys: [k8s.ovn.org/pod-networks]
- prefix: allocator
  keys: [k8s.ovn.org/pod-networks]
"""


def test_names_are_found_by_their_prefix_or_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "identities.yaml"
    path.write_text(FILE)
    known = read_identities(str(path))
    node = known.find_user("system:node-of-ovn:hv-a")
    assert (node.is_node_identity, node.node) == (True, "hv-a")
    for name, allowed in (("team:blue", True), ("allocator", True), ("allocator-2", False), ("alice", False)):
        assert known.find_user(name).may_change(["k8s.ovn.org/pod-networks"]) is allowed
        assert not known.find_user(name).may_change(["k8s.ovn.org/dpu.connection-status"])
    assert known.find_user("system:ovn-node:hv-b").node == "hv-b", "those that are always known"
    assert read_identities("") == DEFAULT_IDENTITIES


async def test_a_file_is_read_again_and_one_that_is_broken_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "identities.yaml"
    path.write_text(FILE)
    clock = LoopClock()
    known, found = IdentitiesFile(str(path), clock), []
    for text in ("identities: []", "[", FILE):
        path.write_text(text)
        await clock.sleep(20)
        found.append(known().find_user("allocator").may_change(["k8s.ovn.org/pod-networks"]))
    assert found == [False, False, True]


@pytest.mark.parametrize("text", ["identities: {}", "identities: [{prefix: ''}]", "other: 1", "[", "identities: [{}]"])
def test_a_file_that_is_wrong_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    path = tmp_path / "identities.yaml"
    path.write_text(text)
    with pytest.raises(BadInput):
        read_identities(str(path))
    with pytest.raises(BadInput):
        read_identities(str(tmp_path / "none"))
