"""``Console/<vm>``: the end of what a guest wrote to its serial console; and where its screen is (``Vnc``).

A console may change all the time, so it is an object of its own and no part of the VM, which many observe.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from outlive.resources.meta import KindInfo, Part, Quota, Resource, Writers

CONSOLE_BYTES: Final = 65_536
"""Of the text of one console in UTF-8: also if each of them is escaped, the object is smaller than a store takes."""
CONSOLE_LINES: Final = 100_000
"""Of one console, at most."""


class Vnc(Part, frozen=True, kw_only=True):
    """Where the screen of a run is served."""

    listen: str
    """Address on its host; IPv6 without brackets."""
    port: Annotated[int, Meta(ge=1, le=65_535)]
    """TCP port at that address."""

    @property
    def address(self) -> str:
        """As programs take it: ``ADDRESS:PORT``, an IPv6 address in brackets."""
        return f"[{self.listen}]:{self.port}" if ":" in self.listen else f"{self.listen}:{self.port}"


class Console(Resource, frozen=True, kw_only=True, tag="Console"):
    """The serial console of a VM. One document; deleted with the VM, or after a long time without output."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="consoles",
        short_names=("ocon",),
        halves=False,
        writers=Writers(
            fields={"": ("daemon",)}, creates=("daemon",), deletes=("users", "controller"), labels="refused"
        ),
        quota=Quota(objects=100_000, mebibytes=1024, owners=("host",), shares=10),
        columns=(("Host", ".host", 0), ("Changed", ".changedAt", 0)),
    )

    host: str
    """Whose daemon wrote it."""
    text: Annotated[str, Meta(max_length=CONSOLE_BYTES)] = ""
    """Its last whole lines, up to ``node.consoleLines`` and 64 KiB."""
    changed_at: datetime
    """When its text was written, by the clock of that host."""
