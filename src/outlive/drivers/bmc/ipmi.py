"""IPMI 2.0 over the network: ``ipmitool`` in a child process, one session a call, each message sent once.

The password comes through a pipe, so that neither the process list nor the environment has it. A reading is two
commands of one session: who the system is (Get System GUID), and whether it has power. ``ipmitool`` opens a session
before it sends a command, and says so where it cannot: only then nothing can have happened.

``spec.fencing.options``: ``cipherSuite`` (17, as ipmitool has it; old controllers know 3 only) and ``privilege``
(``OPERATOR``, which may switch).
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from outlive.base import Unknown
from outlive.drivers.bmc.driver import BmcTarget, Failure, PowerOrder, failure_of, quote_last_line, uuid_of
from outlive.drivers.commands import ProgramExit, run
from outlive.node.ports import PowerReading, PowerState

PROGRAM: Final = "ipmitool"
PORT: Final = 623
PASSWORD_BYTES: Final = 20
"""IPMI 2.0 knows no longer one."""
USERNAME_BYTES: Final = 16
CIPHER_SUITE: Final = "17"
CIPHER_SUITES: Final = frozenset({"3", "8", "12", "17"})
"""With authentication, integrity and encryption."""
PRIVILEGES: Final = frozenset({"OPERATOR", "ADMINISTRATOR"})
SPARE_S: Final = 1.0
"""For what the tool does besides waiting."""
SESSION: Final = "unable to establish"
"""What ipmitool says where it has no session, so that no command was sent."""
_ORDERS: Final = {
    PowerOrder.READ: "raw 0x06 0x37\nchassis power status\n",
    PowerOrder.OFF: "chassis power off\n",
    PowerOrder.ON: "chassis power on\n",
}
_TAKEN: Final = {PowerOrder.OFF: "down/off", PowerOrder.ON: "up/on"}
_GUID: Final = re.compile(r"^(?: [0-9a-f]{2}){16}\s*$", re.MULTILINE)
_STATE: Final = re.compile(r"^Chassis Power is (on|off)\s*$", re.MULTILINE | re.IGNORECASE)
_FAILED: Final = re.compile(r"Chassis Power (?:Control to .*|Status) failed: (.+)$", re.MULTILINE)
_NO_SESSION: Final = (
    Failure(
        "address lookup", "its address {address} has no IP address", "see DNS, or spec.fencing.address", answered=False
    ),
    Failure("unauthorized name", "it has no user {user}", "make the user there, or see secret {secret}"),
    Failure("rakp 2 hmac is invalid", "it refuses the password of user {user}", "set secret {secret} again"),
    Failure(
        "invalid role", "user {user} may not have privilege {privilege}", "give it that there, for the LAN channel"
    ),
    Failure(
        "unauthorized role", "user {user} may not have privilege {privilege}", "give it that there, for the LAN channel"
    ),
    Failure(
        "privilege level", "user {user} may not have privilege {privilege}", "give it that there, for the LAN channel"
    ),
    Failure(
        "algorithm",
        "it does not know cipher suite {suite}",
        "set spec.fencing.options.cipherSuite to another one, such as 3",
    ),
    Failure(
        "cipher suite",
        "it does not know cipher suite {suite}",
        "set spec.fencing.options.cipherSuite to another one, such as 3",
    ),
    Failure("insufficient resources", "it has no free session", "close other sessions there, or reset it"),
    Failure("could not open socket", "there is no way to {address}", "see the network of this host", answered=False),
    Failure("rakp", "it broke off the opening of the session: {said}", "see its log"),
    Failure(
        "",
        "no answer from {address} over IPMI",
        "see its power, its network, and that IPMI over LAN is on there",
        answered=False,
    ),
)
_REFUSED: Final = (
    Failure("insufficient privilege", "user {user} may not switch", "give it the privilege OPERATOR there"),
    Failure("node busy", "it is busy", "the next try may succeed"),
    Failure("out of space", "it is busy", "the next try may succeed"),
    Failure("invalid command", "it does not know the command", "see that IPMI is fully enabled there"),
    Failure("", "it refuses the command: {refusal}", "see its log"),
)


class IpmiDriver:
    """See the module."""

    options = frozenset({"cipherSuite", "privilege"})

    async def send(self, order: PowerOrder, target: BmcTarget) -> PowerReading | None:
        """See ``Driver``."""
        ended = await run(
            self._build_argv(target),
            limit_s=target.limit_s + SPARE_S,
            feeds={"{password}": target.credential.password.encode() + b"\n", "{commands}": _ORDERS[order].encode()},
            env={"LC_ALL": "C"},
        )
        if SESSION in ended.err.casefold() and not _output_of(ended).strip():  # so that nothing was sent
            raise failure_of(ended.err, _NO_SESSION, **_message_fields(target, ended))
        if order is not PowerOrder.READ:
            self._check_taken(order, ended, target)
            return None
        states = _STATE.findall(_output_of(ended))
        guid = _GUID.search(_output_of(ended))
        if len(states) != 1 and guid is None:
            if ended.killed:
                raise target.unavailable_error(f"no answer in {target.limit_s:g} s", "see its load and its network")
            why = _find_refusal(ended) or quote_last_line(ended.err) or "nothing"
            raise failure_of(why, _REFUSED, **_message_fields(target, ended))
        state = PowerState(states[0].casefold()) if len(states) == 1 else PowerState.UNKNOWN
        system_uuid = ""
        if guid is not None:  # in the order of bytes in which it is what is expected, else in that of SMBIOS
            raw = bytes.fromhex(guid.group().replace(" ", "").strip())
            system_uuid = uuid_of(raw, target.expected_uuid) or str(uuid.UUID(bytes_le=raw))
        return PowerReading(state=state, system_uuid=system_uuid)

    async def check(self, target: BmcTarget) -> str:
        """See ``Driver``: every reading is of a session with the privilege to switch."""
        return ""

    def _build_argv(self, target: BmcTarget) -> list[str]:
        """Bad settings end here, before anything is sent."""
        name, port = _split(target)
        suite, privilege = target.get_option("cipherSuite", CIPHER_SUITE), target.get_option("privilege", "OPERATOR")
        if suite not in CIPHER_SUITES:
            known = ", ".join(sorted(CIPHER_SUITES, key=int))
            raise target.unavailable_error(
                f"cipher suite {suite} is none of {known}", "see spec.fencing.options.cipherSuite"
            )
        if privilege not in PRIVILEGES:
            known = ", ".join(sorted(PRIVILEGES))
            raise target.unavailable_error(
                f"privilege {privilege} is none of {known}", "see spec.fencing.options.privilege"
            )
        credential = target.credential
        if len(credential.password.encode()) > PASSWORD_BYTES or len(credential.username.encode()) > USERNAME_BYTES:
            why = f"its user name or password is longer than IPMI takes ({USERNAME_BYTES} and {PASSWORD_BYTES} bytes)"
            raise target.unavailable_error(why, f"set a shorter one there and in secret {target.secret}")
        seconds = max(1, min(255, int(target.limit_s / 2)))  # it asks twice for what the controller can do
        return [
            PROGRAM, "-v", "-I", "lanplus", "-H", name, "-p", str(port), "-U", credential.username,
            "-f", "{password}", "-C", suite, "-L", privilege, "-N", str(seconds), "-R", "1", "exec", "{commands}",
        ]  # fmt: skip

    def _check_taken(self, order: PowerOrder, ended: ProgramExit, target: BmcTarget) -> None:
        if _TAKEN[order] in _output_of(ended).casefold():
            return
        refusal = _find_refusal(ended)
        if "not supported in present state" in refusal.casefold():
            return  # off is off already, or on is on
        if refusal and "timeout" not in refusal.casefold():
            raise failure_of(refusal, _REFUSED, **_message_fields(target, ended))
        why = f"no answer in {target.limit_s:g} s" if ended.killed else quote_last_line(ended.err) or "no answer"
        raise Unknown(f"it may or may not switch {order}: {why}", remedy="its state says whether it did")


def _output_of(ended: ProgramExit) -> str:
    """Whatever it printed: what a controller has answered counts, also where the tool did not end."""
    return ended.out or ended.partial


def _find_refusal(ended: ProgramExit) -> str:
    """What the controller itself answered instead of doing what it was asked for; other commands may fail as well."""
    found = _FAILED.search(ended.err)
    return found.group(1).strip() if found is not None else ""


def _message_fields(target: BmcTarget, ended: ProgramExit) -> dict[str, str]:
    return {
        "address": target.address,
        "user": target.credential.username or "''",
        "secret": target.secret or "(none is named)",
        "suite": target.get_option("cipherSuite", CIPHER_SUITE),
        "privilege": target.get_option("privilege", "OPERATOR"),
        "said": quote_last_line(ended.err),
        "refusal": quote_last_line(_find_refusal(ended) or ended.err),
    }


def _split(target: BmcTarget) -> tuple[str, int]:
    """Host and port of ``HOST``, ``HOST:PORT`` or ``[IPv6]:PORT``; the tool never takes it for an option."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/\s-][^\[\]:/\s]*))(?::(\d{1,5}))?", target.address)
    if found is None or not 0 < int(found.group(3) or PORT) < 2**16:
        why = f"its address {target.address!r} is no host with an optional port"
        raise target.unavailable_error(why, "see spec.fencing.address, such as 10.0.0.5 or bmc-7:623")
    return found.group(1) or found.group(2), int(found.group(3) or PORT)
