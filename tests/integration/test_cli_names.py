"""One resolver of names: whatever takes a VM takes its id, its display name, or project/name; tables show both."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.browser import Browser, browser
from tests.support.command import Result, environment, outlive, spawned, up

HOSTS = "name,cpu,memory,zone\n" + "".join(f"kvm-{n},64,256Gi,z\n" for n in range(1, 5))
VMS = """id,name,project,cpu,memory,host,flavor,zone
9b2f0001-0000-4000-8000-000000000001,web,p-1,4,16Gi,kvm-1,m4,z
9b2f0001-0000-4000-8000-000000000002,web,p-2,4,16Gi,kvm-2,m4,z
9b2f0001-0000-4000-8000-000000000003,auth-227,p-1,4,16Gi,kvm-3,m4,z
"""
AUTH = "9b2f0001-0000-4000-8000-000000000003"
WEB_2 = "9b2f0001-0000-4000-8000-000000000002"
QUOTA = """apiVersion: outlive.dev/v1alpha1
kind: ProjectQuota
metadata: {name: quota-p-2-z}
spec: {projectID: p-2, projectName: shop, availabilityZone: z, quota: {}}
"""
EVENT = f"""apiVersion: outlive.dev/v1alpha1
kind: Event
metadata: {{name: moved}}
regarding: {{kind: VirtualMachine, name: {AUTH}}}
reason: Moved
note: {AUTH} left {WEB_2} behind
source: test
firstSeen: "2026-01-01T00:00:00Z"
lastSeen: "2026-01-01T00:00:00Z"
"""
TRIES = 5
"""How often something may change between two answers."""
SETTINGS = "failover:\n  flavorFailoverRequirements: {'*': 1}\n"


class Cloud(NamedTuple):
    """A running server with three VMs, two of which have the same name."""

    url: str
    token: str
    state: Path

    def run(self, *words: str | Path) -> Result:
        return outlive(*words, "--server", self.url, "--token", self.token)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("names")
    (folder / "hosts.csv").write_text(HOSTS)
    (folder / "vms.csv").write_text(VMS)
    (folder / "quota.yaml").write_text(QUOTA)
    (folder / "event.yaml").write_text(EVENT)
    state = folder / "state"
    state.mkdir(mode=0o700)
    (state / "outlive.yaml").write_text(SETTINGS)
    where = ("--state-dir", state)
    assert outlive("import", "csv", "--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv", *where).code == 0
    assert outlive("apply", "-f", folder / "quota.yaml", *where).code == 0
    assert outlive("apply", "-f", folder / "event.yaml", *where).code == 0
    with up(state) as server:
        server.until("3 of 3 VMs that need slots are covered")
        yield Cloud(server.url, (state / "token").read_text().strip(), state)


QUESTIONS = (
    ("get", "vms", "{vm}"),
    ("describe", "vm", "{vm}"),
    ("why", "{vm}"),
    ("vm", "info", "{vm}"),
    ("failover", "explain", "{vm}"),
    ("placement", "rank", "--vm", "{vm}"),
)


@pytest.mark.parametrize("words", QUESTIONS, ids=lambda words: " ".join(words))
def test_a_vm_is_found_by_its_id_its_name_and_its_project_and_name(cloud: Cloud, words: tuple[str, ...]) -> None:
    for _ in range(TRIES):
        answers = [
            cloud.run(*(word.format(vm=name) for word in words), "-o", "json")
            for name in (AUTH, "auth-227", "p-1/auth-227")
        ]
        assert [one.code for one in answers] == [0, 0, 0], answers
        if len({one.out for one in answers}) == 1:
            break
    else:
        pytest.fail(f"the answers differ: {answers}")
    if words[0] != "placement":
        assert AUTH in answers[0].out


@pytest.mark.parametrize("words", QUESTIONS, ids=lambda words: " ".join(words))
def test_a_name_that_two_have_is_refused_with_both(cloud: Cloud, words: tuple[str, ...]) -> None:
    done = cloud.run(*(word.format(vm="web") for word in words))
    assert done.code == 3, done
    for candidate in ("p-1/web (9b2f0001-0000-4000-8000-000000000001)", f"p-2/web ({WEB_2})"):
        assert candidate in done.err


def test_a_project_is_named_by_its_name_too(cloud: Cloud) -> None:
    done = cloud.run("get", "vms", "shop/web", "-o", "json")
    assert json.loads(done.out)["metadata"]["name"] == WEB_2


def test_what_changes_a_vm_finds_it_by_name(cloud: Cloud) -> None:
    assert cloud.run("unprotect", "auth-227", "--reason", "test").code == 0
    assert cloud.run("protect", "p-1/auth-227").code == 0
    spec = json.loads(cloud.run("get", "vms", AUTH, "-o", "json").out)["spec"]
    assert spec.get("recovery", {}).get("mode", "") == ""


def test_a_host_that_there_is_not_is_named_with_the_nearest(cloud: Cloud) -> None:
    done = cloud.run("drain", "kvm-11")
    assert done.code == 4
    assert "there is no Hypervisor 'kvm-11'" in done.err
    assert "did you mean kvm-1?" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("get", "vms"),
        ("get", "coverages"),
        ("get", "coverages", "auth-227"),
        ("why", "auth-227"),
        ("failover", "explain", "auth-227"),
        ("survive", "kvm-3"),
        ("whatif", "drain", "kvm-3"),
        ("whatif", "remove-host", "kvm-3"),
        ("failover", "tolerance"),
        ("failover", "views", "hypervisors"),
        ("failover", "views", "hypervisors-vms-res"),
        ("failover", "views", "vms"),
        ("failover", "views", "reservations"),
        ("failover", "views", "all-servers"),
        ("get", "events"),
    ],
    ids=" ".join,
)
def test_tables_and_sentences_name_a_vm_before_its_id(cloud: Cloud, words: tuple[str, ...]) -> None:
    text = cloud.run(*words).out
    line = next(line for line in text.splitlines() if AUTH in line)
    assert 0 <= line.index("auth-227") < line.index(AUTH), text


def test_completion_names_vms_and_hosts_and_is_silent_without_a_server(cloud: Cloud, tmp_path: Path) -> None:
    def completed(line: str, directory: Path) -> list[str]:
        env = environment(
            _OUTLIVE_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
            OUTLIVE_STATE_DIR=str(directory),
        )
        done = spawned(env=env)
        assert done.err == ""
        return done.out.split()

    assert completed("outlive vm info au", cloud.state) == ["auth-227"]
    assert completed("outlive host drain kvm-1,kv", cloud.state) == [f"kvm-1,kvm-{n}" for n in range(1, 5)]
    assert completed("outlive why kvm-2", cloud.state) == ["kvm-2"]
    assert completed("outlive describe hosts kvm-", cloud.state) == [f"kvm-{n}" for n in range(1, 5)]
    assert completed("outlive vm info au", tmp_path) == []


@pytest.mark.component("chromium")
def test_the_page_finds_a_vm_by_its_name_and_links_to_it(cloud: Cloud, tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        tab.open(f"{cloud.url}/#token={cloud.token}", width=1200)
        assert _text(tab, "promise") == "The promise"
        tab.evaluate("at('wanted').value = 'auth'; at('search').requestSubmit()")
        found = _text(tab, "matches tbody tr")
        assert all(word in found for word in ("auth-227", AUTH, "p-1", "kvm-3", "reserved only")), found
        assert tab.evaluate("document.querySelector('#matches a').getAttribute('href')") == f"#vm={AUTH}"
        assert tab.complaints == []


def _text(tab: Browser, element: str, limit_s: float = 60.0) -> str:
    """What an element shows, once it is visible."""
    until = time.monotonic() + limit_s
    while True:
        text = str(tab.evaluate(f"(document.querySelector('#{element}') || {{}}).innerText || ''"))
        if text or time.monotonic() > until:
            return text
        time.sleep(0.05)
