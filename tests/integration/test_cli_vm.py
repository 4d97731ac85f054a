"""``outlive vm`` on a state directory: what is written, what is shown, and one line for whatever is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import COMMAND, Result, environment, outlive

from outlive.cli import STATE_COLOURS

UUID = "3f1c6f2e-5a0b-4c1d-9e57-0a4b6c8d2e10"
HOSTS = "".join(
    f"apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: {name}}}\nspec: {{management: {by}}}\n---\n"
    for name, by in (("kvm-1", "node"), ("kvm-2", "node"), ("nova-1", "nova"))
)


def xml(*, name: str = "web", uuid: str = UUID, memory: str = "2", cache: str = "none") -> str:
    """A definition with one disk."""
    disk = f"<disk><driver cache='{cache}'/><source file='/vms/{name}.raw'/><target dev='vda'/></disk>"
    size = f"<memory unit='GiB'>{memory}</memory><vcpu>2</vcpu>"
    return f"<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid>{size}<devices>{disk}</devices></domain>"


class Cloud:
    """A state directory with three hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "hosts.yaml").write_text(HOSTS)
        assert outlive("apply", "-f", folder / "hosts.yaml", "--state-dir", self.state).code == 0

    def vm(self, *arguments: str | Path) -> Result:
        """Run ``outlive vm``."""
        return outlive("vm", *arguments, "--state-dir", self.state)

    def define(self, text: str, *arguments: str) -> Result:
        """Define a VM from a file with this text."""
        file = self.folder / "vm.xml"
        file.write_text(text)
        return self.vm("define", file, *arguments)

    def spec(self, name: str = UUID) -> dict[str, Any]:
        """What is wanted of the VM."""
        found = json.loads(outlive("get", "vm", name, "-o", "json", "--state-dir", self.state).out)
        return dict(found["spec"])

    def facts(self, name: str = "web") -> dict[str, Any]:
        """What ``outlive vm info`` says."""
        return dict(json.loads(self.vm("info", name, "-o", "json").out))


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def test_a_vm_is_defined_shown_changed_renamed_and_undefined(cloud: Cloud) -> None:
    done = cloud.define(xml(), "--to", "kvm-2", "--limit", "kvm-1,kvm-2", "-a", "-d", "200")
    assert (done.code, done.out) == (0, f"web: defined as {UUID}\n")
    spec = cloud.spec()
    assert (spec["displayName"], spec["powerState"], spec["disks"]) == ("web", "stopped", ["file:/vms/web.raw"])
    assert (spec["request"]["verb"], spec["request"]["target"]) == ("move", "kvm-2")
    facts = cloud.facts()
    assert (facts["state"], facts["limit"], facts["selector"], facts["method"]) == (
        "stopped",
        "kvm-1, kvm-2",
        "Default",
        "Default",
    )
    assert (facts["vcpus"], facts["memoryMib"], facts["migrated"], facts["downtimeMs"]) == (2, 2048, "no", 200)

    assert cloud.vm("meta", "web", "--limit", "any", "--host-selector", "load").out == "web: configured\n"
    facts = cloud.facts(UUID)
    assert (facts["limit"], facts["selector"], facts["autostart"], facts["downtimeMs"]) == ("Any", "load", True, 200)
    listed = cloud.vm("list").out.splitlines()
    assert listed[1].split() == ["web", "stopped", "no", "Any", "load"]
    assert "Memory (MiB)" in cloud.vm("info", "web").out

    assert cloud.vm("rename", "web", "shop").out == f"{UUID} is called shop now; it was web\n"
    assert cloud.define(xml(memory="4"), "-m", "live").out == f"shop: configured as {UUID}\n"
    facts = cloud.facts("shop")
    assert (facts["memoryMib"], facts["method"], facts["selector"], facts["downtimeMs"]) == (4096, "live", "load", 200)
    assert cloud.define(xml(memory="4")).out == f"shop: unchanged as {UUID}\n"

    said = cloud.vm("start", "shop")
    assert said.code == 0
    assert "recovery answers" in said.out
    assert (cloud.spec()["request"]["verb"], cloud.spec().get("powerState", "running")) == ("start", "running")


def test_what_rests_is_undefined_once_somebody_agrees(cloud: Cloud) -> None:
    cloud.define(xml())
    refused = cloud.vm("undefine", "web")
    assert refused.code == 2
    assert "--yes" in refused.line
    done = cloud.vm("undefine", "web", "--yes")
    assert done.out == "web is undefined; its disks stay: file:/vms/web.raw\n"
    gone = cloud.vm("info", "web")
    assert (gone.code, gone.line) == (4, "outlive: there is no VM 'web' (see outlive vm list)")


def test_a_vm_of_another_name_is_known_by_the_uuid_of_its_definition(cloud: Cloud) -> None:
    document = {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": "guest-1"},
        "spec": {"definition": xml()},
    }
    (cloud.folder / "vm.json").write_text(json.dumps(document))
    assert outlive("apply", "-f", cloud.folder / "vm.json", "--state-dir", cloud.state).code == 0
    assert cloud.define(xml(memory="3")).out == "web: configured as guest-1\n"
    assert cloud.facts()["memoryMib"] == 3072


