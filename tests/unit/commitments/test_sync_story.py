"""Commitments follow what Limes lists, in a running cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from tests.support.sales import SETTINGS, ZONE, Market, asked, batch, host, in_market, project

from outlive.commitments import KeystoneDomain, ListedCommitment, Project
from outlive.roles import Limes

EVERY_MINUTE = msgspec.structs.replace(
    SETTINGS, commitments=msgspec.structs.replace(SETTINGS.commitments, sync_interval=60.0)
)


class Listed:
    """Keystone and Limes, as far as lists go."""

    def __init__(self, *commitments: ListedCommitment) -> None:
        self.commitments = commitments

    async def list_projects(self) -> tuple[Project, ...]:
        return (Project(id="p1", domain_id="d1"),)

    async def list_domains(self) -> tuple[KeystoneDomain, ...]:
        return (KeystoneDomain(id="d1", name="internal"),)

    async def list_commitments(self, projects: Sequence[Project]) -> tuple[ListedCommitment, ...]:
        return self.commitments


def listed(
    uuid: str, amount: int, *, status: str = "confirmed", resource: str = "hw_version_g_ram"
) -> ListedCommitment:
    return ListedCommitment(
        uuid=uuid,
        project="p1",
        domain="d1",
        service_type="compute",
        resource_name=resource,
        zone=ZONE,
        amount=amount,
        status=status,
        created_at=1,
    )


def test_what_limes_lists_is_made_grows_and_ends_with_its_slots() -> None:
    limes = Listed(listed("aaaaaa", 2), listed("cores1", 4, resource="hw_version_g_cores"))

    async def story(market: Market) -> None:
        await asyncio.sleep(60)
        assert await market.ready("aaaaaa") == await market.ready("cores1") == "Accepted"
        assert len(await market.slots("aaaaaa")) == 1
        limes.commitments = (listed("aaaaaa", 4), limes.commitments[1])
        await asyncio.sleep(70)
        assert (await market.commitments())["aaaaaa"].spec.amount == "32Gi"
        assert market.free("h1") == 64 - 32
        limes.commitments = (listed("aaaaaa", 4, status="superseded"),)
        await asyncio.sleep(70)
        assert await market.ready("aaaaaa") == "superseded"
        assert await market.slots() == {}
        assert await market.ready("cores1") == "Accepted", "what a list lacks is not over"

    in_market([host("h1")], story, settings=EVERY_MINUTE, limes=Limes(limes, limes), domains=limes)


def test_a_list_that_was_begun_before_a_batch_does_not_take_back_what_was_accepted() -> None:
    limes = Listed()

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("aaaaaa", 2)))) == ""
        limes.commitments = (listed("aaaaaa", 1),)
        await asyncio.sleep(130)
        assert (await market.commitments())["aaaaaa"].spec.amount == "16Gi"
        await asyncio.sleep(300)
        assert (await market.commitments())["aaaaaa"].spec.amount == "8Gi"

    in_market([host("h1")], story, settings=EVERY_MINUTE, limes=Limes(limes, limes), domains=limes)
