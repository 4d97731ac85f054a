"""A program of the operator's that switches what no driver knows, such as a power strip: driver ``command``.

It is a file in ``/etc/outlive/power.d``, named by ``spec.fencing.options.command``: a user who may write a
``Hypervisor`` may choose among what root has put there, and nothing else. It is called ``PROGRAM read|off|on ADDRESS``
and gets ``{"host", "username", "password", "systemUuid"}`` as JSON in the file that its environment names as
``OUTLIVE_POWER``. For ``read`` it prints ``{"state": "on|off|unknown", "systemUuid": "…"}``. It ends with 0; 4: there
is no such controller; 6: nothing happened, and nothing will; anything else: it may have switched. It must not repeat an
order.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import NotFound, Unknown
from outlive.drivers.bmc.driver import BmcTarget, PowerOrder, quote_last_line
from outlive.drivers.commands import run
from outlive.node.ports import PowerReading, PowerState

DIRECTORY: Final = Path("/etc/outlive/power.d")
NO_SUCH: Final = 4
NOTHING: Final = 6
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _ProgramAnswer(msgspec.Struct, rename="camel"):
    state: str
    system_uuid: str = ""


class ProgramDriver:
    """See the module."""

    options = frozenset({"command"})

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory

    async def send(self, order: PowerOrder, target: BmcTarget) -> PowerReading | None:
        """See ``Driver``."""
        name = target.get_option("command")
        if NAME.fullmatch(name) is None:
            why = f"spec.fencing.options.command is {name!r}"
            raise target.unavailable_error(why, f"name a program in {self._directory}")
        credential = target.credential
        given = {
            "host": target.host,
            "username": credential.username,
            "password": credential.password,
            "systemUuid": target.expected_uuid,
        }
        ended = await run(
            [
                "/bin/sh",
                "-c",
                'OUTLIVE_POWER="$0" exec "$@"',
                "{given}",
                str(self._directory / name),
                order,
                target.address,
            ],
            limit_s=target.limit_s,
            feeds={"{given}": json.dumps(given).encode()},
        )
        said = quote_last_line(ended.err) or (
            f"no answer in {target.limit_s:g} s" if ended.killed else f"exit code {ended.code}"
        )
        if ended.code in (126, 127):
            raise target.unavailable_error(
                f"{self._directory / name} cannot be run: {said}", "see its mode and its owner"
            )
        if ended.code == NO_SUCH:
            raise NotFound(f"{target.host} has no BMC: {said}", remedy="see spec.fencing")
        if order is PowerOrder.READ and ended.code == 0:
            try:
                answer = msgspec.json.decode(ended.out.encode(), type=_ProgramAnswer)
                return PowerReading(state=PowerState(answer.state), system_uuid=answer.system_uuid)
            except (msgspec.MsgspecError, ValueError):
                why = f"{name} printed no state: {quote_last_line(ended.out) or 'nothing'}"
                raise target.unavailable_error(why, "see docs/how-to/bmc.md") from None
        if ended.code == 0:
            return None
        if ended.code == NOTHING or order is PowerOrder.READ:
            raise target.unavailable_error(f"{name} says: {said}", "see what it switches")
        raise Unknown(f"it may or may not switch {order}: {name} says: {said}", remedy="its state says whether it did")

    async def check(self, target: BmcTarget) -> str:
        """See ``Driver``: a program has no question for that."""
        return ""
