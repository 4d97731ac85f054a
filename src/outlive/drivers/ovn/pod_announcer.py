"""Sends what a Kubernetes node is to announce for VMs that have moved: announcements lie in annotations of pods.

Each is sent once. Those that are there when it begins were sent by somebody, or are too old to matter: they are left.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from outlive.base import Clock, Invalid, NotFound, OutliveError, get_logger
from outlive.network import ANNOUNCEMENTS, Announcer, PodAnnouncement, PodCache
from outlive.network.pod_cache import pod_facts
from outlive.resources import decode_as
from outlive.resources.foreign import KubernetesPod
from outlive.runtime import OrderedTaskGroup
from outlive.store import Store

WAITING_LIMIT: Final = 1000
"""Pods whose announcements wait; more are left out, and caches end by themselves within a minute."""
PARALLEL: Final = 16
"""Announcements that are sent at once."""
SENT_KEPT: Final = 10_000
"""Announcements of which is remembered that they were sent."""
READ_TRIES: Final = 3
RETRY_S: Final = 0.5
_log = get_logger("ovn")


class PodAnnouncer:
    """See the module. ``store``: of the cluster; ``cache`` follows its pods."""

    def __init__(self, cache: PodCache, store: Store, announcer: Announcer, node: str, clock: Clock) -> None:
        self._cache = cache
        self._store = store
        self._announcer = announcer
        self._node = node
        self._clock = clock
        self._waiting: asyncio.Queue[str] = asyncio.Queue(WAITING_LIMIT)
        self._parallel = asyncio.Semaphore(PARALLEL)
        self._sent: OrderedDict[str, None] = OrderedDict()

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        async with OrderedTaskGroup() as group:
            group.create_task(self._cache.pods.run(), name="pods")
            await self._cache.pods.wait_synced()
            self._cache.pods.subscribe(self._note, replay=False)
            while True:
                key = await self._waiting.get()
                await self._parallel.acquire()
                group.create_task(self._send_new(key), name=f"announce {key}")

    def _note(self, old: KubernetesPod | None, new: KubernetesPod | None) -> None:
        """A pod whose announcements are new."""
        if new is None or not (announced := pod_facts(new).announced):
            return
        if old is not None and pod_facts(old).announced == announced:
            return
        if self._waiting.full():
            _log.warning("ovn.announcement_dropped", pod=new.metadata.key, waiting=WAITING_LIMIT)
            return
        self._waiting.put_nowait(new.metadata.key)

    async def _send_new(self, key: str) -> None:
        try:
            for number in range(1, READ_TRIES + 1):
                try:
                    await self.send_pod(key)
                    return
                except NotFound:
                    return
                except OutliveError as error:
                    _log.warning("ovn.not_announced", pod=key, attempt=number, error=str(error))
                await self._clock.sleep(RETRY_S)
        finally:
            self._parallel.release()

    async def send_pod(self, key: str) -> int:
        """Send what this node is to announce for a pod, and has not sent; how many frames.

        ``NotFound``: there is no such pod; ``Invalid``: its annotation cannot be read.
        """
        pod = await self._store.get(KubernetesPod, key)
        text = pod.metadata.annotations.get(ANNOUNCEMENTS, "")
        announced = decode_as(list[PodAnnouncement], text) if text else []
        own = [one for one in announced if one.hypervisor == self._node and one.id not in self._sent]
        for one in own:
            self._sent[one.id] = None
        while len(self._sent) > SENT_KEPT:
            self._sent.popitem(last=False)
        sent = 0
        for one in own:
            try:
                sent += await self._announcer.send(one.interface, _decode_frames(one), one.schedule_ms)
            except OutliveError:
                self._sent.pop(one.id, None)
                raise
        return sent


def _decode_frames(announcement: PodAnnouncement) -> list[bytes]:
    try:
        return [bytes.fromhex(one) for one in announcement.frames]
    except ValueError:
        raise Invalid(f"announcement {announcement.id} has frames that are no hexadecimal digits") from None
