"""What the audit log of a real server says, and how the command line asks it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.command import outlive, up

FLAVOR = {
    "apiVersion": "outlive.dev/v1alpha1",
    "kind": "Flavor",
    "metadata": {"name": "m1"},
    "spec": {"flavorName": "m1"},
}
FLAVORS = "/apis/outlive.dev/v1alpha1/flavors"


def send(url: str, token: str, method: str, body: object = None) -> int:
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
    request.add_header("Content-Type", "application/json")
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(request, data) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_write_a_refusal_and_the_reading_of_a_secret_are_written_down(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with up(state) as server:
        token = (state / "token").read_text().strip()
        assert send(f"{server.url}{FLAVORS}", token, "POST", FLAVOR) == 201
        assert send(f"{server.url}{FLAVORS}/m1", "wrong-token-of-nobody", "DELETE") == 401
        assert send(f"{server.url}/apis/outlive.dev/v1alpha1/secrets", token, "GET") == 200
        assert send(f"{server.url}{FLAVORS}", token, "GET") == 200
    listed = outlive("audit", "list", "-o", "json", "--state-dir", str(state))
    entries = json.loads(listed.out)
    assert [(one["verb"], one["object"], one["status"], one.get("token", "")) for one in entries] == [
        ("create", "Flavor/m1", 201, "state-dir"),
        ("delete", f"{FLAVORS}/m1", 401, ""),
        ("read", "Secret/", 200, "state-dir"),
    ]
    assert "spec.flavorName" in entries[0]["fields"]
    assert entries[1]["code"] == "unauthenticated"
    refused = outlive("audit", "list", "--refused", "--state-dir", str(state))
    assert f"{FLAVORS}/m1" in refused.out
    assert "create" not in refused.out
    verified = outlive("audit", "verify", "--state-dir", str(state))
    assert verified.code == 0
    assert verified.out.startswith("3 entries in 1 files follow from each other, from number 1 of 20")
    assert outlive("audit", "verify", "--from", "4", "--state-dir", str(state)).code == 1
    (path,) = (state / "audit").iterdir()
    path.write_bytes(path.read_bytes().replace(b"Flavor/m1", b"Flavor/m2", 1))
    changed = outlive("audit", "verify", "--state-dir", str(state))
    assert changed.code == 1
    assert "audit-000000000001.jsonl:1 does not follow" in changed.err
