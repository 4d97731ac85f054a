"""``outlive zookeeper``: what a new cluster needs on an ensemble of ZooKeeper."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.base import Usage
from outlive.cli.commands import command, make_group
from outlive.cli.controller import ZooKeeperFile, zookeeper_store
from outlive.cli.output import write

app = make_group("ZooKeeper as the store.")


@command(app)
async def init(
    zookeeper: ZooKeeperFile = "",
    coordinators: Annotated[
        str, typer.Option("--coordinators", metavar="FILE", help="The access file of coordinators: another user.")
    ] = "",
) -> None:
    """Make the chroot and the nodes below it, as the user of controllers; existing nodes only get new ACLs.

    With --coordinators the users of both files get their permissions; without it any client may do anything.
    """
    from outlive.store.zookeeper import read_access

    store = zookeeper_store(zookeeper)
    access = store.client.access
    others = read_access(coordinators) if coordinators else None
    try:
        if others is not None and (not access.user or not others.user or others.user == access.user):
            what = "controllers and coordinators need a user each, and not the same"
            raise Usage(what, place="--coordinators", remedy="write user and password into both access files")
        await store.prepare(others)
    finally:
        await store.close()
    who = f"for {access.user} and {others.user}" if others is not None else "for anybody: nobody is kept out"
    write(f"{access.place} is ready, {who}\n")
