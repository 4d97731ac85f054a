"""A real Keystone on this machine: an environment of its own, a database that is prepared once, a server for each use.

A run copies the prepared database of SQLite and starts a server on it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.processes import free_ports

from tests.support.environments import environment, step

START_LIMIT_S = 60
ADMIN, PASSWORD = "admin", "secret-of-the-tests"
REGION = "lab"
PREPARED_URL = "http://keystone.invalid/v3"
SERVER = """\
import sys, waitress
sys.argv = ["keystone"]  # Keystone reads the command line of whatever serves it
from keystone.server.wsgi import initialize_public_application
waitress.serve(initialize_public_application(), host="127.0.0.1", port=int({port}), threads=4)
"""
CONFIGURATION = """\
[DEFAULT]
use_stderr = false
log_file = {folder}/keystone.log
[database]
connection = sqlite:///{folder}/keystone.db
[token]
provider = fernet
[fernet_tokens]
key_repository = {folder}/fernet
[credential]
key_repository = {folder}/credential
[cache]
enabled = false
[identity]
password_hash_algorithm = bcrypt
password_hash_rounds = 4
"""


def _prepare(environment: Path) -> None:
    """A bootstrapped database, with keys; its address is put in when a copy is started."""
    folder = environment / "prepared"
    folder.mkdir()
    (folder / "keystone.conf").write_text(CONFIGURATION.format(folder=folder))
    for name in ("fernet", "credential"):
        (folder / name).mkdir(mode=0o700)
    for command in (["db_sync"], ["fernet_setup"], ["credential_setup"]):
        _manage(environment, folder, *command)
    interfaces = [f"--bootstrap-{name}-url={PREPARED_URL}" for name in ("public", "internal", "admin")]
    _manage(
        environment, folder, "bootstrap", f"--bootstrap-password={PASSWORD}", f"--bootstrap-username={ADMIN}",
        "--bootstrap-project-name=admin", "--bootstrap-role-name=admin", "--bootstrap-service-name=keystone",
        f"--bootstrap-region-id={REGION}", *interfaces,
    )  # fmt: skip


def _manage(environment: Path, folder: Path, *command: str) -> None:
    owner = ["--keystone-user", str(os.getuid()), "--keystone-group", str(os.getgid())]
    who = owner if command[0].endswith("_setup") else []
    step(
        [
            str(environment / "bin" / "python"),
            "-W", "ignore", str(environment / "bin" / "keystone-manage"),
            "--config-file", str(folder / "keystone.conf"), *command, *who,
        ]
    )  # fmt: skip


class Keystone:
    """A running server, and its administrator."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._environment = environment
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v3"
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""

    def start(self) -> None:
        """Start, and wait until it answers."""
        environment = {**os.environ, "OS_KEYSTONE_CONFIG_FILES": str(self.folder / "keystone.conf")}
        environment.pop("PYTHONPATH", None)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._environment / "bin" / "python"), "-W", "ignore", "-c", SERVER.format(port=self.port)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"Keystone did not start: {(self.folder / 'server.log').read_text()[-3000:]}")

    def stop(self) -> None:
        """Stop; one that is gone already is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)

    def call(self, method: str, path: str, body: Any = None, *, token: str = "") -> tuple[int, Any, Mapping[str, str]]:
        """A request as the administrator, or with another token; status, document and headers."""
        headers = {"Content-Type": "application/json"}
        if path != "/auth/tokens" or token:
            headers["X-Auth-Token"] = token or self.token()
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                raw = answer.read()
                return answer.status, json.loads(raw) if raw else None, dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace"), dict(error.headers)

    def token(self) -> str:
        """The administrator's token."""
        if not self._token:
            self._token = self.login(ADMIN, PASSWORD, "admin")
        return self._token

    def login(self, user: str, password: str, project: str) -> str:
        """A token of a user in a project; both are in the domain ``default``."""
        domain = {"id": "default"}
        body = {
            "auth": {
                "identity": {
                    "methods": ["password"],
                    "password": {"user": {"name": user, "domain": domain, "password": password}},
                },
                "scope": {"project": {"name": project, "domain": domain}},
            }
        }
        status, document, headers = self.call("POST", "/auth/tokens", body)
        assert status == 201, document
        return {name.lower(): value for name, value in headers.items()}["x-subject-token"]

    def create(self, plural: str, **members: Any) -> str:
        """A new object; its id."""
        name = plural.removesuffix("s")
        status, document, _ = self.call("POST", f"/{plural}", {name: members})
        assert status == 201, document
        return str(document[name]["id"])

    def id_of(self, plural: str, name: str) -> str:
        """The id of what has that name."""
        status, document, _ = self.call("GET", f"/{plural}?name={name}")
        assert status == 200, document
        return str(document[plural][0]["id"])

    def add_service(self, kind: str, url: str, interfaces: tuple[str, ...] = ("public", "internal")) -> None:
        """Put a service into the catalogue."""
        service = self.create("services", type=kind, name=kind)
        for interface in interfaces:
            self.create("endpoints", service_id=service, interface=interface, region_id=REGION, url=url)

    def add_user(self, name: str, password: str, project: str, role: str) -> str:
        """A user with a role in a project (ids of the project, name of the role)."""
        user = self.create("users", name=name, password=password, domain_id="default")
        status, document, _ = self.call("PUT", f"/projects/{project}/users/{user}/roles/{self.id_of('roles', role)}")
        assert status == 204, document
        return user

    def clouds(self, path: Path, *, user: str = ADMIN, password: str = PASSWORD, project: str = "admin") -> Path:
        """A clouds file with the cloud ``lab``; without the password where that is empty."""
        auth = {
            "auth_url": self.url, "username": user, "project_name": project,
            "user_domain_id": "default", "project_domain_id": "default",
        }  # fmt: skip
        auth |= {"password": password} if password else {}
        path.write_text(json.dumps({"clouds": {"lab": {"region_name": REGION, "auth": auth}}}))
        path.chmod(0o600)
        return path


@contextmanager
def running() -> Iterator[Keystone]:
    """A server of its own for as long as the block lasts."""
    made = environment("keystone", _prepare)
    folder = Path(tempfile.mkdtemp(prefix="okst"))
    try:
        shutil.copytree(made / "prepared", folder, dirs_exist_ok=True)
        (folder / "keystone.conf").write_text(CONFIGURATION.format(folder=folder))
        server = Keystone(made, folder)
        with sqlite3.connect(folder / "keystone.db") as database:
            database.execute("update endpoint set url = ? where url = ?", (server.url, PREPARED_URL))
        database.close()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    return free_ports(1)[0]
