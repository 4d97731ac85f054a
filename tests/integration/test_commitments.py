"""Capacity is sold over HTTP by the real server, as Limes buys it, and survives that the server is killed."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.support.command import Server, up
from tests.support.loops import REAL_LIMIT_S

GIB = 2**30
ZONE = "zone-a"
SETTINGS = """
failover: {flavorFailoverRequirements: {"*": 0}}
commitments:
  flavorGroupResources:
    "*":
      ram: {handlesCommitments: true, handlesDryRun: true, hasCapacity: true, hasQuota: true}
      cores: {hasCapacity: true}
      instances: {hasCapacity: true}
  capacityMinReconcileInterval: 1s
  capacityReconcileInterval: 5s
"""


class Site(NamedTuple):
    """A server and how to ask it."""

    server: Server
    token: str

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and answer: JSON where it is JSON, else text."""
        data = json.dumps(body).encode() if body is not None else None
        asked = Request(f"{self.server.url}{path}", data=data, method=method)
        for name, value in {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}.items():
            asked.add_header(name, value)
        for name, value in headers.items():
            asked.add_header(name.replace("_", "-"), value)
        try:
            with urlopen(asked, timeout=30) as answer:
                return answer.status, _read(answer.read())
        except HTTPError as error:
            return error.code, _read(error.read())

    def version(self) -> int:
        """The version of the catalogue."""
        return int(self.ask("GET", "/commitments/v1/info")[1]["version"])

    def change(self, projects: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
        """Send a batch of commitments of the group's memory; the answer."""
        totals = {
            project: {
                f"total{state.capitalize()}{when}": sum(one["amount"] for one in asked if one[f"{word}Status"] == state)
                for state in ("confirmed", "guaranteed")
                for when, word in (("Before", "old"), ("After", "new"))
            }
            for project, asked in projects.items()
        }
        body = {
            "az": ZONE,
            "infoVersion": self.version(),
            "byProject": {
                project: {"byResource": {"hw_version_g_ram": {**totals[project], "commitments": asked}}}
                for project, asked in projects.items()
            },
            **more,
        }
        status, answer = self.ask("POST", "/commitments/v1/change-commitments", body)
        assert status == 200, answer
        return dict(answer)

    def objects(self, plural: str) -> dict[str, dict[str, Any]]:
        """All objects of a kind, by name."""
        found = self.ask("GET", f"/apis/outlive.dev/v1alpha1/{plural}")[1]["items"]
        return {one["metadata"]["name"]: one for one in found}

    def slots(self) -> dict[str, dict[str, Any]]:
        """All commitment slots."""
        found = self.objects("reservations")
        return {name: one for name, one in found.items() if one["spec"]["type"] == "CommittedResourceReservation"}

    def until_sold(self) -> None:
        """Wait until the flavor group is known."""
        self.until(lambda: "hw_version_g_ram" in self.ask("GET", "/commitments/v1/info")[1].get("resources", {}))

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until it is so."""
        end = time.monotonic() + REAL_LIMIT_S
        while not done():
            assert time.monotonic() < end
            time.sleep(0.1)


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()


def asked(uuid: str, amount: int, *, old: str | None = None, new: str | None = "confirmed") -> dict[str, Any]:
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    return {"uuid": uuid, "oldStatus": old, "newStatus": new, "amount": amount, "expiresAt": expires}


def _prepared(site: Site) -> None:
    """Two hosts of 4 GiB, and a flavor of 1 GiB."""
    flavor = {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Flavor",
        "metadata": {"name": "m1"},
        "spec": {
            "flavorName": "m1",
            "resources": {"cpu": "1", "memory": "1Gi"},
            "extraSpecs": {"quota:hw_version": "g", "capabilities:hypervisor_type": "QEMU"},
        },
    }
    assert site.ask("POST", "/apis/outlive.dev/v1alpha1/flavors", flavor)[0] == 201
    for name in ("h1", "h2"):
        host = {
            "apiVersion": "outlive.dev/v1alpha1",
            "kind": "Hypervisor",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": ZONE}},
            "spec": {},
        }
        status, made = site.ask("POST", "/apis/outlive.dev/v1alpha1/hypervisors", host)
        assert status == 201
        made["status"] = {
            "capacity": {"cpu": "8", "memory": "4Gi"},
            "allocation": {"cpu": "0", "memory": "0"},
            "domainCapabilities": {"hypervisorType": "kvm"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        assert site.ask("PUT", f"/apis/outlive.dev/v1alpha1/hypervisors/{name}/status", made)[0] == 200


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "outlive.yaml").write_text(SETTINGS)
    with up(tmp_path, "--config", str(tmp_path / "outlive.yaml")) as server:
        found = Site(server, (tmp_path / "token").read_text().strip())
        _prepared(found)
        found.until_sold()
        yield found


def test_a_commitment_is_confirmed_and_reported_and_deleted(site: Site) -> None:
    assert site.change({"p1": [asked("aaaaaa", 1)]}) == {}
    site.until(lambda: any(one["status"].get("host") for one in site.slots().values()))
    (cr,) = site.objects("committedresources").values()
    assert [(one["type"], one["status"], one["reason"]) for one in cr["status"]["conditions"]] == [
        ("Ready", "True", "Accepted")
    ]
    (slot,) = site.slots().values()
    assert slot["spec"]["targetHost"] == slot["status"]["host"]
    status, usage = site.ask("POST", "/commitments/v1/projects/p1/report-usage", {"allAZs": [ZONE]})
    assert status == 200
    assert usage["resources"]["hw_version_g_ram"]["perAZ"][ZONE]["usage"] == 0
    assert site.change({"p1": [asked("aaaaaa", 1, old="confirmed", new=None)]}) == {}
    site.until(lambda: not site.slots() and not site.objects("committedresources"))


def test_what_does_not_fit_is_refused_whole_with_the_reason(site: Site) -> None:
    answer = site.change({"p1": [asked("aaaaaa", 2)], "p2": [asked("bbbbbb", 20)]})
    assert "insufficient capacity: " in answer["rejectionReason"]
    assert "bbbbbb" in answer["rejectionReason"]
    assert "aaaaaa" not in answer["rejectionReason"]
    assert site.objects("committedresources") == site.slots() == {}
    assert {one["phase"] for one in site.objects("commitmentchanges").values()} == {"withdrawn"}  # the leader's first


def test_a_dry_run_leaves_nothing(site: Site) -> None:
    assert site.change({"p1": [asked("aaaaaa", 8)]}, dryRun=True) == {}
    assert "insufficient capacity" in site.change({"p1": [asked("aaaaaa", 9)]}, dryRun=True)["rejectionReason"]
    assert site.objects("committedresources") == site.slots() == {}


def test_a_conversion_and_a_move_between_projects_are_accepted_on_full_hosts(site: Site) -> None:
    assert site.change({"b": [asked("aaaaaa", 8)]}) == {}
    both = [asked("aaaaaa", 8, old="confirmed", new="superseded"), asked("bbbbbb", 8)]
    assert site.change({"b": both}) == {}
    moved = {"b": [asked("bbbbbb", 8, old="confirmed", new=None)], "a": [asked("bbbbbb", 8)]}
    assert site.change(moved) == {}
    site.until(
        lambda: {one["spec"]["committedResourceReservation"]["projectID"] for one in site.slots().values()} == {"a"}
    )
    assert sum(1 for _ in site.slots()) == 8


def _project(slot: dict[str, Any]) -> str:
    return str(slot["spec"]["committedResourceReservation"]["projectID"])


def test_capacity_and_quota_are_reported_as_the_catalogue_says(site: Site) -> None:
    site.until(lambda: _capacity(site).get("capacity") == 8)
    quota = {"resources": {"hw_version_g_ram": {"quota": 30, "perAZ": {ZONE: {"quota": 30}}}}}
    assert site.ask("PUT", "/commitments/v1/projects/p1/quota", quota)[0] == 204
    _, usage = site.ask("POST", "/commitments/v1/projects/p1/report-usage", {"allAZs": [ZONE]})
    assert usage["resources"]["hw_version_g_ram"]["perAZ"][ZONE] == {"usage": 0, "quota": 30}


def _capacity(site: Site) -> dict[str, Any]:
    status, found = site.ask("POST", "/commitments/v1/report-capacity", {"allAZs": [ZONE]})
    return dict(found["resources"]["hw_version_g_ram"]["perAZ"][ZONE]) if status == 200 else {}


def test_an_old_version_a_stranger_and_nonsense_are_told_apart(site: Site) -> None:
    body = {"az": ZONE, "infoVersion": site.version() - 1, "byProject": {}}
    assert site.ask("POST", "/commitments/v1/change-commitments", body)[0] == 409
    assert site.ask("POST", "/commitments/v1/change-commitments", {"infoVersion": site.version()})[0] == 400
    stranger = Site(site.server, "nobody-has-this-token")
    assert stranger.ask("GET", "/commitments/v1/info")[0] == 401


def test_a_killed_server_has_the_whole_batch_or_nothing_of_it(tmp_path: Path) -> None:
    """SIGKILL while a batch of 8 commitments is on its way, at a few moments."""
    (tmp_path / "outlive.yaml").write_text(SETTINGS)
    config = ("--config", str(tmp_path / "outlive.yaml"))
    prepared = False
    for number, pause_s in enumerate((0.0, 0.01, 0.02, 0.04)):
        batch = [f"kill{number}{one}" for one in range(8)]
        with up(tmp_path, *config) as server:
            site = Site(server, (tmp_path / "token").read_text().strip())
            if not prepared:
                _prepared(site)
                prepared = True
            site.until(
                lambda at=site: "hw_version_g_ram" in at.ask("GET", "/commitments/v1/info")[1].get("resources", {})
            )
            _check_whole(site, number - 1)
            for name in site.objects("committedresources"):
                uuid = name.removeprefix("commitment-")
                assert site.change({"p1": [asked(uuid, 1, old="confirmed", new=None)]}) == {}
            site.until(lambda at=site: not at.slots())
            answer = _in_background(site, batch)
            time.sleep(pause_s)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            answer()
    with up(tmp_path, *config) as server:
        _check_whole(Site(server, (tmp_path / "token").read_text().strip()), 3)


def _check_whole(site: Site, number: int) -> None:
    site.until(lambda: all(one["phase"] != "decided" for one in site.objects("commitmentchanges").values()))
    found = [name for name in site.objects("committedresources") if name.startswith(f"commitment-kill{number}")]
    assert len(found) in (0, 8)
    site.until(lambda: len(site.slots()) == len(site.objects("committedresources")))


def _in_background(site: Site, batch: list[str]) -> Callable[[], None]:
    def send() -> None:
        with contextlib.suppress(OSError, AssertionError):  # the server is gone
            site.change({"p1": [asked(uuid, 1) for uuid in batch]})

    thread = Thread(target=send)
    thread.start()
    return thread.join
