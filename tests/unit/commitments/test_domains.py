"""External customers: what is sold to them lies on hosts that are set aside for them, or waits until their domain is
known by name."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.sales import Market, asked, batch, host, in_market, project

from outlive.base import Unavailable
from outlive.commitments import (
    ChangeRequest,
    DomainMetadata,
    KeystoneDomain,
    Project,
    ProjectChange,
    ProjectMetadata,
    ProjectRequest,
    batch_of,
)
from outlive.resources import Hypervisor, ObjectMeta, ProjectQuota, ProjectQuotaSpec

TRAIT = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
EXTERNAL, INTERNAL = "iaas-acme", "monsoon"


def aside(name: str) -> Hypervisor:
    made = host(name)
    return replace(made, status=replace(made.status, traits=(TRAIT,)))


def of_domain(units: int, name: str = "", *, uuid: str = "aaaaaa", new: str = "confirmed") -> ProjectRequest:
    return replace(project("p1", asked(uuid, units, new=new)), domain="d1", domain_name=name)


class Keystone:
    """Domains and projects; away until somebody says otherwise."""

    def __init__(self, name: str = EXTERNAL, *, there: bool = True) -> None:
        self.name = name
        self.there = there
        self.calls = 0

    async def list_domains(self) -> tuple[KeystoneDomain, ...]:
        self.calls += 1
        if not self.there:
            raise Unavailable("Keystone is away")
        return (KeystoneDomain(id="d1", name=self.name),)

    async def list_projects(self) -> tuple[Project, ...]:
        return (Project(id="p1", domain_id="d1"), Project(id="p9", domain_id="d1"))


async def hosts_of(market: Market) -> set[str]:
    await asyncio.sleep(2)
    return {slot.status.host for slot in (await market.slots()).values()}


@run_by(in_market, [host("open", gib=128), aside("aside")])
async def test_a_batch_says_the_domain_and_its_slots_lie_where_its_vms_may_go(market: Market) -> None:
    assert await market.change(batch(of_domain(8, EXTERNAL))) == ""
    assert await hosts_of(market) == {"aside"}
    refused = await market.change(batch(of_domain(1, EXTERNAL, uuid="bbbbbb")))
    assert "filter_external_customer" in refused, "the open host is not for them"


@run_by(in_market, [host("open"), aside("aside")])
async def test_internal_customers_may_have_any_host(market: Market) -> None:
    assert await market.change(batch(of_domain(16, INTERNAL))) == ""
    assert await hosts_of(market) == {"open", "aside"}


@run_by(in_market, [host("open"), aside("aside")], domains=Keystone())
async def test_keystone_is_asked_for_a_name_that_the_batch_leaves_out(market: Market) -> None:
    assert await market.change(batch(of_domain(8))) == ""
    assert await hosts_of(market) == {"aside"}


def test_a_name_that_nobody_knows_now_is_a_refusal_with_that_reason_and_no_wrong_host() -> None:
    keystone = Keystone(there=False)

    async def story(market: Market) -> None:
        refused = await market.change(batch(of_domain(2)))
        assert "the name of domain d1 of project p1 is not known" in refused
        assert await market.slots() == {}
        keystone.there = True
        await asyncio.sleep(15)
        assert await market.change(batch(of_domain(2))) == ""
        assert await hosts_of(market) == {"aside"}

    in_market([host("open"), aside("aside")], story, domains=keystone)


def test_a_commitment_that_need_not_be_confirmed_waits_until_the_name_is_known() -> None:
    keystone = Keystone(there=False)

    async def story(market: Market) -> None:
        assert await market.change(batch(of_domain(2, new="pending"))) == ""
        await asyncio.sleep(30)
        (cr,) = (await market.commitments()).values()
        assert await market.ready("aaaaaa") == "Reserving"
        assert "the name of domain d1" in cr.status.conditions[0].message
        assert await market.slots() == {}
        keystone.there = True
        await asyncio.sleep(200)
        assert await hosts_of(market) == {"aside"}

    in_market([host("open"), aside("aside")], story, domains=keystone)


def pushed_quota() -> ProjectQuota:
    spec = ProjectQuotaSpec(project_id="p1", domain_id="d1", domain_name=EXTERNAL, availability_zone="zone-a")
    return ProjectQuota(metadata=ObjectMeta(name="quota-p1-zone-a"), spec=spec)


@run_by(in_market, [host("open"), aside("aside"), pushed_quota()])
async def test_quota_that_was_pushed_says_the_name_as_well(market: Market) -> None:
    assert await market.change(batch(of_domain(8))) == ""
    assert await hosts_of(market) == {"aside"}


@pytest.mark.slow
@run_by(in_market, [host("open", gib=256), aside("aside1"), aside("aside2")])
async def test_a_slot_that_leaves_its_host_goes_to_another_one_that_is_set_aside(market: Market) -> None:
    assert await market.change(batch(of_domain(4, EXTERNAL))) == ""
    (name,) = await hosts_of(market)
    await market.lose(name)
    await asyncio.sleep(60)
    assert await hosts_of(market) == {"aside1", "aside2"} - {name}


def test_liquid_says_the_name() -> None:
    metadata = ProjectMetadata(uuid="p1", domain=DomainMetadata(uuid="d1", name=EXTERNAL))
    change = ChangeRequest(az="zone-a", info_version=1, by_project={"p1": ProjectChange(project_metadata=metadata)})
    (found,) = batch_of(change).projects
    assert (found.domain, found.domain_name) == ("d1", EXTERNAL)
