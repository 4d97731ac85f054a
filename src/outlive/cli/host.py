"""``outlive host primary|secondary``: which coordinator has the duties of the primary."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from outlive.base.errors import Unavailable
from outlive.base.ids import SystemIds
from outlive.cli.access import Access
from outlive.cli.commands import command, group
from outlive.cli.output import write
from outlive.node.primary import primary_is_settled, request_primary

WAIT_S = 60.0
"""How long ``--wait`` waits at most."""
LOOK_S = 0.5

app = group("The role of the primary coordinator.")

Host = Annotated[str, typer.Argument(metavar="HOST", help="A coordinator.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Return when the role has been handed over.")]


@command(app)
async def primary(access: Access, host: Host, wait: Wait = False) -> None:
    """Make a coordinator the primary: the one that has the role stops its duties and hands it over."""
    await _request(access, "primary", host, wait=wait)


@command(app)
async def secondary(access: Access, host: Host, wait: Wait = False) -> None:
    """Have the primary give up its role to another coordinator."""
    await _request(access, "secondary", host, wait=wait)


async def _request(access: Access, verb: Literal["primary", "secondary"], host: str, *, wait: bool) -> None:
    clock = access.clock
    async with access.open(write=True) as store:
        asked = await request_primary(store, clock, SystemIds().uuid(), verb, host)
        write(f"{asked.text}\n")
        if not wait or asked.id == "":
            return
        until = clock.monotonic() + WAIT_S
        while (holder := await primary_is_settled(store, asked.id)) is None:
            if clock.monotonic() > until:
                raise Unavailable(
                    f"the role was not handed over within {WAIT_S:g} s",
                    remedy="see outlive get election primary -o yaml, and the daemon's log on both hosts",
                )
            await clock.sleep(LOOK_S)
        write(f"{holder} is the primary coordinator\n")
