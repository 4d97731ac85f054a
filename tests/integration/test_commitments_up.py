"""Selling capacity as a new user does: from the shipped example to a confirmed commitment, with a real server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Result, outlive, up

from outlive.api import TOKEN_FILE
from outlive.cli import running_server

LIMIT_S = 60.0
ASK = ("--project", "shop-1", "--group", "g", "--zone", "zone-a")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a server with the example, whose capacity was counted."""
    directory = tmp_path_factory.mktemp("shop") / "state"
    with up(directory, "--example", env={"OUTLIVE_COMMITMENTS__CAPACITY_MIN_RECONCILE_INTERVAL": "2s"}) as server:
        assert any("example: hosts and VMs that exist nowhere" in line for line in server.said)
        _wait_for_capacity(directory)
        yield directory


def _wait_for_capacity(directory: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        found = json.loads(outlive("get", "flavorgroupcapacities", "--state-dir", directory, "-o", "json").out)
        if len(found["items"]) == 6:
            return
        time.sleep(0.5)
    raise AssertionError("no capacity was counted")


def _wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.2)


def said(shop: Path, *words: str) -> Result:
    return outlive("commitments", *words, "--state-dir", shop)


def document(shop: Path, *words: str) -> Any:
    return json.loads(said(shop, *words, "-o", "json").out)


def test_from_the_example_to_a_confirmed_commitment(shop: Path) -> None:
    """``scripts/run`` is the first of five commands."""
    assert "zone-a" in said(shop, "capacity").out
    asked = said(shop, "request", *ASK, "--amount", "8", "--dry-run")
    assert (asked.code, asked.out) == (0, "8 x 4 GiB of g in zone-a would be accepted for shop-1\n"), asked.err
    assert document(shop, "list") == []
    made = document(shop, "request", *ASK, "--amount", "8")
    assert made["accepted"]
    _wait_for(lambda: said(shop, "show", made["uuid"]).code == 0)  # a moment after the answer it is written
    shown = said(shop, "show", made["uuid"])
    assert "Accepted: commitment successfully reserved" in shown.out
    slots = document(shop, "show", made["uuid"])["slots"]
    assert sum(int(one["size"]["memory"].removesuffix("Gi")) for one in slots) == 32
    assert said(shop, "check").code == 0
    gone = said(shop, "delete", made["uuid"], "--yes")
    assert gone.code == 0, gone.err
    _wait_for(lambda: said(shop, "show", made["uuid"]).code == 4)


def test_a_refusal_is_a_no_that_leads_to_an_explanation(shop: Path) -> None:
    refused = said(shop, "request", "--project", "shop-1", "--group", "m", "--zone", "zone-a", "--amount", "24Ti")
    assert refused.code == 1
    assert "insufficient capacity" in refused.out
    assert "outlive commitments explain --project shop-1 --group m --zone zone-a --amount 24Ti" in refused.out
    explained = said(shop, "explain", "--project", "shop-1", "--group", "m", "--zone", "zone-a", "--amount", "24Ti")
    assert explained.code == 1
    assert "is nearest to having room" in explained.out


def test_cores_are_sold_and_what_is_unknown_is_named(shop: Path) -> None:
    made = document(shop, "request", *ASK, "--amount", "4cores")
    assert (made["accepted"], made["unit"]) == (True, "cores")
    _wait_for(lambda: said(shop, "show", made["uuid"]).code == 0)
    assert said(shop, "delete", made["uuid"], "--yes").code == 0
    unknown = said(shop, "request", "--project", "p", "--group", "x", "--zone", "zone-a", "--amount", "1")
    assert unknown.code == 4
    assert "known are: c, g, m" in unknown.line


def test_the_self_check_passes_and_leaves_nothing_behind(shop: Path) -> None:
    done = said(shop, "e2e", json.dumps({"azs": ["zone-a"]}))
    assert done.code == 0, done.err
    assert done.out.endswith("everything works\n")
    for check in ("dry run", "round trip", "batch"):
        assert f"{check} of hw_version_g_ram in zone-a: accepted" in done.out
    _wait_for(lambda: document(shop, "list") == [])


def test_the_self_check_fails_where_a_zone_is_none_or_the_server_is_not_one(shop: Path) -> None:
    refused = said(shop, "e2e", json.dumps({"azs": ["any"]}))
    assert refused.code == 1, refused.out
    assert "in any was refused" in refused.line
    assert said(shop, "e2e", json.dumps({"baseURL": "http://127.0.0.1:9"}), "--token", "any").code == 1
    assert said(shop, "e2e", "{").code == 3


def test_repairs_are_done_by_the_server(shop: Path) -> None:
    _wait_for(lambda: said(shop, "check").code == 0)  # slots go a moment after their commitment
    repaired = said(shop, "check", "--apply")
    assert repaired.code == 0, repaired.err
    assert repaired.out.startswith("0 were repaired\n")
    made = document(shop, "request", *ASK, "--amount", "8")["uuid"]
    _charge(shop, made, "nowhere")
    found = said(shop, "check")
    assert found.code == 1, found.out
    assert "charged-unknown" in found.out
    repaired = said(shop, "check", "--apply")
    assert repaired.code == 0, repaired.out
    assert repaired.out.startswith("1 were repaired\ncommitments, slots, hosts and VMs agree\n")
    assert said(shop, "delete", made, "--yes").code == 0


def _charge(shop: Path, uuid: str, vm: str) -> None:
    """Somebody writes that a commitment is charged this VM, once its usage was counted."""
    ask = ("get", "committedresources", f"commitment-{uuid}", "--state-dir", shop, "-o", "json")
    _wait_for(lambda: "lastUsageReconcileAt" in outlive(*ask).out)
    address, token = running_server(shop), (shop / TOKEN_FILE).read_text().strip()
    asked = urllib.request.Request(
        f"{address}/apis/outlive.dev/v1alpha1/committedresources/commitment-{uuid}/status",
        data=json.dumps({"status": {"assignedInstances": [vm]}}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200


def test_the_settings_of_the_example_are_written_once_and_kept(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with up(directory, "--example"):
        pass
    file = directory / "outlive.yaml"
    file.write_text(file.read_text() + "# mine\n")
    with up(directory, "--example"):
        pass
    assert file.read_text().endswith("# mine\n")


def test_without_the_example_nothing_is_sold(tmp_path: Path) -> None:
    with up(tmp_path / "state"):
        refused = outlive("commitments", "request", *ASK, "--amount", "8", "--state-dir", tmp_path / "state")
        assert refused.code == 4
        assert "known are: none" in refused.line
    assert not (tmp_path / "state" / "outlive.yaml").exists()
