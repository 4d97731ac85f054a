"""Settings belong to the cluster that they are used on: those beside another state are never applied to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.command import Server, outlive, up

from outlive.resources import encode

HOSTS = "name,cpu,memory,zone\n" + "".join(f"h{n},64,256Gi,z\n" for n in range(4))
VMS = "id,name,cpu,memory,host,flavor,zone\n" + "".join(f"v{n},web-{n},4,16Gi,h{n % 4},m4,z\n" for n in range(7))
ALL = "failover:\n  flavorFailoverRequirements: {'*': 1}\n"
NOBODY = "failover:\n  flavorFailoverRequirements: {'other_*': 1}\n"


class TwoClusters(NamedTuple):
    """A server whose VMs all need a slot, and a state directory of another cluster, in which no VM needs one."""

    server: Server
    other: Path
    token: str

    def ask(self, *words: str | Path) -> tuple[int, Any, str]:
        """The exit code, the answer and what was said beside it, asked from the other cluster's machine."""
        where = ("--server", self.server.url, "--token", self.token, "--state-dir", self.other)
        done = outlive(*words, *where, "-o", "json")
        return done.code, json.loads(done.out) if done.out else None, done.err


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    folder = tmp_path_factory.mktemp("clusters")
    (folder / "hosts.csv").write_text(HOSTS)
    (folder / "vms.csv").write_text(VMS)
    for name, text in (("asked", ALL), ("other", NOBODY)):
        (folder / name).mkdir(mode=0o700)
        (folder / name / "outlive.yaml").write_text(text)
    csv = ("--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv", "--state-dir", folder / "asked")
    assert outlive("import", "csv", *csv).code == 0
    planned = outlive("failover", "plan", "--apply", "--state-dir", folder / "asked")
    assert planned.code == 0, planned.err
    with up(folder / "asked") as server:
        yield TwoClusters(server, folder / "other", (folder / "asked" / "token").read_text().strip())


def test_coverage_counts_by_the_settings_of_the_server_that_is_asked(clusters: TwoClusters) -> None:
    code, said, beside = clusters.ask("failover", "coverage")
    assert (code, said["required"], said["covered"], beside) == (0, 7, 7, "")


def test_what_survives_is_judged_by_the_settings_of_the_server(clusters: TwoClusters) -> None:
    code, said, _ = clusters.ask("survive", "h1")
    assert code == 0
    assert {one["vm"] for one in said["landing"]} == {"v1", "v5"}


def test_a_drain_is_tried_by_the_settings_of_the_server(clusters: TwoClusters) -> None:
    _, said, _ = clusters.ask("whatif", "drain", "h1")
    assert said["coverage"]["before"]["required"] == 7


def test_a_plan_is_made_by_the_settings_of_the_server(clusters: TwoClusters) -> None:
    _, said, _ = clusters.ask("failover", "plan")
    assert said["after"]["required"] == 7


def test_the_settings_that_are_shown_are_those_of_the_server_that_is_named(clusters: TwoClusters) -> None:
    code, said, _ = clusters.ask("config", "show")
    assert (code, said["failover"]["flavorFailoverRequirements"]) == (0, {"*": 1})
    assert "api" not in said
    _, here, _ = clusters.ask("config", "show", "--config", clusters.other / "outlive.yaml")
    assert here["failover"]["flavorFailoverRequirements"] == {"other_*": 1}


def test_a_file_that_is_given_counts_and_the_answer_says_so(clusters: TwoClusters) -> None:
    given = clusters.other / "outlive.yaml"
    _, said, beside = clusters.ask("failover", "coverage", "--config", given)
    assert said["required"] == 0
    assert beside == f"outlive: by the settings of {given}, not by those of server {clusters.server.url}\n"


def test_variables_of_the_machine_are_of_another_cluster_too(
    clusters: TwoClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVE_CONFIG", str(clusters.other / "outlive.yaml"))
    monkeypatch.setenv("OUTLIVE_FAILOVER__FLAVOR_FAILOVER_REQUIREMENTS", '{"other_*": 1}')
    _, said, _ = clusters.ask("failover", "coverage")
    assert said["required"] == 7


def test_a_state_directory_without_a_server_has_its_own_settings(clusters: TwoClusters, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    dumped = outlive("dump", "--server", clusters.server.url, "--token", clusters.token)
    state.write_text(dumped.out)
    done = outlive("failover", "coverage", "--state", state, "--state-dir", clusters.other, "-o", "json")
    assert json.loads(done.out)["required"] == 7


def test_the_server_tells_no_secret_among_its_settings() -> None:
    from outlive.cli import load, served_settings

    address = "postgresql://reader:hunter2@db/nova"
    flags = {
        "failoverUpkeep.databaseUrl": address,
        "failoverUpkeep.vmSource": "database",
        "failoverUpkeep.schedulerToken": "hunter2",
    }
    told = encode(served_settings(load(None, flags))).decode()
    assert "hunter2" not in told
    assert '"vmSource":"database"' in told
