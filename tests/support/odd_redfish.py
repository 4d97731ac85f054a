"""A Redfish service with the oddities of BMCs that people have, each switched on by its name.

=============  ========================================================================================================
``slash``      it redirects (308) to a slash at the end of each path, and names its resources with it
``moved``      the same with 301, and it names its resources without the slash
``no-slash``   it redirects to paths without the slash at the end
``elsewhere``  it redirects to another host
``session``    it refuses basic authentication, and offers sessions, four at most, each for twenty requests
``no-session`` the same, and every session is taken
``byteswap``   it says its UUID with the first three groups in the other byte order
``bom``        its documents begin with a byte order mark
``oem``        its system takes orders at an address of its maker's own
``info``       it names its reset types in an ActionInfo
``readonly``   the account has the role ReadOnly: it reads, and its orders are answered with 403
``no-off``     its system takes no ForceOff (400)
``moody``      it answers 400 to an order for the state in which the system is
=============  ========================================================================================================
"""

from __future__ import annotations

import json
import subprocess
import threading
from base64 import b64encode
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab.bmc import PASSWORD, USERNAME, Redfish

WORKING = ("slash", "moved", "no-slash", "session", "byteswap", "bom", "oem", "info", "moody")
"""Those with which it does what it is asked for."""
SYSTEM = "/redfish/v1/Systems/1"
SESSIONS = "/redfish/v1/SessionService/Sessions"
INFO = f"{SYSTEM}/ResetActionInfo"
SESSION_LIMIT = 4
SESSION_REQUESTS = 20
Answer = tuple[int, dict[str, Any] | None, dict[str, str]]


