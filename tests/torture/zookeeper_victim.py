"""A process that counts an object up on ZooKeeper, and says on its output which numbers were acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
from tests.conformance.objects import with_project
from tests.support.zookeeper import zookeeper_store

from outlive.base import OutliveError, configure_logging
from outlive.resources import VirtualMachine
from outlive.store.zookeeper import ZooKeeperAccess


async def main(access: ZooKeeperAccess) -> None:
    store = zookeeper_store(access, 9)
    obj = await store.get(VirtualMachine, "vm-0", fresh=True)
    while True:
        number = int(obj.spec.project) + 1
        try:
            obj = await store.replace(with_project(obj, str(number)))
        except OutliveError:
            try:
                obj = await store.get(VirtualMachine, "vm-0", fresh=True)
            except OutliveError:
                await asyncio.sleep(0.05)
        else:
            os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    configure_logging(level="error")
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=ZooKeeperAccess)))
