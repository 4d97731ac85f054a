"""Redfish: two kinds of request, sent once each by a child process over a connection that is checked first.

Identity and state are of one document, the system (``UUID``, ``PowerState``); what is on its way to a state, such as
``PoweringOff``, is ``unknown``. ``spec.fencing.address`` is ``HOST``, ``HOST:PORT`` or the URL of the system,
``https://HOST/redfish/v1/Systems/ID``, which a controller with more than one needs.

``spec.fencing.options``: ``fingerprint`` (``sha256:…`` of its certificate), ``certificateAuthority`` (PEM), or
``insecure: "true"`` (neither is checked, and plain ``http`` is taken); without any of them its certificate has to be
one that this host trusts.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from outlive.base.errors import Unavailable, Unknown
from outlive.drivers.bmc.driver import Order, Refusal, Target, quoted, said_of
from outlive.drivers.commands import run
from outlive.node.ports import PowerReading, PowerState

CHILD: Final = Path(__file__).with_name("redfish_request.py")
SPARE_S: Final = 2.0
"""For starting the child."""
FINGERPRINT: Final = re.compile(r"sha256:(?:[0-9a-f]{2}:?){32}", re.IGNORECASE)
_STATES: Final = {"On": PowerState.ON, "Off": PowerState.OFF}
_RESETS: Final = {Order.READ: "", Order.OFF: "ForceOff", Order.ON: "On"}
_ERRORS: Final = (
    Refusal("status-401", "it refuses user {user} or the password", "set secret {secret} again"),
    Refusal("status-403", "user {user} may not do that", "give it the role Operator there"),
    Refusal(
        "status-404", "it has no {url}", "name the system in spec.fencing.address: https://HOST/redfish/v1/Systems/ID"
    ),
    Refusal("status-", "it answers with HTTP {word}: {said}", "see its log"),
    Refusal("systems", "it has not one system but these: {said}", "name one in spec.fencing.address"),
    Refusal(
        "fingerprint", "its certificate is {said}", "if it was renewed, set spec.fencing.options.fingerprint to that"
    ),
    Refusal("certificate", "its certificate is not trusted: {said}", "pin it with spec.fencing.options.fingerprint"),
    Refusal("tls", "no TLS with it: {said}", "see its address and its TLS settings"),
    Refusal("name", "its address {url} has no IP address: {said}", "see DNS, or spec.fencing.address"),
    Refusal("silent", "no answer from {url} in {limit} s", "see its load and its network"),
    Refusal("network", "no connection to {url}: {said}", "see its power and its network"),
    Refusal("settings", "its settings are wrong: {said}", "see spec.fencing"),
    Refusal("answer", "its answer is not Redfish: {said}", "see spec.fencing.address"),
)


class RedfishDriver:
    """See the module."""

    options = frozenset({"fingerprint", "certificateAuthority", "insecure"})

    async def send(self, order: Order, target: Target) -> PowerReading | None:
        """See ``Driver``."""
        url = _url(target)
        given = {
            "url": url,
            "username": target.credential.username,
            "password": target.credential.password,
            "limitS": target.limit_s,
            "insecure": target.option("insecure") == "true",
            "fingerprint": _fingerprint(target),
            "certificateAuthority": target.option("certificateAuthority"),
            "reset": _RESETS[order],
        }
        argv = [sys.executable, "-I", "-S", str(CHILD), "{given}"]
        ended = await run(argv, limit_s=target.limit_s + SPARE_S, feeds={"{given}": json.dumps(given).encode()})
        said = _said(ended.out or ended.partial)
        if order is Order.READ:
            if "system" in said:
                return reading_of(said["system"])
            raise _unavailable(said, url, ended.err, target)
        status = said.get("status")
        if isinstance(status, int) and 200 <= status < 300:
            return None
        if isinstance(status, int) and (status in (401, 403, 404, 405) or status == 503):
            raise _unavailable({**said, "error": f"status-{status}"}, url, "", target)
        if isinstance(status, int) and status in (400, 409):
            return None  # most say so where the system is in that state already: its state says whether it is
        if said.get("sent", True):
            why = quoted(str(said.get("text") or said.get("error") or ended.err or "no answer"))
            raise Unknown(f"it may or may not switch {order}: {why}", remedy="its state says whether it did")
        raise _unavailable(said, url, ended.err, target)


def reading_of(system: Any) -> PowerReading:
    """Identity and state of a ``ComputerSystem``."""
    document = system if isinstance(system, dict) else {}
    said, state = document.get("UUID"), document.get("PowerState")
    return PowerReading(
        state=_STATES.get(state, PowerState.UNKNOWN) if isinstance(state, str) else PowerState.UNKNOWN,
        system_uuid=said if isinstance(said, str) else "",
    )


def _said(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _unavailable(said: dict[str, Any], url: str, err: str, target: Target) -> Unavailable:
    word = str(said.get("error", "silent" if not err.strip() else "settings"))
    why, remedy = said_of(
        word,
        _ERRORS,
        user=target.credential.username or "''",
        secret=target.secret or "(none is named)",
        url=url,
        word=word.removeprefix("status-"),
        said=quoted(str(said.get("text", err))) or "nothing",
        limit=f"{target.limit_s:g}",
    ) or (f"it failed: {word}", "see its log")
    return target.unavailable(why, remedy)


def _fingerprint(target: Target) -> str:
    said = target.option("fingerprint")
    if said and FINGERPRINT.fullmatch(said) is None:
        raise target.unavailable(
            f"fingerprint {said!r} is not sha256: and 64 hexadecimal digits", "see spec.fencing.options"
        )
    return said


def _url(target: Target) -> str:
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
        raise target.unavailable(why, "see spec.fencing.address, such as https://10.0.0.5/redfish/v1/Systems/1")
    if parts.scheme == "http" and target.option("insecure") != "true" and not _is_loopback(host):
        why = f"{target.address} would carry its password in the clear"
        raise target.unavailable(why, 'use https, or set spec.fencing.options.insecure to "true"')
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
