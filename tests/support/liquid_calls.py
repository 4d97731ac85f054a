"""Calls of LIQUID over HTTP to a server with a small market: what Limes sends, and what it gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from outlive.api import KeystoneAccess, Role
from outlive.commitments import CommitmentSettings
from tests.support.api import Api, api
from tests.support.liquid import EVERYTHING, LiquidWorld, fixed_group, liquid, variable_group
from tests.support.loops import run_real

BASE = "/commitments/v1"
INFO, CHANGE, CAPACITY = f"{BASE}/info", f"{BASE}/change-commitments", f"{BASE}/report-capacity"
USAGE, QUOTA = f"{BASE}/projects/p1/report-usage", f"{BASE}/projects/p1/quota"
OFF = CommitmentSettings(
    flavor_group_resources={"*": EVERYTHING},
    enable_change_commitments=False,
    enable_report_usage=False,
    enable_report_capacity=False,
    enable_quota=False,
)
UUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@dataclass
class Limes:
    """The caller, and what answers it."""

    world: LiquidWorld
    api: Api

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any, Any]:
        options.setdefault("role", Role.LIQUID)
        if body is not None:
            options["data"] = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.api.call(method, path, **options)

    async def version(self) -> int:
        version: int = (await self.call("GET", INFO))[1]["version"]
        return version

    async def change(self, **members: Any) -> tuple[int, Any, Any]:
        return await self.call("POST", CHANGE, change(await self.version(), **members))

    def sample(self, text: str) -> list[str]:
        """Lines of the metrics that begin with this text."""
        metrics = self.world.metrics.render().decode()
        return [line for line in metrics.splitlines() if line.startswith(f"outlive_committed_resource_{text}")]


def change(version: int, *, az: str = "a", dry_run: bool = False, uuids: tuple[str, ...] = (UUID,)) -> dict[str, Any]:
    commitments = [{"uuid": uuid, "oldStatus": None, "newStatus": "confirmed", "amount": 1} for uuid in uuids]
    resource = {"totalConfirmedBefore": 0, "totalConfirmedAfter": len(uuids), "commitments": commitments}
    return {
        "az": az,
        "dryRun": dry_run,
        "infoVersion": version,
        "byProject": {"p1": {"byResource": {"hw_version_s4_ram": resource}}},
    }


@asynccontextmanager
async def limes(keystone: KeystoneAccess | None = None, **options: Any) -> AsyncIterator[Limes]:
    groups = options.pop("groups", (fixed_group(), variable_group()))
    async with (
        liquid(*groups, **options) as world,
        api(world.store, commitments=world.service, keystone=keystone) as server,
    ):
        yield Limes(world, server)


def claimed(claim: Callable[[Limes], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with limes(**options) as caller:
            await claim(caller)

    run_real(run())
