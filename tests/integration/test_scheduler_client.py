from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.support.loops import run_real

from outlive.base import BadInput, Refused, Unavailable
from outlive.drivers import SchedulerClient
from outlive.failover import Caller, WithCandidates, resolve_size, write_candidates
from outlive.placement import Destination, Fleet, InstanceGroup, PlacementOptions, VmView, decode_request
from outlive.resources import Hypervisor, HypervisorStatus, ObjectMeta, object_name

GIB = 2**30
VM = VmView(id="v", host="h1", zone="z", project="p", flavor="m4", cpu_milli=2500, memory_bytes=4 * GIB + 1)
NEW = Caller().build_new_call(VM, resolve_size(VM), ignore=["h1"], req="r", greq="failover-1")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scheduler(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/scheduler/nova/external", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/scheduler/nova/external"
    finally:
        await runner.cleanup()


def ask(handler: Handler, call=NEW, *, hosts=("h1", "h2", "h3"), **options):
    async def story():
        async with scheduler(handler) as url:
            client = SchedulerClient(url, **options)
            try:
                return await client.offer(write_candidates(call, hosts) if hosts else call)
            finally:
                await client.close()

    return run_real(story())


def answering(body: str, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type="application/json")

    return handler


def test_the_body_is_the_call_as_the_receiving_side_reads_it():
    seen: list[bytes] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.read())
        assert request.headers["Authorization"] == "Bearer secret"
        return web.json_response({"hosts": ["h3", "h2"]})

    assert ask(handler, token="secret").hosts == ("h3", "h2")
    body = json.loads(seen[0])
    spec = body["spec"]["nova_object.data"]
    assert (spec["instance_uuid"], spec["num_instances"], spec["ignore_hosts"]) == ("v", 1, ["h1"])
    assert spec["flavor"]["nova_object.data"]["memory_mb"] == 4097
    assert spec["flavor"]["nova_object.data"]["vcpus"] == 3
    assert [one["host"] for one in body["hosts"]] == ["h2", "h3"]
    assert body["weights"] == {"h2": 0, "h3": 0}
    assert body["context"]["global_request_id"] == "failover-1"
    assert body["options"] == {
        "lock_reservations": True,
        "skip_history": True,
        "skip_inflight": True,
        "skip_committed_resource_tracking": True,
    }
    read = decode_request(seen[0])
    assert (read.intent, read.hints["_cortex_resource_group"]) == (NEW.request.intent, "m4")


def cloud_of(*names: str) -> Fleet:
    """Hosts that Nova calls so."""
    found = Fleet()
    for name in names:
        ours = object_name(name, "host")
        status = HypervisorStatus(source_name="" if ours == name else name)
        found.upsert_host(Hypervisor(metadata=ObjectMeta(name=ours), status=status))
    return found


def test_a_scheduler_gets_and_gives_the_names_that_the_cloud_has_for_its_hosts():
    """What is sent is what Nova sends (``KVM_01`` is no name of an object), so that the other side knows the hosts."""
    fleet = cloud_of("KVM_01", "KVM_02", "kvm-03")
    first, second, third = (object_name(name, "host") for name in ("KVM_01", "KVM_02", "kvm-03"))
    vm = msgspec.structs.replace(VM, host=first, host_limit=(first, second))
    search = Caller().build_new_call(vm, resolve_size(vm), ignore=[first])
    group = InstanceGroup(policy="affinity", members=("v",), hosts=(first,))
    full = msgspec.structs.replace(search.request, destination=Destination(host=second), group=group)
    sent: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sent.append(await request.json())
        return web.json_response({"hosts": ["kvm-03", "KVM_02", "STRANGE"]})

    async def story() -> None:
        async with scheduler(handler) as url:
            client = SchedulerClient(url)
            try:
                port = WithCandidates(client, fleet)
                asked = msgspec.structs.replace(search, request=full)
                assert (await port.offer(asked)).hosts == (third, second)
                assert second in (await port.offer(Caller().validate(vm, second))).hosts
            finally:
                await client.close()

    run_real(story())
    searched, validated = ((one, one["spec"]["nova_object.data"]) for one in sent)
    assert {one["host"] for one in searched[0]["hosts"]} == {"kvm-03", "KVM_02"}
    assert searched[0]["weights"] == {"kvm-03": 0, "KVM_02": 0}
    assert (searched[1]["ignore_hosts"], searched[1]["force_hosts"]) == (["KVM_01"], ["KVM_01", "KVM_02"])
    assert searched[1]["requested_destination"]["nova_object.data"]["host"] == "KVM_02"
    assert searched[1]["instance_group"]["nova_object.data"]["hosts"] == ["KVM_01"]
    assert ([one["host"] for one in validated[0]["hosts"]], validated[1]["ignore_hosts"]) == (["KVM_02"], ["KVM_01"])
    assert decode_request(json.dumps(sent[1]).encode()).hosts == (second,)


def test_validation_sends_an_empty_own_host_as_well():
    seen: list[bytes] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(await request.read())
        return web.json_response({"hosts": ["h7"]})

    homeless = VmView(id="v", host="", cpu_milli=1, memory_bytes=1)
    assert ask(handler, Caller().validate(homeless, "h7")).hosts == ("h7",)
    body = json.loads(seen[0])
    assert body["spec"]["nova_object.data"]["ignore_hosts"] == [""]
    assert [one["host"] for one in body["hosts"]] == ["h7"]


@pytest.mark.parametrize("body", ['{"hosts": null}', '{"hosts": []}', "{}"])
def test_no_host_is_an_answer(body: str):
    assert ask(answering(body)).hosts == ()


def test_another_status_carries_the_code_and_a_bounded_part_of_the_body():
    with pytest.raises(Unavailable) as refused:
        ask(answering("x" * 5000, status=500))
    assert "500" in str(refused.value)
    assert 1024 <= str(refused.value).count("x") <= 1030


@pytest.mark.parametrize("body", ["", "not json", '{"hosts": "h1"}', '{"hosts": [1]}', "[]"])
def test_an_answer_that_cannot_be_read_is_an_error(body: str):
    with pytest.raises(Unavailable, match="cannot be read"):
        ask(answering(body))


def test_a_call_is_given_up_after_its_time_and_not_repeated():
    calls: list[int] = []

    async def handler(_: web.Request) -> web.StreamResponse:
        calls.append(1)
        await asyncio.sleep(5)
        return web.json_response({"hosts": []})

    with pytest.raises(Unavailable, match=r"0\.2 s"):
        ask(handler, limit_s=0.2)
    assert len(calls) == 1


async def test_nobody_listens():
    client = SchedulerClient("http://127.0.0.1:1/scheduler/nova/external")
    try:
        with pytest.raises(Unavailable, match="did not answer"):
            await client.offer(write_candidates(NEW, ["h2"]))
    finally:
        await client.close()


def test_an_answer_without_end_is_cut_off():
    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            for _ in range(100):
                await answer.write(b" " * 1024 * 1024)
        except ConnectionError:
            pass
        return answer

    with pytest.raises(Unavailable, match="larger than"):
        ask(handler)


def test_nothing_is_sent_without_candidates_or_with_contradicting_options():
    async def handler(_: web.Request) -> web.StreamResponse:
        raise AssertionError("sent")

    with pytest.raises(Refused, match="no host besides"):
        ask(handler, hosts=())
    options = PlacementOptions(read_only=True)
    wrong = msgspec.structs.replace(NEW, request=msgspec.structs.replace(NEW.request, options=options))
    with pytest.raises(BadInput, match="read_only"):
        ask(handler, wrong)
