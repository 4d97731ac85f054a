"""A few HTTP requests to one BMC, each order sent once: a program that imports nothing of ours.

In the file that is named: JSON ``{"url", "username", "password", "limitS", "insecure", "fingerprint",
"certificateAuthority", "auth", "session", "reset", "target", "check"}``.

* ``auth``: ``basic``, ``session``, or empty: basic authentication, and a session where that is answered with 401.
* ``session``: ``{"token", "location"}`` of an earlier call, or ``null``.
* ``reset``: the reset type to send, such as ``ForceOff``; empty: the system is only read.
* ``target``: where to send it, as the system named it in an earlier call; empty: the system is read first.
* ``check``: also read what would refuse an order: the reset types that the system takes, the role of the account.

It prints JSON: ``{"system": {…}, "target": …, "allowed": […], "role": {…}}``, or ``{"sent": true, "status": 204,
"text": …, "state": …}``, or ``{"error": WORD, "text": …, "sent": …}``; ``sent`` says whether the order had been sent by
then. ``session`` in any of them is the one to use the next time.

A redirect is followed where it leads to the same path on the same service but for a slash at the end: nowhere else does
the password go. A service that redirects an order, or has no such path, has not carried it out.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import ssl
import sys
from typing import Any
from urllib.parse import urlsplit

ANSWER_BYTES = 2**20
"""The largest answer that is read."""
ROOT = "/redfish/v1/"
SYSTEMS = "/redfish/v1/Systems"
SESSIONS = "/redfish/v1/SessionService/Sessions"
RESET = "#ComputerSystem.Reset"
REDIRECTS = (301, 302, 303, 307, 308)
REDIRECTS_FOLLOWED = 2
"""Of one request."""
ACCOUNTS_READ = 16
"""Accounts that are read in search of our own."""


class Failed(Exception):
    """One word for the driver, and what was said."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word, self.text = word, text


