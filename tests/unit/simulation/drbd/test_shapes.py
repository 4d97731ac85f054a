"""What each shape of a DRBD cluster does when links, nodes and disks fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.loops import run, run_by

from outlive.base import BadInput, LoopClock, NotFound, Random, Refused
from outlive.simulation.drbd import DrbdCluster, DrbdWrite, Votes, WriteFailed, has_quorum

NODES = ("n1", "n2", "n3", "n4")
LOST_S = 12.0
"""Within this every loss is noticed."""
BACK_S = 20.0
"""Within this everybody is connected and in sync again."""

Story = Callable[[DrbdCluster], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    async def whole() -> None:
        await story(DrbdCluster(LoopClock(), Random(7), NODES))

    run(whole())


def isolate(cluster: DrbdCluster, node: str) -> None:
    for other in NODES:
        if other != node:
            cluster.cut(node, other)


def disk(cluster: DrbdCluster, node: str) -> str:
    return cluster.find_replica(node, "r0").volumes[0].disk


def quorum(cluster: DrbdCluster, node: str) -> bool:
    return cluster.find_replica(node, "r0").volumes[0].quorum


async def waits(write: asyncio.Task[DrbdWrite]) -> bool:
    done, _ = await asyncio.wait([write], timeout=1.0)
    return not done


# --- quorum


@pytest.mark.parametrize(
    ("votes", "setting", "before", "expected"),
    [
        (Votes(present=2, unknown=1), "majority", False, True),
        (Votes(present=1, unknown=2), "majority", True, False),
        (Votes(present=1, unknown=1), "majority", True, False),
        (Votes(present=1, unknown=1, tie_breakers=1), "majority", True, True),
        (Votes(present=1, unknown=1, tie_breakers=1), "majority", False, False),
        (Votes(present=1, unknown=1, tie_breakers=1, absent_tie_breakers=1), "majority", True, False),
        (Votes(present=1, outdated=1), "majority", False, True),
        (Votes(present=1, outdated=1, unknown=1), "majority", True, False),
        (Votes(present=2, unknown=1), "all", True, False),
        (Votes(present=1, unknown=2), "1", False, True),
        (Votes(present=1, unknown=2), "off", False, True),
    ],
)
def test_quorum_is_counted_as_the_kernel_does(votes: Votes, setting: str, before: bool, expected: bool) -> None:
    assert has_quorum(votes, setting, before=before) is expected


# --- three replicas


@run_by(play)
async def test_of_three_replicas_the_isolated_primary_freezes_and_is_demoted_when_it_is_back(
    cluster: DrbdCluster,
) -> None:
    cluster.create("r0", NODES[:3])
    first = await cluster.open("n1", "r0")
    await cluster.write(first)
    isolate(cluster, "n1")
    frozen = asyncio.create_task(cluster.write(first))
    await asyncio.sleep(LOST_S)
    assert cluster.find_replica("n1", "r0").suspended == ("quorum",)
    assert await waits(frozen)
    second = await cluster.open("n2", "r0")
    await cluster.write(second)
    assert cluster.find_writers("r0") == ["n2"]
    for other in NODES[1:]:
        cluster.heal("n1", other)
    with pytest.raises(WriteFailed):
        await frozen
    assert cluster.find_replica("n1", "r0").role == "Secondary"
    assert cluster.find_replica("n1", "r0").force_io_failures
    with pytest.raises(WriteFailed):
        await cluster.write(first)
    cluster.close(first)
    assert not cluster.find_replica("n1", "r0").force_io_failures
    await asyncio.sleep(BACK_S)
    assert disk(cluster, "n1") == "UpToDate"
    assert [(write.node, write.survives) for write in cluster.list_writes("r0")] == [("n1", True), ("n2", True)]
    assert cluster.newest_generation("r0") == 2


@run_by(play)
async def test_frozen_write_goes_on_when_quorum_returns_before_anybody_took_over(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    opener = await cluster.open("n1", "r0")
    isolate(cluster, "n1")
    frozen = asyncio.create_task(cluster.write(opener))
    await asyncio.sleep(LOST_S)
    cluster.heal("n1", "n2")
    assert (await frozen).node == "n1"
    assert cluster.find_replica("n1", "r0").role == "Primary"


@run_by(play)
async def test_suspended_primary_stays_apart_where_it_is_not_to_be_demoted(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], on_suspended_primary_outdated="disconnect")
    first = await cluster.open("n1", "r0")
    isolate(cluster, "n1")
    frozen = asyncio.create_task(cluster.write(first))
    await asyncio.sleep(LOST_S)
    await cluster.write(await cluster.open("n2", "r0"))
    for other in NODES[1:]:
        cluster.heal("n1", other)
    await asyncio.sleep(BACK_S)
    replica = cluster.find_replica("n1", "r0")
    assert (replica.role, disk(cluster, "n1")) == ("Primary", "Outdated")
    assert {peer.state for peer in replica.peers.values()} == {"StandAlone"}
    assert await waits(frozen)
    frozen.cancel()


@run_by(play)
async def test_one_way_cut_ends_the_connection_at_both_ends(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    cluster.cut("n1", "n2", one_way=True)
    await asyncio.sleep(LOST_S)
    assert cluster.find_replica("n1", "r0").peers["n2"].state == "Connecting"
    assert cluster.find_replica("n2", "r0").peers["n1"].state == "Connecting"


@run_by(play)
async def test_node_that_crashed_is_synchronised_and_its_data_is_not_used_meanwhile(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    opener = await cluster.open("n1", "r0")
    cluster.crash("n3")
    with pytest.raises(NotFound):
        cluster.find_replica("n3", "r0")
    await cluster.write(opener)
    cluster.boot("n3")
    assert disk(cluster, "n3") == "Consistent"
    seen = set()
    for _ in range(200):
        await asyncio.sleep(0.1)
        seen.add(disk(cluster, "n3"))
    assert "Inconsistent" in seen
    assert disk(cluster, "n3") == "UpToDate"


@run_by(play)
async def test_promotion_is_refused_while_a_reachable_node_is_primary(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    await cluster.open("n1", "r0")
    with pytest.raises(Refused, match="Multiple primaries"):
        await cluster.open("n2", "r0")


# --- partial mesh


@run_by(play)
async def test_replica_that_reaches_the_primary_through_a_third_node_only_is_outdated(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    opener = await cluster.open("n1", "r0")
    cluster.cut("n1", "n3")
    await asyncio.sleep(LOST_S)
    assert (disk(cluster, "n3"), quorum(cluster, "n3")) == ("Outdated", True)
    await cluster.write(opener)
    with pytest.raises(Refused, match="Multiple primaries"):
        await cluster.open("n3", "r0")
    cluster.heal("n1", "n3")
    await asyncio.sleep(BACK_S)
    assert disk(cluster, "n3") == "UpToDate"


@run_by(play)
async def test_survivor_waits_while_its_peer_still_believes_in_the_lost_primary(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    await cluster.open("n1", "r0")
    isolate(cluster, "n1")
    cluster.detect("n3", "n1")
    await asyncio.sleep(0.3)
    assert disk(cluster, "n3") == "Consistent"
    await asyncio.sleep(0.4)
    assert [disk(cluster, node) for node in ("n2", "n3")] == ["UpToDate", "UpToDate"]


# --- two replicas and a tie-breaker


@run_by(play)
async def test_tie_breaker_keeps_quorum_on_one_side(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:2], NODES[2:3])
    opener = await cluster.open("n1", "r0")
    isolate(cluster, "n2")
    await asyncio.sleep(LOST_S)
    assert (quorum(cluster, "n1"), quorum(cluster, "n2"), quorum(cluster, "n3")) == (True, False, True)
    await cluster.write(opener)
    isolate(cluster, "n1")
    await asyncio.sleep(LOST_S)
    assert not quorum(cluster, "n1")
    cluster.heal("n2", "n3")
    await asyncio.sleep(BACK_S)
    assert not quorum(cluster, "n2")  # it had none before
    with pytest.raises(Refused, match="No quorum"):
        await cluster.open("n2", "r0")


@run_by(play)
async def test_primary_that_lost_a_peer_acknowledges_nothing_before_all_that_it_reaches_agree(
    cluster: DrbdCluster,
) -> None:
    """Else the other replica, which the tie-breaker still believes in, could take over without the write."""
    cluster.create("r0", NODES[:2], NODES[2:3])
    opener = await cluster.open("n1", "r0")
    isolate(cluster, "n2")
    cluster.detect("n1", "n2")
    write = asyncio.create_task(cluster.write(opener))
    await asyncio.sleep(0.3)
    assert not write.done()
    cluster.crash("n1")
    cluster.heal("n2", "n3")
    with pytest.raises(WriteFailed):
        await write
    await asyncio.sleep(LOST_S)
    await cluster.write(await cluster.open("n2", "r0"))
    assert all(one.survives for one in cluster.list_writes("r0"))


@run_by(play)
async def test_write_waits_for_a_peer_that_is_connected_and_does_not_answer(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    opener = await cluster.open("n1", "r0")
    cluster.cut("n1", "n2")
    write = asyncio.create_task(cluster.write(opener))
    assert await waits(write)
    cluster.detect("n1", "n2")
    assert (await write).generation == 2


@run_by(play)
async def test_two_replicas_without_a_tie_breaker_both_lose_quorum(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:2])
    cluster.cut("n1", "n2")
    await asyncio.sleep(LOST_S)
    assert cluster.find_quorate("r0") == []


@run_by(play)
async def test_peer_that_left_in_good_order_is_outdated_and_does_not_count(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:2])
    opener = await cluster.open("n1", "r0")
    cluster.disconnect("n1", "r0", "n2")
    assert disk(cluster, "n2") == "Outdated"
    assert (quorum(cluster, "n1"), quorum(cluster, "n2")) == (True, False)
    await cluster.write(opener)
    cluster.connect("n1", "r0", "n2")
    await asyncio.sleep(BACK_S)
    assert disk(cluster, "n2") == "UpToDate"


# --- nodes without a disk


@run_by(play)
async def test_client_writes_through_the_replicas_and_freezes_without_them(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], NODES[3:])
    opener = await cluster.open("n4", "r0")
    await cluster.write(opener)
    cluster.cut("n4", "n1")
    await asyncio.sleep(LOST_S)
    assert disk(cluster, "n1") == "Outdated"
    await cluster.write(opener)
    isolate(cluster, "n4")
    await asyncio.sleep(LOST_S)
    assert cluster.find_replica("n4", "r0").suspended == ("no-data", "quorum")
    assert '"client": true' in cluster.status_text("n4", "r0")
    second = await cluster.open("n2", "r0")
    await cluster.write(second)
    assert all(write.survives for write in cluster.list_writes("r0"))


@run_by(play)
async def test_client_has_no_quorum_from_a_replica_that_has_none(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], NODES[3:])
    for one in ("n1", "n4"):
        for other in ("n2", "n3"):
            cluster.cut(one, other)
    await asyncio.sleep(LOST_S)
    assert not quorum(cluster, "n1")
    assert not quorum(cluster, "n4")


# --- settings


@run_by(play)
async def test_without_quorum_both_sides_write_and_split(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:2], quorum="off")
    first = await cluster.open("n1", "r0")
    cluster.cut("n1", "n2")
    await asyncio.sleep(LOST_S)
    second = await cluster.open("n2", "r0")
    await cluster.write(first)
    await cluster.write(second)
    assert cluster.find_writers("r0") == ["n1", "n2"]
    assert '"quorum": true' in cluster.status_text("n2", "r0")
    cluster.heal("n1", "n2")
    await asyncio.sleep(BACK_S)
    assert cluster.find_replica("n1", "r0").peers["n2"].state == "StandAlone"
    assert [write.survives for write in cluster.list_writes("r0")].count(False) == 1


@run_by(play)
async def test_io_fails_instead_of_waiting_where_it_is_set_so(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], on_no_quorum="io-error")
    opener = await cluster.open("n1", "r0")
    isolate(cluster, "n1")
    with pytest.raises(WriteFailed):
        await cluster.write(opener)
    replica = cluster.find_replica("n1", "r0")
    assert (replica.suspended, quorum(cluster, "n1")) == ((), False)


@run_by(play)
async def test_two_primaries_write_together_for_a_live_migration(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], allow_two_primaries=True)
    source, target = await cluster.open("n1", "r0"), await cluster.open("n2", "r0")
    assert cluster.find_writers("r0") == ["n1", "n2"]
    await cluster.write(source)
    cluster.close(source)
    await cluster.write(target)
    assert cluster.find_replica("n1", "r0").role == "Secondary"
    assert all(write.survives for write in cluster.list_writes("r0"))


@run_by(play)
async def test_volume_goes_on_through_its_peers_when_the_disk_fails(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], volumes=2)
    opener = await cluster.open("n1", "r0")
    cluster.fail_disk("n1", "r0", 1)
    await asyncio.sleep(1.0)
    assert [volume.disk for volume in cluster.find_replica("n1", "r0").volumes] == ["UpToDate", "Diskless"]
    await cluster.write(opener, 1)
    assert cluster.list_writes("r0")[0].survives


@run_by(play)
async def test_fresh_resource_is_suspended_until_it_is_connected(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3], connected=False)
    assert cluster.find_replica("n1", "r0").suspended == ("quorum",)
    await asyncio.sleep(BACK_S)
    assert cluster.find_replica("n1", "r0").suspended == ()
    with pytest.raises(Refused, match="Need access to UpToDate data"):
        await cluster.open("n1", "r0")
    cluster.new_current_uuid("n1", "r0")
    await cluster.write(await cluster.open("n1", "r0"))


@run_by(play)
async def test_deleted_resource_is_gone_for_those_who_have_it_open(cluster: DrbdCluster) -> None:
    cluster.create("r0", NODES[:3])
    opener = await cluster.open("n1", "r0")
    lines: list[str] = []

    async def read() -> None:
        async for line in cluster.follow_events("n2"):
            lines.append(line)

    reader = asyncio.create_task(read())
    await asyncio.sleep(1.0)
    cluster.delete("r0")
    with pytest.raises(WriteFailed):
        await cluster.write(opener)
    await asyncio.sleep(1.0)
    assert lines[-1] == "destroy resource name:r0"
    assert cluster.status_text("n2") == "[\n]\n\n"
    reader.cancel()


@pytest.mark.parametrize("options", [{"quorum": "most"}, {"on_no_quorum": "panic"}, {"diskless": ["n1"]}])
@run_by(play)
async def test_resource_that_cannot_be_is_refused(cluster: DrbdCluster, *, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        cluster.create("r0", NODES[:3], **options)
