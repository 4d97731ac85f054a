"""Capacity is sold over HTTP by the real server, as Limes buys it, and survives that the server is killed."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.support.command import Server, up
from tests.support.loops import REAL_LIMIT_S

ZONE = "zone-a"
CHANGE = "/commitments/v1/change-commitments"
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

    def batch(self, projects: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
        """The request for a batch of commitments of memory."""
        resources: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for project, wanted in projects.items():
            for one in wanted:
                named = resources.setdefault(project, {}).setdefault(f"hw_version_{one['group']}_ram", [])
                named.append({member: value for member, value in one.items() if member != "group"})
        return {
            "az": ZONE,
            "infoVersion": self.version(),
            "byProject": {
                project: {
                    "byResource": {name: _totals(found) | {"commitments": found} for name, found in named.items()}
                }
                for project, named in resources.items()
            },
            **more,
        }

    def change(self, projects: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
        """Send a batch of commitments of memory; the answer."""
        status, answer = self.send(self.batch(projects, **more))
        assert status == 200, answer
        return dict(answer)

    def named(self, request_id: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Send a batch under a name; status and answer."""
        return self.send(body, X_Request_ID=request_id)

    def send(self, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """Send a batch; status and answer. A server that has just started is asked until it leads."""
        answers: list[tuple[int, Any]] = []

        def answered() -> bool:
            answers.append(self.ask("POST", CHANGE, body, **headers))
            return answers[-1][0] != 503

        self.until(answered)
        return answers[-1]

    def ready(self, uuid: str) -> list[tuple[str, str, str]]:
        """The conditions of a commitment, none where it is not there yet."""
        found = self.objects("committedresources").get(f"commitment-{uuid}", {})
        conditions = found.get("status", {}).get("conditions", ())
        return [(one["type"], one["status"], one["reason"]) for one in conditions]

    def objects(self, plural: str) -> dict[str, dict[str, Any]]:
        """All objects of a kind, by name."""
        found = self.ask("GET", f"/apis/outlive.dev/v1alpha1/{plural}")[1]["items"]
        return {one["metadata"]["name"]: one for one in found}

    def batches(self) -> dict[str, dict[str, Any]]:
        """All batches that were committed."""
        found = self.objects("commitmentchanges")
        return {name: one for name, one in found.items() if one.get("phase") != "withdrawn" and not one.get("partOf")}

    def slots(self) -> dict[str, dict[str, Any]]:
        """All commitment slots."""
        found = self.objects("reservations")
        return {name: one for name, one in found.items() if one["spec"]["type"] == "CommittedResourceReservation"}

    def until_sold(self, group: str = "g") -> None:
        """Wait until the flavor group is known."""

        def is_sold() -> bool:
            status, offered = self.ask("GET", "/commitments/v1/info")
            return status == 200 and f"hw_version_{group}_ram" in offered["resources"]

        self.until(is_sold)

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


def _totals(wanted: list[dict[str, Any]]) -> dict[str, int]:
    return {
        f"total{state.capitalize()}{when}": sum(one["amount"] for one in wanted if one[f"{word}Status"] == state)
        for state in ("confirmed", "guaranteed")
        for when, word in (("Before", "old"), ("After", "new"))
    }


def asked(
    uuid: str, amount: int, *, old: str | None = None, new: str | None = "confirmed", group: str = "g"
) -> dict[str, Any]:
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    return {"uuid": uuid, "oldStatus": old, "newStatus": new, "amount": amount, "expiresAt": expires, "group": group}


ACCEPTED = [("Ready", "True", "Accepted")]


def _is_ready(slot: dict[str, Any]) -> bool:
    return any((one["type"], one["status"]) == ("Ready", "True") for one in slot["status"].get("conditions", ()))


def _offer(site: Site, name: str, group: str, *, gib: int) -> None:
    """A flavor of a group, which is in the catalogue when this returns."""
    flavor = {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Flavor",
        "metadata": {"name": name},
        "spec": {
            "flavorName": name,
            "resources": {"cpu": "1", "memory": f"{gib}Gi"},
            "extraSpecs": {"quota:hw_version": group, "capabilities:hypervisor_type": "QEMU"},
        },
    }
    assert site.ask("POST", "/apis/outlive.dev/v1alpha1/flavors", flavor)[0] == 201
    site.until_sold(group)


def _prepared(site: Site) -> None:
    """Two hosts of 4 GiB, and a flavor of 1 GiB."""
    _offer(site, "m1", "g", gib=1)
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
    site.until(lambda: any(_is_ready(one) for one in site.slots().values()))
    assert set(site.objects("committedresources")) == {"commitment-aaaaaa"}
    site.until(lambda: site.ready("aaaaaa") == ACCEPTED)
    (slot,) = site.slots().values()
    assert slot["spec"]["targetHost"] == slot["status"]["host"] != ""
    status, usage = site.ask("POST", "/commitments/v1/projects/p1/report-usage", {"allAZs": [ZONE]})
    assert status == 200
    assert usage["resources"]["hw_version_g_ram"]["perAZ"][ZONE]["usage"] == 0
    assert site.change({"p1": [asked("aaaaaa", 1, old="confirmed", new=None)]}) == {}
    site.until(lambda: not site.slots() and not site.objects("committedresources"))


def _check_nothing_is_there(site: Site) -> None:
    assert site.objects("committedresources") == site.slots() == site.batches() == {}


def test_what_does_not_fit_is_refused_whole_with_the_reason(site: Site) -> None:
    answer = site.change({"p1": [asked("aaaaaa", 9)]})
    assert answer["rejectionReason"].startswith(
        "1 commitment(s) failed to apply:\n- commitment aaaaaa: insufficient capacity: 8/9 reservation slots"
    )
    _check_nothing_is_there(site)
    answer = site.change({"p1": [asked("aaaaaa", 2)], "p2": [asked("bbbbbb", 20)]})
    assert "insufficient capacity: " in answer["rejectionReason"]
    assert "bbbbbb" in answer["rejectionReason"]
    assert "aaaaaa" not in answer["rejectionReason"]
    _check_nothing_is_there(site)
    answer = site.change({"p2": [asked("bbbbbb", 20)], "p1": [asked("aaaaaa", 20)]})
    first, *refused = answer["rejectionReason"].splitlines()
    assert first == "2 commitment(s) failed to apply:"
    assert [one.partition(": insufficient capacity: ")[0] for one in refused] == [
        "- commitment aaaaaa",
        "- commitment bbbbbb",
    ]
    _check_nothing_is_there(site)


def _project(slot: dict[str, Any]) -> str:
    return str(slot["spec"]["committedResourceReservation"]["projectID"])


def test_a_conversion_and_a_move_between_projects_are_accepted_on_full_hosts(site: Site) -> None:
    assert site.change({"b": [asked("aaaaaa", 8)]}) == {}
    both = [asked("aaaaaa", 8, old="confirmed", new="superseded"), asked("bbbbbb", 8)]
    assert site.change({"b": both}) == {}
    moved = {"b": [asked("bbbbbb", 8, old="confirmed", new=None)], "a": [asked("bbbbbb", 8)]}
    assert site.change(moved) == {}
    site.until(lambda: [_project(one) for one in site.slots().values()] == ["a"] * 8)
    assert site.objects("committedresources")["commitment-bbbbbb"]["spec"]["projectID"] == "a"
    site.until(lambda: site.ready("bbbbbb") == ACCEPTED)


def test_capacity_and_quota_are_reported_as_the_catalogue_says(site: Site) -> None:
    site.until(lambda: _capacity(site).get("capacity") == 8)
    quota = {"resources": {"hw_version_g_ram": {"quota": 30, "perAZ": {ZONE: {"quota": 30}}}}}
    assert site.ask("PUT", "/commitments/v1/projects/p1/quota", quota)[0] == 204
    _, usage = site.ask("POST", "/commitments/v1/projects/p1/report-usage", {"allAZs": [ZONE]})
    assert usage["resources"]["hw_version_g_ram"]["perAZ"][ZONE] == {"usage": 0, "quota": 30}


def _capacity(site: Site) -> dict[str, Any]:
    status, found = site.ask("POST", "/commitments/v1/report-capacity", {"allAZs": [ZONE]})
    return dict(found["resources"]["hw_version_g_ram"]["perAZ"][ZONE]) if status == 200 else {}


def test_a_killed_server_has_the_whole_batch_or_nothing_of_it_and_answers_it_again(tmp_path: Path) -> None:
    """SIGKILL while a batch of 8 commitments is on its way, at a few moments; then the caller, who may have heard
    nothing, sends the same request again."""
    (tmp_path / "outlive.yaml").write_text(SETTINGS)
    config = ("--config", str(tmp_path / "outlive.yaml"))
    sent: dict[str, Any] = {}
    for number, pause_s in enumerate((0.0, 0.01, 0.03, None)):
        with up(tmp_path, *config) as server:
            site = Site(server, (tmp_path / "token").read_text().strip())
            if number == 0:
                _prepared(site)
            site.until_sold()
            if sent:
                _check_whole(site, number - 1)
                assert site.named(f"kill-{number - 1}", sent) == (200, {})
                _check_whole(site, number - 1, there=(8,))
                gone = [asked(f"kill{number - 1}{one}", 1, old="confirmed", new=None) for one in range(8)]
                assert site.change({"p1": gone}) == {}
                assert site.named(f"kill-{number - 1}", sent) == (200, {})
                _check_whole(site, number - 1, there=(0,))
            if pause_s is None:
                return
            sent = site.batch({"p1": [asked(f"kill{number}{one}", 1) for one in range(8)]})
            answer = _in_background(site, f"kill-{number}", sent)
            time.sleep(pause_s)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            answer()


def _check_whole(site: Site, number: int, there: tuple[int, ...] = (0, 8)) -> None:
    site.until(lambda: all(one.get("phase") == "applied" for one in site.batches().values()))
    found = [name for name in site.objects("committedresources") if name.startswith(f"commitment-kill{number}")]
    assert len(found) in there
    site.until(lambda: len(site.slots()) == len(site.objects("committedresources")))


def _in_background(site: Site, name: str, body: dict[str, Any]) -> Callable[[], None]:
    def send() -> None:
        with contextlib.suppress(OSError, HTTPException):  # the server is gone, perhaps in the middle of its answer
            site.named(name, body)

    thread = Thread(target=send)
    thread.start()
    return thread.join