@pytest.mark.parametrize(
    ("text", "options", "code", "words"),
    [
        ("<domain", (), 3, "vm.xml: the definition is no XML"),
        ("<domain type='xen'/>", (), 3, "is not run here"),
        (xml(memory="many"), (), 3, "memory is 'many'"),
        (xml(cache="writeback"), (), 3, "disk vda would not start"),
        (xml(uuid="1"), (), 3, "is no UUID"),
        ("<!DOCTYPE a><domain/>", (), 3, "document type"),
        ("x" * 300_000, (), 8, "is larger than"),
        (xml(), ("--to", "kvm-9"), 4, "kvm-9"),
        (xml(), ("--to", "nova-1"), 1, "nova-1 is managed by nova"),
        (xml(), ("--limit", "kvm-9"), 4, "kvm-9"),
        (xml(), ("--limit", "any,kvm-1"), 2, "are no hosts"),
        (xml(), ("--host-selector", "best"), 2, "--host-selector: 'best' is not known (write one of mem,"),
        (xml(), ("--method", "warm"), 2, "'warm' is not known (write one of live, shutdown, default)"),
        (xml(), ("--downtime", "0"), 2, "--downtime"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_defined(
    cloud: Cloud, text: str, options: tuple[str, ...], code: int, words: str
) -> None:
    done = cloud.define(text, *options)
    assert (done.code, words in done.line) == (code, True), done.err
    assert cloud.vm("list", "-o", "json").out == "[]\n"


def test_without_a_host_of_ours_nothing_is_defined_that_nobody_would_place(tmp_path: Path) -> None:
    (tmp_path / "vm.xml").write_text(xml())
    done = outlive("vm", "define", tmp_path / "vm.xml", "--wait", "--state-dir", tmp_path / "state")
    assert (done.code, "no host has our daemon" in done.line) == (1, True), done.err


def test_changes_that_say_nothing_or_contradict_are_refused(cloud: Cloud) -> None:
    cloud.define(xml())
    assert "nothing is given" in cloud.vm("meta", "web").line
    again = cloud.define(xml(), "--to", "kvm-1")
    assert (again.code, "outlive vm move web --to kvm-1" in again.line) == (2, True)
    assert "no VM 'shop'" in cloud.vm("stop", "shop").line
    assert "is no name of a domain" in cloud.vm("rename", "web", "a/b").line


def test_a_definition_takes_no_other_vms_name_and_fits_some_host_that_it_may_run_on(cloud: Cloud) -> None:
    assert cloud.define(xml()).code == 0
    other = "00000000-5a0b-4c1d-9e57-0a4b6c8d2e10"
    assert "disk file:/vms/web.raw" in cloud.define(xml(uuid=other)).line
    refused = cloud.define(xml(uuid=other).replace("/vms/web.raw", "/vms/other.raw"))
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert f"{UUID} is called 'web' already" in refused.err
    sizes = "".join(
        f"apiVersion: outlive.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: {name}}}\nspec: {{management: node}}\n"
        f"status: {{capacity: {{cpu: '{cpu}', memory: {memory}}}}}\n---\n"
        for name, cpu, memory in (("kvm-1", 8, "4Gi"), ("kvm-2", 3, "64Gi"))
    )
    (cloud.folder / "sizes.yaml").write_text(sizes)
    assert outlive("apply", "--status", "-f", cloud.folder / "sizes.yaml", "--state-dir", cloud.state).code == 0
    large = cloud.define(xml(name="db", uuid=other, memory="4"))
    assert large.code == 1
    assert "on kvm-1 it needs 4096 MiB of memory, and the host has 4096" in large.err
    limited = cloud.define(xml(name="db", uuid=other), "--limit", "kvm-2")
    assert "on kvm-2 it needs 2 vCPUs, and the host has 3 cores, of which two are its own" in limited.err
    assert cloud.define(xml(name="db", uuid=other), "--to", "kvm-1").code == 0


def test_vms_are_tagged_and_listed_by_their_tags(cloud: Cloud) -> None:
    other = "00000000-5a0b-4c1d-9e57-0a4b6c8d2e10"
    assert cloud.define(xml(), "-g", "shop,eu", "-G", "billing").code == 0
    assert cloud.define(xml(name="db", uuid=other), "-g", "eu").code == 0
    assert cloud.facts()["tags"] == {"billing": "protected", "eu": "user", "shop": "user"}
    assert [line.split() for line in cloud.vm("tag", "list", "web").out.splitlines()[1:]] == [
        ["billing", "protected"],
        ["eu", "user"],
        ["shop", "user"],
    ]

    def listed(*options: str) -> list[str]:
        return [one["name"] for one in json.loads(cloud.vm("list", *options, "-o", "json").out)]

    assert listed("-g", "eu") == ["db", "web"]
    assert listed("-g", "eu,shop") == ["web"]
    assert (listed("-G", "billing"), listed("-G", "eu")) == (["web"], [])

    assert cloud.vm("tag", "add", "db", "shop", "tier.1").out == "db: eu, shop, tier.1\n"
    assert cloud.vm("tag", "add", "web", "billing").code == 0
    assert cloud.define(xml(), "-g", "billing").out == f"web: unchanged as {UUID}\n"
    assert listed("-G", "billing") == ["web"]
    refused = cloud.vm("tag", "remove", "web", "eu", "billing")
    assert (refused.code, refused.line) == (1, "outlive: tag billing of web is protected (add --force)")
    assert listed("-g", "eu") == ["db", "web"]
    assert cloud.vm("tag", "remove", "web", "eu", "billing", "--force").out == "web: shop\n"
    gone = cloud.vm("tag", "remove", "web", "eu")
    assert (gone.code, "web has no tag 'eu'" in gone.line) == (4, True)
    assert cloud.vm("tag", "remove", "web", "shop").out == "web: no tags\n"


@pytest.mark.parametrize(
    "arguments",
    [("list", "-g", ","), ("list", "-G", ""), ("tag", "add", "web", ","), ("tag", "remove", "web", "")],
    ids=" ".join,
)
def test_where_tags_are_asked_for_one_is_named(cloud: Cloud, arguments: tuple[str, ...]) -> None:
    cloud.define(xml())
    refused = cloud.vm(*arguments)
    assert (refused.code, "names no tag" in refused.line) == (2, True), refused.err


@pytest.mark.parametrize("name", ["a/b", "-a", "a b", "x" * 64])
def test_a_name_that_no_label_can_have_is_no_tag(cloud: Cloud, name: str) -> None:
    cloud.define(xml())
    for arguments in (("tag", "add", "web", "--", name), ("list", f"--tag={name}")):
        refused = cloud.vm(*arguments)
        assert (refused.code, "is no tag (at most 63 letters" in refused.line) == (2, True), refused.err
    assert cloud.facts()["tags"] == {}


def test_the_profile_of_a_vm_is_written_down(cloud: Cloud) -> None:
    cloud.define(xml())
    assert cloud.vm("meta", "web", "-p", "debian-small").out == "web: configured\n"
    assert cloud.vm("meta", "web", "-p", "debian-small").out == "web: unchanged\n"
    assert cloud.facts()["profile"] == "debian-small"
    assert cloud.vm("meta", "web", "-p", "default", "-s", "load").out == "web: configured\n"
    assert (cloud.facts()["profile"], cloud.facts()["selector"]) == ("", "load")
    refused = cloud.vm("meta", "web", "-p", "a b")
    assert (refused.code, "--profile: 'a b' is no name of a profile" in refused.line) == (2, True)


def on_a_terminal(cloud: Cloud, *arguments: str, **more: str) -> str:
    """What ``outlive vm`` prints on a terminal."""
    ours, its = pty.openpty()
    said = b""
    try:
        env = environment(TERM="xterm", COLUMNS="100", **more)
        words = [*COMMAND, "vm", *arguments, "--state-dir", str(cloud.state)]
        try:
            subprocess.run(words, stdout=its, stdin=subprocess.DEVNULL, env=env, timeout=60, check=True)
        finally:
            os.close(its)
        with contextlib.suppress(OSError):  # the terminal of a program that has ended
            while more_said := os.read(ours, 65_536):
                said += more_said
    finally:
        os.close(ours)
    return said.decode()


def test_states_have_colours_on_a_terminal_alone(cloud: Cloud) -> None:
    cloud.define(xml())
    assert "\x1b" not in cloud.vm("list").out
    assert "\x1b[31mstop" in on_a_terminal(cloud, "list")
    assert "\x1b[31mstop" in on_a_terminal(cloud, "info", "web")
    assert "\x1b[31m" not in on_a_terminal(cloud, "list", NO_COLOR="1")
    assert '"state": "stopped"' in on_a_terminal(cloud, "list", "-o", "json")
    assert {STATE_COLOURS[state] for state in ("starting", "unknown")} == {"yellow"}
    assert {STATE_COLOURS[state] for state in ("waiting", "down")} == {"red"}
    assert STATE_COLOURS["running"] == "green"


@pytest.mark.parametrize(
    ("command", "text", "code", "words"),
    [
        ("attach", "<disk", 1, "web does not run"),
        ("attach", b"\xff", 3, "a device is text in UTF-8"),
        ("attach", "x" * 300_000, 8, "is larger than"),
        ("detach", "vda", 1, "web does not run"),
    ],
)
def test_devices_of_what_does_not_run_are_changed_by_its_definition(
    cloud: Cloud, command: str, text: str | bytes, code: int, words: str
) -> None:
    cloud.define(xml())
    file = cloud.folder / "device.xml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    given = {"attach": [str(file)], "detach": ["vda", "--yes"]}.get(command, [])
    done = cloud.vm(command, "web", *given)
    assert done.code == code, done.err
    assert words in done.line


def test_the_locks_of_a_vm_are_flushed_by_request(cloud: Cloud) -> None:
    cloud.define(xml())
    done = cloud.vm("flush-locks", "web")
    assert (done.code, f"{UUID}: flush-locks is requested as " in done.out) == (0, True), done.err
