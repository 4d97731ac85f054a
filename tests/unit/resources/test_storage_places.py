"""Places of storage: which disks lie in them."""

from __future__ import annotations

import pytest

from outlive.resources import first_lost, lies_in, place_of


@pytest.mark.parametrize(
    ("disk", "place"),
    [
        ("rbd:vms/db", "rbd:vms"),
        ("rbd:vms/tenant/db", "rbd:vms/tenant"),
        ("rbd+m1,m2:vms/db", "rbd+m1,m2:vms"),
        ("file:/mnt/nfs/db/root.img", "file:/mnt/nfs/db"),
        ("block:/dev/lun-7", "block:/dev/lun-7"),
        ("drbd:db", "drbd:db"),
    ],
)
def test_disk_lies_in_the_place_that_its_name_says(disk: str, place: str) -> None:
    assert place_of(disk) == place
    assert lies_in(disk, place)


@pytest.mark.parametrize(
    ("disk", "place"),
    [
        ("rbd:vms/db", "rbd:volumes"),
        ("rbd+m1:vms/db", "rbd+m2,m3:vms"),
        ("rbd:vms/db", "file:/vms"),
        ("file:/mnt/nfs2/db", "file:/mnt/nfs"),
        ("block:/dev/lun-7", "block:/dev/lun-70"),
        ("drbd:db", "drbd:web"),
        ("local:/usr/share/OVMF.fd", ""),
    ],
)
def test_disk_of_another_place_is_not_kept_off(disk: str, place: str) -> None:
    assert not lies_in(disk, place)


@pytest.mark.parametrize(
    ("disk", "place"),
    [
        ("file:/mnt/nfs/a/b/c.img", "file:/mnt/nfs"),
        ("rbd+m1:vms/db", "rbd+m1,m2:vms"),
        ("rbd:vms/db", "rbd+m1,m2:vms"),
        ("drbd:db", "drbd:"),
        ("gluster:vol/db", "rbd:vms"),
        ("rbd:vms/db", ""),
    ],
)
def test_disk_that_may_lie_in_the_place_counts_as_in_it(disk: str, place: str) -> None:
    assert lies_in(disk, place)


def test_vm_without_disks_lies_nowhere() -> None:
    assert first_lost((), ("", "rbd:vms")) is None
    assert first_lost(("rbd:b/x",), ("rbd:a", "rbd:b")) == "rbd:b"
