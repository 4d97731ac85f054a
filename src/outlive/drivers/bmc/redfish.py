"""Redfish: a few requests, orders sent once, by a child process over a connection that is checked first.

Identity and state are of one document, the system (``UUID``, ``PowerState``); what is on its way to a state, such as
``PoweringOff``, is ``unknown``. ``spec.fencing.address`` is ``HOST``, ``HOST:PORT`` or the URL of the system,
``https://HOST/redfish/v1/Systems/ID``, which a controller with more than one needs.

``spec.fencing.options``: ``fingerprint`` (``sha256:…`` of its certificate), ``certificateAuthority`` (PEM), or
``insecure: "true"`` (neither is checked, and plain ``http`` is taken); without any of them its certificate has to be
one that this host trusts. ``auth``: ``basic`` or ``session``; without it basic authentication, and a session where the
BMC refuses that and offers sessions.

Between calls the driver keeps, for each BMC and credential, the session and the address to which the system takes its
orders: a BMC has few sessions, and an order should not wait for a reading. Of identity and state nothing is kept.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from outlive.base import Unavailable, Unknown
from outlive.drivers.bmc.driver import BmcTarget, Credential, Failure, PowerOrder, failure_of, quote_last_line, uuid_of
from outlive.drivers.commands import run
from outlive.node.ports import PowerReading, PowerState

CHILD: Final = Path(__file__).with_name("redfish_request.py")
SPARE_S: Final = 2.0
"""For starting the child."""
FINGERPRINT: Final = re.compile(r"sha256:(?:[0-9a-f]{2}:?){32}", re.IGNORECASE)
_STATES: Final = {"On": PowerState.ON, "Off": PowerState.OFF}
_RESETS: Final = {PowerOrder.READ: "", PowerOrder.OFF: "ForceOff", PowerOrder.ON: "On"}
AUTHS: Final = ("", "basic", "session")
KEPT: Final = 10_000
"""BMCs of which something is kept between calls; of more, the least lately used is forgotten."""
CONFIGURE: Final = "ConfigureComponents"
"""The privilege that Redfish's registry asks for, to reset a system; ``ReadOnly`` is the standard role without it."""
_ERRORS: Final = (
    Failure(
        "status-401",
        "it refuses user {user} or the password: {said}",
        "set secret {secret} again; where it takes sessions only, set spec.fencing.options.auth to session",
    ),
    Failure("status-403", "user {user} may not do that: {said}", "give it the role Operator there"),
    Failure(
        "status-404",
        "it has no {url}: {said}",
        "name the system in spec.fencing.address: https://HOST/redfish/v1/Systems/ID",
    ),
    Failure("status-", "it answers with HTTP {word}: {said}", "see its log"),
    Failure("redirect", "it sends us elsewhere, to {said}", "name the system where it is in spec.fencing.address"),
    Failure("session", "it gives user {user} no session: {said}", "see who holds its sessions; they end by themselves"),
    Failure("systems", "it has not one system but these: {said}", "name one in spec.fencing.address"),
    Failure(
        "fingerprint", "its certificate is {said}", "if it was renewed, set spec.fencing.options.fingerprint to that"
    ),
    Failure("certificate", "its certificate is not trusted: {said}", "pin it with spec.fencing.options.fingerprint"),
    Failure("tls", "no TLS with it: {said}", "see its address and its TLS settings"),
    Failure("name", "its address {url} has no IP address: {said}", "see DNS, or spec.fencing.address", answered=False),
    Failure("silent", "no answer from {url} in {limit} s", "see its load and its network", answered=False),
    Failure("network", "no connection to {url}: {said}", "see its power and its network", answered=False),
    Failure("settings", "its settings are wrong: {said}", "see spec.fencing", answered=False),
    Failure("answer", "its answer is not Redfish: {said}", "see spec.fencing.address"),
)


@dataclass(frozen=True, slots=True)
class _BmcCache:
    """What is kept of a BMC between calls."""

    session: dict[str, str] | None = None
    target: str = ""
    """Where its system takes orders."""