class RedfishConnection:
    """One connection."""

    def __init__(self, given: dict[str, Any]) -> None:
        parts = urlsplit(given["url"])
        self._path: str = parts.path
        self._given = given
        self.sent = False
        """Whether an order was sent, or may have been."""
        self.session: dict[str, str] | None = given["session"]
        host, port = parts.hostname or "", parts.port
        self._place = (parts.scheme, host, port or _port_of(parts.scheme))
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=given["limitS"], context=_build_tls_context(given)
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=given["limitS"])  # type: ignore[assignment]

    def connect(self) -> None:
        """Connect, and see that it is the one that is pinned, before it hears a password."""
        self._connection.connect()
        wanted = self._given["fingerprint"].removeprefix("sha256:").replace(":", "").lower()
        if wanted:
            raw = (
                self._connection.sock.getpeercert(binary_form=True)
                if isinstance(self._connection.sock, ssl.SSLSocket)
                else b""
            )
            said = hashlib.sha256(raw or b"").hexdigest()
            if said != wanted:
                raise Failed("fingerprint", f"sha256:{said}")

    def read_system(self) -> dict[str, Any]:
        """The system; asked for where the address names none."""
        if self._path.rstrip("/") in ("", "/redfish", "/redfish/v1"):
            paths = _member_paths(self.get(SYSTEMS))
            if len(paths) != 1:
                raise Failed("systems", ", ".join(paths))
            self._path = paths[0]
        return self.get(self._path)

    def target_of(self, system: dict[str, Any]) -> str:
        """Where the system takes orders, as it says, else where the specification has it."""
        target = _get_path(system, "Actions", RESET, "target")
        default = f"{self._path.rstrip('/')}/Actions/ComputerSystem.Reset"
        return target if isinstance(target, str) and target else default

    def allowed_of(self, system: dict[str, Any]) -> list[Any] | None:
        """The reset types that the system takes; ``None`` where it does not say."""
        action = _get_path(system, "Actions", RESET)
        allowed = _get_path(action, "ResetType@Redfish.AllowableValues")
        info = _get_path(action, "@Redfish.ActionInfo")
        if not isinstance(allowed, list) and isinstance(info, str):
            parameters = _get_path(self.get(info), "Parameters") or []
            found = [_get_path(one, "AllowableValues") for one in parameters if _get_path(one, "Name") == "ResetType"]
            allowed = found[0] if found else None
        return allowed if isinstance(allowed, list) else None

    def read_role(self) -> dict[str, Any] | None:
        """Role of our own account and its privileges; ``None`` where the service does not let us read that."""
        service = _get_path(self.get(ROOT), "AccountService", "@odata.id")
        accounts = _get_path(self.get(service), "Accounts", "@odata.id") if isinstance(service, str) else None
        for path in _member_paths(self.get(accounts))[:ACCOUNTS_READ] if isinstance(accounts, str) else []:
            account = self.get(path)
            if account.get("UserName") == self._given["username"]:
                link = _get_path(account, "Links", "Role", "@odata.id")
                privileges = _get_path(self.get(link), "AssignedPrivileges") if isinstance(link, str) else None
                return {"id": account.get("RoleId"), "privileges": privileges}
        return None

    def get(self, path: str) -> dict[str, Any]:
        """One document."""
        status, text = self._request_authorized("GET", path, None)
        if status != 200:
            raise Failed(f"status-{status}", text)
        return _parse_document(text)

    def order_reset(self, path: str, kind: str) -> tuple[int, str]:
        """The order."""
        self.sent = True
        return self._request_authorized("POST", path, json.dumps({"ResetType": kind}))

    def _request_authorized(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        """A request with whatever the service takes from us; an order that is answered with 401 was not carried out."""
        auth = self._given["auth"]
        if self.session is None and auth == "session":
            self._log_in()
        status, text, _ = self._request(method, path, body, self._authorization_header())
        if status != 401 or auth == "basic":
            return status, text
        if self.session is None:  # the service root, which is read without a password, names the place for sessions
            found, root, _ = self._request("GET", ROOT, None, {})
            place = _get_path(_parse_document(root), "Links", "Sessions", "@odata.id") if found == 200 else None
            if not isinstance(place, str):
                return status, text
        self.session = None
        self._log_in()
        status, text, _ = self._request(method, path, body, self._authorization_header())
        return status, text

    def _authorization_header(self) -> dict[str, str]:
        if self.session is not None:
            return {"X-Auth-Token": self.session["token"]}
        token = base64.b64encode(f"{self._given['username']}:{self._given['password']}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _log_in(self) -> None:
        status, text, _ = self._request("GET", ROOT, None, {})
        named = _get_path(_parse_document(text), "Links", "Sessions", "@odata.id") if status == 200 else None
        body = json.dumps({"UserName": self._given["username"], "Password": self._given["password"]})
        status, text, headers = self._request("POST", named if isinstance(named, str) else SESSIONS, body, {})
        token = headers.get("X-Auth-Token")
        if 200 <= status < 300 and token:
            self.session = {"token": token, "location": headers.get("Location") or ""}
        elif status in (400, 401, 403):
            raise Failed("status-401", text)
        else:
            raise Failed("session", text or f"HTTP {status}")

    def _request(
        self, method: str, path: str, body: str | None, more: dict[str, str]
    ) -> tuple[int, str, http.client.HTTPMessage]:
        headers = {"Accept": "application/json", "OData-Version": "4.0", **more}
        if body is not None:
            headers["Content-Type"] = "application/json"
        for followed in range(REDIRECTS_FOLLOWED + 1):
            if self._connection.sock is None:  # it closed after the answer before
                self.connect()
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            raw = answer.read(ANSWER_BYTES + 1)
            if len(raw) > ANSWER_BYTES:
                raise Failed("answer", f"more than {ANSWER_BYTES} bytes")
            if answer.status not in REDIRECTS or followed == REDIRECTS_FOLLOWED:
                break
            path = self._follow_redirect(path, answer.headers.get("Location") or "")
        return answer.status, raw.decode("utf-8-sig", errors="replace"), answer.headers

    def _follow_redirect(self, path: str, location: str) -> str:
        """Where a redirect leads that only adds or removes the slash at the end of the path."""
        there = urlsplit(location)
        scheme = there.scheme or self._place[0]
        place = (scheme, there.hostname, there.port or _port_of(scheme)) if there.netloc else self._place
        if place != self._place or not there.path or there.path.rstrip("/") != urlsplit(path).path.rstrip("/"):
            raise Failed("redirect", location)
        return f"{there.path}?{there.query}" if there.query else there.path


def _port_of(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _get_path(document: Any, *names: str) -> Any:
    """The member of a member of a document; ``None`` where there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _member_paths(collection: dict[str, Any]) -> list[str]:
    """Paths of a collection's members."""
    members = collection.get("Members")
    paths = [_get_path(one, "@odata.id") for one in members] if isinstance(members, list) else []
    return [one for one in paths if isinstance(one, str)]


def _parse_document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        raise Failed("answer", text) from None
    if not isinstance(document, dict):
        raise Failed("answer", text)
    return document


def _build_tls_context(given: dict[str, Any]) -> ssl.SSLContext:
    if given["fingerprint"] or given["insecure"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # what is pinned is compared before anything is sent
        return context
    return ssl.create_default_context(cadata=given["certificateAuthority"] or None)


def _compute_answer(controller: RedfishConnection, given: dict[str, Any]) -> dict[str, Any]:
    kind: str = given["reset"]
    if not kind:
        system = controller.read_system()
        found: dict[str, Any] = {"system": system, "target": controller.target_of(system)}
        obstacles = (("allowed", lambda: controller.allowed_of(system)), ("role", controller.read_role))
        for name, read in obstacles if given["check"] else ():
            try:
                found[name] = read()
            except Failed:  # it does not let us read that
                found[name] = None
        return found
    target: str = given["target"] or controller.target_of(controller.read_system())
    status, text = controller.order_reset(target, kind)
    if status == 404 and given["target"]:  # it was somewhere else the last time
        target = controller.target_of(controller.read_system())
        status, text = controller.order_reset(target, kind)
    state = controller.read_system().get("PowerState") if status in (400, 409) else None
    return {"sent": True, "status": status, "text": text, "state": state, "target": target}


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """What is printed."""
    controller: RedfishConnection | None = None
    try:
        controller = RedfishConnection(given)
        controller.connect()
        return {**_compute_answer(controller, given), "session": controller.session}
    except Failed as error:
        word, text = error.word, error.text
    except ssl.SSLCertVerificationError as error:
        word, text = "certificate", error.verify_message
    except ssl.SSLError as error:
        word, text = "tls", str(error.reason or error)
    except socket.gaierror as error:
        word, text = "name", str(error.strerror)
    except TimeoutError:
        word, text = "silent", ""
    except (OSError, http.client.HTTPException) as error:
        word, text = "network", str(getattr(error, "strerror", None) or error or type(error).__name__)
    except ValueError as error:
        word, text = "settings", str(error)
    sent, session = (controller.sent, controller.session) if controller is not None else (False, None)
    return {"error": word, "text": text, "sent": sent, "session": session}


def main() -> None:
    """See the module."""
    with open(sys.argv[1], encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would double what this imports
        given = json.load(stream)
    json.dump(answer(given), sys.stdout)


if __name__ == "__main__":
    main()