class OddRedfish(Redfish):
    """One BMC with one system; ``oddities`` are joined by ``+``."""

    def __init__(self, directory: Path, name: str, system_uuid: str, hook: Sequence[str], oddities: str = "") -> None:
        super().__init__(directory, name, system_uuid, hook)
        self.oddities = frozenset(oddities.split("+"))
        self.requests: list[str] = []
        """Method and path of each request."""
        self._server: ThreadingHTTPServer | None = None
        self._sessions: dict[str, int] = {}
        """Token → requests that are left."""
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """For ``Hypervisor.spec.fencing.address``."""
        return f"http://{self.host}:{self.port}{SYSTEM}"

    @property
    def sessions(self) -> int:
        """Sessions that were opened and have not ended."""
        return len(self._sessions)

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self._server is not None

    def start(self) -> None:
        """Answer from now on."""
        if self._server is not None:
            return
        self._write_control()
        self._server = _Server((self.host, self.port), _handler_of(self))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def rewire(self, system_uuid: str, hook: Sequence[str]) -> None:
        """Be another system's from now on, at the same address."""
        self.system_uuid, self._hook = system_uuid, tuple(hook)
        self._write_control()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Status, document and headers."""
        self.requests.append(f"{method} {path}")
        if moved := self._redirect(path):
            return moved
        bare = path.rstrip("/")
        if bare == "/redfish/v1":
            sessions = {"@odata.id": self._name(SESSIONS)}
            accounts = {"@odata.id": self._name("/redfish/v1/AccountService")}
            links = {"Sessions": sessions} if self._takes_sessions else {}
            return 200, {"Links": links, "AccountService": accounts}, {}
        if bare == SESSIONS and method == "POST" and self._takes_sessions:
            return self._log_in(json.loads(body))
        if refused := self._unauthorized(headers):
            return refused
        return self._order(bare, json.loads(body)) if method == "POST" else self._document(bare)

    def _has(self, *oddities: str) -> bool:
        return not self.oddities.isdisjoint(oddities)

    @property
    def _takes_sessions(self) -> bool:
        return self._has("session", "no-session")

    def _name(self, path: str) -> str:
        """The path as the service names it in its documents."""
        return f"{path}/" if self._has("slash", "no-slash") else path

    def _redirect(self, path: str) -> Answer | None:
        if self._has("elsewhere"):
            return 307, None, {"Location": f"http://127.0.0.2:{self.port}{path}"}
        if self._has("no-slash") and path.endswith("/") and path != "/redfish/v1/":
            return 308, None, {"Location": path.rstrip("/")}
        if self._has("slash", "moved") and not path.endswith("/"):
            status = 301 if self._has("moved") else 308
            return status, None, {"Location": f"http://{self.host}:{self.port}{path}/"}
        return None

    def _log_in(self, given: dict[str, Any]) -> Answer:
        if given != {"UserName": USERNAME, "Password": PASSWORD}:
            return 401, _error("the user name or the password is wrong"), {}
        with self._lock:
            if self._has("no-session") or len(self._sessions) >= SESSION_LIMIT:
                return 503, _error("all sessions are taken"), {}
            token = f"token-{len(self.requests)}"
            self._sessions[token] = SESSION_REQUESTS
        return 201, {}, {"X-Auth-Token": token, "Location": f"{SESSIONS}/{len(self._sessions)}"}

    def _unauthorized(self, headers: dict[str, str]) -> Answer | None:
        basic = "Basic " + b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
        if not self._takes_sessions:
            return None if headers.get("authorization") == basic else (401, _error("unauthorized"), {})
        token = headers.get("x-auth-token", "")
        with self._lock:
            left = self._sessions.pop(token, 0)
            if left > 1:
                self._sessions[token] = left - 1
        return None if left else (401, _error("basic authentication is disabled"), {})

    def _document(self, path: str) -> Answer:
        role = "/redfish/v1/AccountService/Roles/mine"
        accounts = "/redfish/v1/AccountService/Accounts"
        privileges = ["Login"] if self._has("readonly") else ["Login", "ConfigureComponents"]
        mine = {"UserName": USERNAME, "RoleId": "ReadOnly" if self._has("readonly") else "Operator"}
        documents: dict[str, dict[str, Any]] = {
            "/redfish/v1/Systems": {"Members": [{"@odata.id": self._name(SYSTEM)}]},
            SYSTEM: self._system(),
            INFO: {"Parameters": [{"Name": "ResetType", "AllowableValues": self._resets}]},
            "/redfish/v1/AccountService": {"Accounts": {"@odata.id": self._name(accounts)}},
            accounts: {"Members": [{"@odata.id": f"{accounts}/0"}, {"@odata.id": f"{accounts}/1"}]},
            f"{accounts}/0": {"UserName": "root", "RoleId": "Administrator"},
            f"{accounts}/1": {**mine, "Links": {"Role": {"@odata.id": role}}},
            role: {"AssignedPrivileges": privileges},
        }
        return (200, documents[path], {}) if path in documents else (404, _error(f"there is no {path}"), {})

    @property
    def _resets(self) -> list[str]:
        return ["On", "GracefulShutdown"] if self._has("no-off") else ["On", "ForceOff"]

    @property
    def _target(self) -> str:
        return f"{SYSTEM}/Actions/{'Oem/Maker.Reset' if self._has('oem') else 'ComputerSystem.Reset'}"

    def _system(self) -> dict[str, Any]:
        said = self.system_uuid
        if self._has("byteswap"):
            raw = bytes.fromhex(said.replace("-", ""))
            swapped = raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
            said = f"{swapped[:4].hex()}-{swapped[4:6].hex()}-{swapped[6:8].hex()}-{raw[8:10].hex()}-{raw[10:].hex()}"
        action: dict[str, Any] = {"target": self._name(self._target)}
        if self._has("info"):
            action["@Redfish.ActionInfo"] = INFO
        else:
            action["ResetType@Redfish.AllowableValues"] = self._resets
        return {"UUID": said, "PowerState": self._state(), "Actions": {"#ComputerSystem.Reset": action}}

    def _order(self, path: str, given: dict[str, Any]) -> Answer:
        kind = given.get("ResetType")
        if path != self._target:
            return 404, _error(f"there is no {path}"), {}
        if self._has("readonly"):
            return 403, _error("the account is read-only"), {}
        if kind not in self._resets:
            return 400, _error(f"{kind} is not supported for Reset"), {}
        there_already = self._state() == {"On": "On", "ForceOff": "Off"}[kind]
        self._run("set", "power", "1" if kind == "On" else "0")
        if self._has("moody") and there_already:
            return 400, _error("the system is in that state"), {}
        return 204, None, {}

    def _state(self) -> str:
        return {"power:1": "On", "power:0": "Off"}.get(self._run("get", "power"), "PoweringOff")

    def _run(self, *argv: str) -> str:
        return subprocess.run([self.control, *argv], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _error(message: str) -> dict[str, Any]:
    details = [{"MessageId": "Base.1.8.Other", "Message": message}]
    return {"error": {"code": "Base.1.8.GeneralError", "message": "see", "@Message.ExtendedInfo": details}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler_of(bmc: OddRedfish) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.casefold(): value for name, value in self.headers.items()}
            status, document, more = bmc.answer(self.command, self.path, headers, body)
            text = b"" if document is None else json.dumps(document).encode()
            raw = b"\xef\xbb\xbf" + text if text and "bom" in bmc.oddities else text
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    return Handler