class RedfishDriver:
    """See the module."""

    options = frozenset({"fingerprint", "certificateAuthority", "insecure", "auth"})

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Credential], _BmcCache] = OrderedDict()

    async def send(self, order: PowerOrder, target: BmcTarget) -> PowerReading | None:
        """See ``Driver``."""
        url = _system_url(target)
        said, err = await self._call(url, target, reset=_RESETS[order])
        if order is PowerOrder.READ:
            if "system" in said:
                return reading_of(said["system"], target.expected_uuid)
            raise _build_failure(said, url, err, target)
        status = said.get("status")
        if isinstance(status, int) and 200 <= status < 300:
            return None
        if isinstance(status, int) and (status in (401, 403, 404, 405) or status == 503):
            raise _build_failure({**said, "error": f"status-{status}"}, url, "", target)
        if isinstance(status, int) and status in (400, 409) and _STATES.get(str(said.get("state"))) == str(order):
            return None  # it is in that state already
        if said.get("sent", True) and not str(said.get("error", "")).startswith("status-"):
            why = message_of(str(said.get("text") or said.get("error") or err or "no answer"))
            raise Unknown(f"it may or may not switch {order}: {why}", remedy="its state says whether it did")
        raise _build_failure(said, url, err, target)

    async def check(self, target: BmcTarget) -> str:
        """See ``Driver``."""
        said, _ = await self._call(_system_url(target), target, check=True)
        return obstacle_of(said, target.credential.username)

    async def _call(
        self, url: str, target: BmcTarget, *, reset: str = "", check: bool = False
    ) -> tuple[dict[str, Any], str]:
        """What the child printed, and its errors."""
        auth = target.get_option("auth")
        if auth not in AUTHS:
            raise target.unavailable_error(f"auth {auth!r} is neither basic nor session", "see spec.fencing.options")
        fingerprint = target.get_option("fingerprint")
        if fingerprint and FINGERPRINT.fullmatch(fingerprint) is None:
            raise target.unavailable_error(
                f"fingerprint {fingerprint!r} is not sha256: and 64 hexadecimal digits", "see spec.fencing.options"
            )
        key = (url, target.credential)
        kept = self._kept.get(key, _BmcCache())
        given = {
            "url": url,
            "username": target.credential.username,
            "password": target.credential.password,
            "limitS": target.limit_s,
            "insecure": target.get_option("insecure") == "true",
            "fingerprint": fingerprint,
            "certificateAuthority": target.get_option("certificateAuthority"),
            "auth": auth,
            "session": None if auth == "basic" else kept.session,
            "reset": reset,
            "target": kept.target,
            "check": check,
        }
        argv = [sys.executable, "-I", "-S", str(CHILD), "{given}"]
        ended = await run(argv, limit_s=target.limit_s + SPARE_S, feeds={"{given}": json.dumps(given).encode()})
        said = _parse_answer(ended.out or ended.partial)
        if said:
            session = said.get("session") if isinstance(said.get("session"), dict) else None
            self._kept[key] = _BmcCache(session, said.get("target") or kept.target)
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return said, ended.err


def reading_of(system: Any, expected_uuid: str = "") -> PowerReading:
    """Identity and state of a ``ComputerSystem``."""
    document = system if isinstance(system, dict) else {}
    said, state = document.get("UUID"), document.get("PowerState")
    return PowerReading(
        state=_STATES.get(state, PowerState.UNKNOWN) if isinstance(state, str) else PowerState.UNKNOWN,
        system_uuid=_normalise_uuid(said, expected_uuid) if isinstance(said, str) else "",
    )


def _normalise_uuid(said: str, expected: str) -> str:
    try:
        raw = uuid.UUID(said).bytes
    except ValueError:
        return said
    found = uuid_of(raw, expected)
    return said if found is None else found


def obstacle_of(said: dict[str, Any], user: str) -> str:
    """What would refuse an order to switch off, by what system and account say; empty: nothing that is known."""
    allowed, role = said.get("allowed"), said.get("role")
    off = _RESETS[PowerOrder.OFF]
    if isinstance(allowed, list) and allowed and off not in allowed:
        return f"its system does not take {off}, only {quote_last_line(', '.join(map(str, allowed)))}: see its firmware"
    if isinstance(role, dict):
        named, privileges = role.get("id"), role.get("privileges")
        if CONFIGURE not in privileges if isinstance(privileges, list) else named == "ReadOnly":
            return (
                f"its user {user} may not switch it off (role {quote_last_line(str(named))}): give it the role "
                "Operator there"
            )
    return ""


def message_of(text: str) -> str:
    """What a Redfish error says, in one line: its messages, else its text."""
    error = _parse_answer(text).get("error")
    if not isinstance(error, dict):
        return quote_last_line(text)
    details = error.get("@Message.ExtendedInfo")
    listed = details if isinstance(details, list) else [details]
    messages = [one.get("Message") or one.get("MessageId") for one in listed if isinstance(one, dict)]
    found = [one for one in (*messages, error.get("message"), error.get("code")) if isinstance(one, str) and one]
    shown = [one for one in found if one in messages] or found[:1]
    return quote_last_line("; ".join(" ".join(one.split()) for one in shown))


def _parse_answer(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _build_failure(said: dict[str, Any], url: str, err: str, target: BmcTarget) -> Unavailable:
    word = str(said.get("error", "silent" if not err.strip() else "settings"))
    return failure_of(
        word,
        _ERRORS,
        user=target.credential.username or "''",
        secret=target.secret or "(none is named)",
        url=url,
        word=word.removeprefix("status-"),
        said=message_of(str(said.get("text", err))) or "nothing",
        limit=f"{target.limit_s:g}",
    )


def _system_url(target: BmcTarget) -> str:
    """The URL of the system; ``Unavailable`` where it is none, or would carry a password in the clear."""
    text = target.address if "://" in target.address else f"https://{target.address}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if (
        not host
        or port == 0
        or parts.scheme not in ("http", "https")
        or parts.username
        or parts.query
        or parts.fragment
    ):
        why = f"its address {target.address!r} is no host and no URL of a system"
        raise target.unavailable_error(why, "see spec.fencing.address, such as https://10.0.0.5/redfish/v1/Systems/1")
    if parts.scheme == "http" and target.get_option("insecure") != "true" and not _is_loopback(host):
        why = f"{target.address} would carry its password in the clear"
        raise target.unavailable_error(why, 'use https, or set spec.fencing.options.insecure to "true"')
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
