"""Passwords of screens: a real server gives one to the host that is to run the VM, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from outlive.cli import screen_passwords
from outlive.resources import API_VERSION
from tests.support.api import GROUP
from tests.support.command import Server, outlive, spawned, up

VALUE = "s3cret-8"
XML = (
    "<domain type='kvm'><name>web</name><uuid>7b0a2c5e-0000-4000-8000-00000000d0d0</uuid><memory>1024</memory>"
    "<vcpu>1</vcpu><devices><graphics type='vnc'{}/></devices></domain>"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with up(tmp_path / "state", "--listen", "0.0.0.0:0") as one:
        one.url = f"https://127.0.0.1:{urlsplit(one.url).port}"
        yield one


def asked(server: Server, method: str, path: str, token: str, body: Any = None) -> tuple[int, str]:
    data, context = json.dumps(body).encode() if body is not None else None, ssl._create_unverified_context()
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    request = urllib.request.Request(f"{server.url}{path}", data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def joined(server: Server, directory: Path, name: str) -> str:
    """The token of a host."""
    ticket = json.loads(
        spawned("token", "create", "--join", "--host", name, "--state-dir", directory, "-o", "json").out
    )
    status, body = asked(server, "POST", "/join", ticket["token"], {"host": name, "machineId": name.ljust(32, "0")})
    assert status in (200, 201), body
    return str(json.loads(body)["token"])


def test_a_password_is_given_to_the_host_of_its_vm_alone(server: Server, tmp_path: Path) -> None:
    directory, path = tmp_path / "state", "/screen-passwords/vm-a"
    admin = (directory / "token").read_text().strip()
    mine, other = joined(server, directory, "kvm-1"), joined(server, directory, "kvm-2")
    for name in ("console-web", "rack-3"):
        assert spawned("secret", "set", name, "--state-dir", directory, stdin=VALUE.encode()).code == 0
    spec = {"definition": XML.format(""), "consoleSecret": "console-web"}
    vm = {"apiVersion": API_VERSION, "kind": "VirtualMachine", "metadata": {"name": "vm-a"}, "spec": spec}
    status, body = asked(server, "POST", f"{GROUP}/virtualmachines", admin, vm)
    assert status == 201, body
    assert asked(server, "GET", path, mine)[0] == 403, "it is not to run there"
    assigned = {"status": {"assigned": {"hypervisor": "kvm-1"}}}
    assert asked(server, "PATCH", f"{GROUP}/virtualmachines/vm-a/status", admin, assigned)[0] == 200
    status, body = asked(server, "GET", path, mine)
    assert (status, json.loads(body)) == (200, {"password": VALUE})
    assert [asked(server, "GET", path, token)[0] for token in (other, admin, "nobody")] == [403, 403, 401]
    assert asked(server, "GET", "/screen-passwords/vm-b", mine)[0] == 403
    wrong = {"spec": {"consoleSecret": "rack-3"}}
    assert asked(server, "PATCH", f"{GROUP}/virtualmachines/vm-a", admin, wrong)[0] == 422
    assert VALUE not in (directory.parent / "state.log").read_text()
    assert VALUE not in outlive("get", "vms", "--state-dir", directory, "-o", "json").out


def test_a_host_asks_for_it_by_its_own_store() -> None:
    class Answers:
        async def question(self, path: str) -> Any:
            return {"password": path}

    fetch = screen_passwords(Answers())  # type: ignore[arg-type]
    assert asyncio.run(fetch("a/b c")) == "/screen-passwords/a%2Fb%20c"
