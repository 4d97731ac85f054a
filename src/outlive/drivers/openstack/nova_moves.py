"""Moves Nova's servers for the descheduler: Nova is asked to migrate them live, and to find a host.

Nova says yes before it moves anything. A move that fails afterwards leaves the server as it was, so its migrations say
what became of it; those that there were before are remembered by this process alone. After a restart a move that has
failed is one that does not end.

A move is over when its migration says so: Nova has the server ``ACTIVE`` on its new host a moment before, and what
reads the migrations then would not know of the move.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from outlive.base import OutliveError, Unavailable, get_logger
from outlive.drivers.openstack.inventory import HOST_FIELDS
from outlive.drivers.openstack.nova import NovaClient, Record
from outlive.placement import ACTIVE, CompletedMove, VmLocation
from outlive.resources import object_name

MADE: Final = frozenset({"completed", "confirmed", "done", "finished"})
"""States of migrations that have moved their server."""
UNDER_WAY: Final = frozenset(
    {"accepted", "queued", "preparing", "pre-migrating", "running", "migrating", "post-migrating", "cancelling"}
)
"""States of migrations that go on."""
MOVING: Final = "MIGRATING"
"""State of a server whose migration goes on."""
FAILED: Final = frozenset({"cancelled", "error", "failed"})
REQUESTS_KEPT: Final = 1_000
"""Moves that were asked for last, of which it is known what there was before."""

_log = get_logger("openstack.moves")


class NovaMoves:
    """``VmMoves`` of servers. See the module."""

    def __init__(self, nova: NovaClient) -> None:
        self._nova = nova
        self._before: OrderedDict[str, frozenset[str]] = OrderedDict()
        """Request → migrations of its server that are none of it."""

    async def locate(self, vm: str, request: str) -> VmLocation | None:
        """Where the server is; it is ``ACTIVE`` if it runs, Nova does nothing with it and no migration goes on."""
        found = await self._nova.find_server(vm)
        if found is None:
            return None
        host, status = _host_name(found.get(HOST_FIELDS[0])), str(found.get("status") or "")
        task = found.get("OS-EXT-STS:task_state")
        state = str(task).upper() if task and status == ACTIVE else status
        if state != ACTIVE:
            return VmLocation(host=host, state=state)
        migrations = await self._nova.list_migrations(vm)
        last = max(migrations, key=_begin_key, default=None)
        if last is not None and last.get("status") in UNDER_WAY:
            return VmLocation(host=host, state=MOVING)
        return VmLocation(host=host, state=state, refusal=_find_failure(migrations, self._before.get(request)))

    async def migrate(self, vm: str, request: str) -> None:
        """Ask Nova once; ``Refused`` where it says no. Where it gives no answer it may have begun: ``locate`` tells."""
        if request in self._before:
            return
        self._before[request] = frozenset(_migration_id(one) for one in await self._nova.list_migrations(vm))
        while len(self._before) > REQUESTS_KEPT:
            self._before.popitem(last=False)
        try:
            await self._nova.migrate_live(vm)
        except Unavailable as error:
            _log.warning("nova.move_in_doubt", vm=vm, error=str(error))
        except OutliveError:
            del self._before[request]
            raise

    async def list_moves(self, vm: str) -> Sequence[CompletedMove]:
        """The migrations that were made, the oldest first."""
        made = [one for one in await self._nova.list_migrations(vm) if one.get("status") in MADE]
        return [
            CompletedMove(source=_host_name(one.get("source_compute")), target=_host_name(one.get("dest_compute")))
            for one in sorted(made, key=_begin_key)
        ]


def _find_failure(migrations: Sequence[Record], before: frozenset[str] | None) -> str:
    """What became of the move, if it failed; nothing where nobody knows which migrations there were before."""
    new = [one for one in migrations if before is not None and _migration_id(one) not in before]
    last = max(new, key=_begin_key, default=None)
    if last is None or last.get("status") not in FAILED:
        return ""
    return (
        f"Nova's migration {_migration_id(last)} to {last.get('dest_compute') or 'another host'}: {last.get('status')}"
    )


def _host_name(name: object) -> str:
    """The name of the host's object; empty where Nova names none."""
    return object_name(str(name), "host") if name else ""


def _migration_id(migration: Record) -> str:
    return str(migration.get("uuid") or migration.get("id") or "")


def _begin_key(migration: Record) -> tuple[str, int]:
    number = migration.get("id")
    return str(migration.get("created_at") or ""), number if isinstance(number, int) else 0
