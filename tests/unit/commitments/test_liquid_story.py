"""What Limes is told of the running cloud is what it is."""

from __future__ import annotations

import asyncio
import json

from msgspec import UNSET
from tests.support.loops import run_by
from tests.support.sales import ZONE, Market, hosting, in_market, vm

from outlive.commitments import QuotaRequest, decode

RAM, CORES, VMS = "hw_version_g_ram", "hw_version_g_cores", "hw_version_g_instances"


@run_by(in_market, hosting("h1", *(vm(f"v{number}", "h1") for number in range(3))))
async def test_capacity_and_usage_agree_and_each_vm_is_reported_with_its_commitment(market: Market) -> None:
    service = market.role.commitments.service
    await market.sell("aaaaaa", 2, then_s=60)
    capacity = await service.report_capacity([ZONE])
    usage = await service.report_usage("p1", [ZONE])
    for name, amount in ((RAM, 3), (CORES, 6), (VMS, 3)):
        assert capacity.resources[name].per_az[ZONE].usage == amount
        assert usage.resources[name].per_az[ZONE].usage == amount
    assert capacity.resources[RAM].per_az[ZONE].capacity == 8
    found = usage.resources[VMS].per_az[ZONE].subresources
    assert found is not UNSET
    assert [(one.id, one.attributes.commitment_id) for one in found] == [
        ("v0", "aaaaaa"),
        ("v1", "aaaaaa"),
        ("v2", None),
    ]


@run_by(in_market, hosting("h1", vm("v0", "h1")))
async def test_quota_that_is_pushed_is_answered_with_what_it_is_used_for(market: Market) -> None:
    body = json.dumps({"resources": {RAM: {"perAZ": {ZONE: {"quota": 5}}}}})
    request = decode(body.encode(), QuotaRequest)
    await market.role.commitments.service.put_quota("p1", request, request_id="r", requested_by="limes")
    await asyncio.sleep(1)
    quota = await market.quota()
    assert (quota.spec.quota, quota.status.total_usage[RAM]) == ({RAM: 40}, 8)
