"""A real kubectl against the embedded server, with the kubeconfig that the server writes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.api import TOKENS, api

from outlive.api import Role
from outlive.base import write_whole
from outlive.resources import Amounts, Hypervisor, HypervisorStatus, ObjectMeta

pytestmark = pytest.mark.component("kubectl")

Kubectl = Callable[..., Awaitable[tuple[int, str, str]]]
Started = Callable[..., Awaitable[asyncio.subprocess.Process]]

FLAVOR = """\
apiVersion: outlive.dev/v1alpha1
kind: Flavor
metadata: {name: m1, labels: {team: a}}
spec: {flavorName: m1.small, resources: {cpu: "2", memory: 4Gi}}
"""


@asynccontextmanager
async def started_kubectl(directory: Path) -> AsyncIterator[Started]:
    """A function that starts kubectl against a server with three hosts."""
    write_whole(directory / "token", TOKENS[Role.ADMIN].encode())
    environment = {**os.environ, "KUBECONFIG": str(directory / "kubeconfig"), "HOME": str(directory)}

    async with api(state_dir=directory) as server:
        for number in range(3):
            meta = ObjectMeta(name=f"h{number}", labels={"topology.kubernetes.io/zone": f"az{number % 2}"})
            made = await server.store.create(Hypervisor(metadata=meta))
            seen = HypervisorStatus(num_instances=number, capacity=Amounts(cpu=64_000, memory=2**38))
            await server.store.replace_status(Hypervisor(metadata=made.metadata, status=seen))

        async def start(*arguments: str) -> asyncio.subprocess.Process:
            pipe = subprocess.PIPE
            return await asyncio.create_subprocess_exec(
                "kubectl", *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
            )

        yield start


@asynccontextmanager
async def kubectl(directory: Path) -> AsyncIterator[Kubectl]:
    """A function that runs kubectl against such a server: exit code, output, errors."""
    async with started_kubectl(directory) as start:

        async def call(*arguments: str, stdin: str = "", timeout_s: float = 30) -> tuple[int, str, str]:
            process = await start(*arguments)
            try:
                out, err = await asyncio.wait_for(process.communicate(stdin.encode()), timeout_s)
            except TimeoutError:
                process.kill()
                raise
            assert process.returncode is not None
            return process.returncode, out.decode(), err.decode()

        yield call


async def test_get_prints_columns_and_wide_prints_more(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        code, out, err = await call("get", "hypervisors")
        assert code == 0, err
        lines = [line.split() for line in out.splitlines()]
        assert lines[0] == ["NAME", "ZONE", "STATE", "READY", "VMS", "CPU", "MEMORY", "AGE"]
        assert [line[0] for line in lines[1:]] == ["h0", "h1", "h2"]
        assert lines[3][2:5] == ["2", "64", "256Gi"]
        _, wide, _ = await call("get", "ohv", "-o", "wide")
        assert "MANAGEMENT" in wide
        _, one, _ = await call("get", "ohv", "h1", "-o", "json")
        assert json.loads(one)["kind"] == "Hypervisor"
        _, selected, _ = await call("get", "ohv", "-l", "topology.kubernetes.io/zone=az1", "-o", "name")
        assert selected.split() == ["hypervisor.outlive.dev/h1"]
        _, raw, _ = await call("get", "--raw", "/version")
        assert json.loads(raw)["outlive"] == "0.0.0"


async def test_config_view_shows_no_token(tmp_path: Path) -> None:
    """Nor does the address hold one; over plain HTTP kubectl sends none, so it is served by TLS beside it."""
    async with kubectl(tmp_path) as call:
        code, out, err = await call("config", "view")
        assert code == 0, err
        assert "server: https://127.0.0.1:" in out
        assert "token: REDACTED" in out
        assert TOKENS[Role.ADMIN] not in out
        assert "@" not in out
        assert (await call("get", "ohv"))[0] == 0


async def test_describe_and_explain_say_what_the_code_says(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        code, out, err = await call("describe", "ohv", "h1")
        assert code == 0, err
        assert "Num Instances:  1" in out
        code, out, err = await call("explain", "hypervisors.spec.allowedProjects")
        assert code == 0, err
        assert "empty: all" in out


async def test_create_apply_patch_and_delete(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        assert (await call("create", "-f", "-", stdin=FLAVOR))[:2] == (0, "flavor.outlive.dev/m1 created\n")
        code, _, err = await call("create", "-f", "-", stdin=FLAVOR)
        assert code == 1
        assert "AlreadyExists" in err
        bigger = FLAVOR.replace("4Gi", "8Gi")
        assert (await call("apply", "-f", "-", stdin=bigger))[:2] == (0, "flavor.outlive.dev/m1 configured\n")
        assert (await call("apply", "-f", "-", stdin=bigger))[:2] == (0, "flavor.outlive.dev/m1 unchanged\n")
        code, _, err = await call("patch", "flavor", "m1", "--type", "merge", "-p", '{"spec":{"diskGib":5}}')
        assert code == 0, err
        change = '[{"op":"replace","path":"/spec/diskGib","value":6}]'
        code, _, err = await call("patch", "flavor", "m1", "--type", "json", "-p", change)
        assert code == 0, err
        assert (await call("label", "flavor", "m1", "team=b", "--overwrite"))[0] == 0
        _, out, _ = await call("get", "flavor", "m1", "-o", "json")
        read = json.loads(out)
        assert (read["spec"]["diskGib"], read["spec"]["resources"]["memory"]) == (6, "8Gi")
        assert read["metadata"]["labels"] == {"team": "b"}
        assert (await call("delete", "flavor", "m1"))[:2] == (0, 'flavor.outlive.dev "m1" deleted\n')
        assert (await call("get", "flavor", "m1"))[0] == 1


async def test_the_status_half_is_patched_as_a_subresource(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        change = ("-p", '{"status":{"numInstances":9}}', "--type", "merge")
        await call("patch", "ohv", "h1", *change)
        _, out, _ = await call("get", "ohv", "h1", "-o", "jsonpath={.status.numInstances}")
        assert out == "1"
        code, _, err = await call("patch", "ohv", "h1", "--subresource=status", *change)
        assert code == 0, err
        _, out, _ = await call("get", "ohv", "h1", "-o", "jsonpath={.status.numInstances}")
        assert out == "9"


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (FLAVOR.replace("flavorName", "flavourName"), "flavourName"),
        (FLAVOR.replace("4Gi", "lots"), "lots"),
        (FLAVOR.replace("m1,", "M1,"), "DNS"),
    ],
)
async def test_a_wrong_manifest_is_refused_with_the_reason(tmp_path: Path, manifest: str, why: str) -> None:
    async with kubectl(tmp_path) as call:
        code, _, err = await call("create", "-f", "-", stdin=manifest)
        assert code == 1
        assert why in err


async def test_watching_prints_what_happens(tmp_path: Path) -> None:
    async with started_kubectl(tmp_path) as start, asyncio.timeout(60):
        watching, printed = await start("get", "ohv", "-w"), []
        assert watching.stdout is not None
        try:
            printed += [await watching.stdout.readline() for _ in range(4)]
            await (await start("label", "ohv", "h0", "seen=yes")).communicate()
            printed.append(await watching.stdout.readline())
        finally:
            watching.kill()
            await watching.communicate()
        assert [line.decode().split()[0] for line in printed] == ["NAME", "h0", "h1", "h2", "h0"]


async def test_server_side_dry_runs_and_diffs_change_nothing(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        code, out, err = await call("create", "--dry-run=server", "-f", "-", stdin=FLAVOR)
        assert (code, out) == (0, "flavor.outlive.dev/m1 created (server dry run)\n"), err
        assert (await call("get", "flavor", "m1"))[0] == 1
        code, out, err = await call("diff", "-f", "-", stdin=FLAVOR)
        assert (code, "+  flavorName: m1.small" in out) == (1, True), err
        assert (await call("apply", "-f", "-", stdin=FLAVOR))[0] == 0
        assert (await call("diff", "-f", "-", stdin=FLAVOR))[:2] == (0, "")
        bigger = FLAVOR.replace("4Gi", "8Gi")
        code, out, err = await call("diff", "-f", "-", stdin=bigger)
        assert (code, "+    memory: 8Gi" in out) == (1, True), err
        code, out, err = await call("diff", "--server-side", "-f", "-", stdin=bigger)
        assert (code, "+    memory: 8Gi" in out) == (1, True), err
        assert (await call("apply", "--dry-run=server", "-f", "-", stdin=bigger))[0] == 0
        assert (await call("delete", "--dry-run=server", "flavor", "m1"))[0] == 0
        _, out, _ = await call("get", "flavor", "m1", "-o", "jsonpath={.spec.resources.memory}")
        assert out == "4Gi"


async def test_server_side_apply_and_strategic_patches(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        applied = "flavor.outlive.dev/m1 serverside-applied\n"
        code, out, err = await call("apply", "--server-side", "-f", "-", stdin=FLAVOR)
        assert (code, out) == (0, applied), err
        without = FLAVOR.replace(", labels: {team: a}", "")
        code, out, err = await call("apply", "--server-side", "-f", "-", stdin=without)
        assert (code, out) == (0, applied), err
        _, out, _ = await call("get", "flavor", "m1", "-o", "json")
        assert "labels" not in json.loads(out)["metadata"]
        other = FLAVOR.replace("4Gi", "8Gi")
        code, _, err = await call("apply", "--server-side", "--field-manager=ci", "-f", "-", stdin=other)
        assert (code, "spec.resources.memory" in err) == (1, True)
        forced = ("apply", "--server-side", "--field-manager=ci", "--force-conflicts", "-f", "-")
        assert (await call(*forced, stdin=other))[:2] == (0, applied)
        code, _, err = await call("patch", "flavor", "m1", "-p", '{"spec":{"diskGib":5}}')
        assert code == 0, err


async def test_describe_shows_events_and_get_lists_them(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        event = {
            "apiVersion": "outlive.dev/v1alpha1",
            "kind": "Event",
            "metadata": {"name": "h1.1"},
            "regarding": {"kind": "Hypervisor", "name": "h1"},
            "reason": "HostLost",
            "note": "the host is silent",
            "source": "fencing",
            "firstSeen": "2026-01-01T00:00:00Z",
            "lastSeen": "2026-01-01T00:00:00Z",
        }
        code, _, err = await call("create", "-f", "-", stdin=json.dumps(event))
        assert code == 0, err
        _, out, _ = await call("describe", "ohv", "h1")
        assert "HostLost" in out
        assert "the host is silent" in out
        assert "HostLost" not in (await call("describe", "ohv", "h2"))[1]
        code, out, err = await call("get", "events")
        assert (code, "hypervisor/h1" in out) == (0, True), err
        older = {**event, "metadata": {"name": "h1.2"}, "reason": "Older", "lastSeen": "2025-01-01T00:00:00Z"}
        assert (await call("create", "-f", "-", stdin=json.dumps(older)))[0] == 0
        code, out, err = await call("get", "events", "--sort-by=.lastTimestamp")
        assert (code, out.index("Older") < out.index("HostLost")) == (0, True), err


async def test_can_i_is_answered_by_the_rules_that_requests_are_judged_by(tmp_path: Path) -> None:
    async with kubectl(tmp_path) as call:
        code, out, err = await call("auth", "can-i", "delete", "hypervisors")
        assert (code, out) == (0, "yes\n"), err
        code, out, err = await call("auth", "can-i", "--list")
        assert (code, "hypervisors" in out) == (0, True), err
