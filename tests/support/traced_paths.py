"""Which modules of the product work on one event, found by running it: four paths that a stranger follows at night.

A path is traced in virtual time. The same cloud runs twice, once with the event until its effect, and once without for
the same span, at least ten seconds: what runs in both runs anyway. A module counts if one of its functions runs only
with the event. Imports do not count, and a first run that is not traced loads modules and fills caches. The simulation
is no part of a path.

``python -m tests.support.traced_paths`` prints the modules of each path; with ``--record`` it writes their numbers to
``tests/unit/docs/paths.json``, which the test holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace

import outlive
from outlive.api import ApiDeps, Identity, Role, Tokens, create_app
from outlive.base import LoopClock, Random, SeededIds
from outlive.commitments import CommitmentSettings
from outlive.drivers import read_hosts, read_vms
from outlive.failover import FailoverConfig
from outlive.inventory import ImportOptions, Inventory, apply_import, check_inventory, plan_import, read_existing
from outlive.placement import HYPERVISOR_TYPE
from outlive.resources import FAILOVER, Condition, DomainCapabilities, Hypervisor, Reservation, VirtualMachine
from outlive.roles import RoleSettings
from outlive.simulation import Story, read_scenario
from outlive.store import list_all
from tests.support.api import TOKENS, host_of
from tests.support.asgi import ask
from tests.support.loops import run
from tests.support.sales import SOLD, ZONE, Market, host, in_cloud, later

ROOT: Final = Path(outlive.__file__).parent
RECORD: Final = Path(__file__).parents[1] / "unit" / "docs" / "paths.json"
SCENARIOS: Final = Path(__file__).parents[1] / "scenarios"
STEP_S: Final = 0.1
"""How often is looked whether the effect is there."""
REST_S: Final = 10.0
"""At least so long the same cloud is watched without the event: what ticks every few seconds runs anyway."""
LIMIT_S: Final = 120.0
"""How long an effect may take."""


class Span:
    """What ran from the event to its effect, and for how long that was."""

    def __init__(self, seconds: float | None, traced: bool) -> None:
        """``seconds``: how long a span without an event is."""
        self.happens = seconds is None
        self.seconds = seconds or 0.0
        self.modules: set[str] = set()
        self._traced = traced

    async def watch(self, event: Callable[[], Awaitable[object]], effect: Callable[[], Awaitable[bool]]) -> None:
        """Let the event happen and wait for its effect, or let as much time pass without it."""
        with trace_modules(self.modules) if self._traced else _nothing():
            if not self.happens:
                for _ in range(round(self.seconds / STEP_S)):
                    await asyncio.sleep(STEP_S)
                return
            await event()
            while not await effect():
                assert self.seconds < LIMIT_S, "the event has no effect"
                await asyncio.sleep(STEP_S)
                self.seconds += STEP_S


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def trace_modules(found: set[str]) -> Iterator[None]:
    """Collect the modules of the product whose functions are called meanwhile, in all threads that begin or are here.

    The garbage collector waits: what it finalizes does not belong to the event.
    """
    names: dict[str, str] = {}

    def note_call(frame: FrameType, _what: str, _argument: Any) -> None:
        code = frame.f_code
        if code.co_flags & 0x02:  # a function: neither a module nor the body of a class
            name = names.get(code.co_filename)
            if name is None:
                name = names[code.co_filename] = name_module(code.co_filename)
            found.add(name)

    before = sys.gettrace()
    gc.collect()
    gc.disable()
    threading.settrace(note_call)
    sys.settrace(note_call)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)
        gc.enable()
        found.discard("")


def name_module(file: str) -> str:
    """The path of a module inside of the product; empty for others and for the simulation."""
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return ""
    name = path.relative_to(ROOT).as_posix()
    return "" if name.startswith("simulation/") else name


def trace_path(path: Callable[[Span], None]) -> list[str]:
    """The modules of a path, sorted."""
    with_event = Span(None, traced=True)
    with contextlib.redirect_stdout(io.StringIO()):  # the log
        path(Span(None, traced=False))
        path(with_event)
        without = Span(max(with_event.seconds, REST_S), traced=True)
        path(without)
    return sorted(with_event.modules - without.modules)


# -- a silent host's VMs run again ------------------------------------------------------------------------


class _Silence(Story):
    """A story whose first act is the event, and whose effect is that all VMs run."""

    def __init__(self, span: Span) -> None:
        scenario = read_scenario(SCENARIOS / "host-loses-power")
        super().__init__(scenario, seed=1, replay="")
        self._span = span

    async def _run(self) -> None:
        (act,) = self.scenario.acts
        await self._run_until(act.at_s, ())
        (lost,) = act.arguments["hosts"]
        vms = [vm.name for vm in self.world.store.list_all(VirtualMachine)]
        moved = [vm for vm in vms if lost in self.world.running_hosts(vm)]

        async def all_run() -> bool:
            return all(self.world.running_hosts(vm) for vm in moved)

        await self._span.watch(lambda: self._do(act), all_run)


def recover(span: Span) -> None:
    """Power off → the VMs of the host run elsewhere."""

    async def story() -> None:
        await _Silence(span).play()

    run(story())


# -- a cloud on a store in memory -------------------------------------------------------------------------

HOSTS_CSV: Final = """name,zone,domain-rack,cpu,memory,cpu_arch
h1,zone-a,r1,64,256Gi,x86_64
h2,zone-a,r2,64,256Gi,x86_64
h3,zone-a,r3,64,256Gi,x86_64
"""
VMS_CSV: Final = """id,name,project,flavor,cpu,memory,disk,zone,host,status
vm-1,api-1,p1,m16,2,8Gi,10,zone-a,h1,ACTIVE
"""
VM_ROW: Final = "vm-2,api-2,p1,m16,2,8Gi,10,zone-a,h2,ACTIVE\n"
FAILOVER_SETTINGS: Final = FailoverConfig(flavor_failover_requirements={"*": 1}).apply_defaults()
PROTECTED: Final = RoleSettings(failover=FAILOVER_SETTINGS)
SELLING: Final = RoleSettings(
    failover=FAILOVER_SETTINGS,
    commitments=CommitmentSettings(flavor_group_resources={"*": SOLD}),
)
QUIET_S: Final = 60.0
"""After so long a cloud has settled."""


async def _import(store: Any, directory: Path, vms: str) -> None:
    """What ``outlive import csv`` does to the store; the command prints and prices as well."""
    for name, text in (("hosts.csv", HOSTS_CSV), ("vms.csv", vms)):
        (directory / name).write_text(text, encoding="utf-8")
    inventory, options = Inventory(what="csv"), ImportOptions(partial=True)
    read_hosts(directory / "hosts.csv", None, inventory)
    read_vms(directory / "vms.csv", None, inventory)
    existing = await read_existing(store)
    wanted = check_inventory(inventory, existing, options)
    await apply_import(store, plan_import(wanted, existing, options, landed={}, now=later(0.0)))


def reserve(span: Span) -> None:
    """A row of a CSV file → its VM has a slot."""
    with TemporaryDirectory() as made:
        directory = Path(made)

        async def story(market: Market) -> None:
            await _import(market.store, directory, VMS_CSV)
            for name in ("h1", "h2", "h3"):
                await _report_ready(market, name)
            await asyncio.sleep(QUIET_S)

            async def has_slot() -> bool:
                return "vm-2" in await _protected(market)

            assert await _protected(market) == {"vm-1"}
            await span.watch(lambda: _import(market.store, directory, VMS_CSV + VM_ROW), has_slot)

        in_cloud((), story, settings=PROTECTED)


async def _report_ready(market: Market, name: str) -> None:
    """The host says that it takes VMs."""
    found = await market.store.get(Hypervisor, name)
    ready = (Condition(type="Ready", status="True"),)
    kvm = DomainCapabilities(hypervisor_type="kvm")
    status = replace(found.status, conditions=ready, domain_capabilities=kvm)
    await market.store.replace_status(replace(found, status=status))


async def _protected(market: Market) -> set[str]:
    """VMs that have an allocation in a slot."""
    slots = [one async for one in list_all(market.store, Reservation) if one.spec.type == FAILOVER]
    found = [one.status.failover_reservation for one in slots]
    return {vm for one in found if one is not None for vm in one.allocations}


# -- calls over HTTP --------------------------------------------------------------------------------------


def rank(span: Span) -> None:
    """A call of Nova's scheduler → hosts in order."""
    flavor = {"name": "m8", "vcpus": 2, "memory_mb": 8192, "extra_specs": {HYPERVISOR_TYPE: "QEMU"}}
    spec = {"instance_uuid": "vm-9", "project_id": "p1", "num_instances": 1, "flavor": {"nova_object.data": flavor}}
    hosts = ("h1", "h2", "h3")
    body = {
        "spec": {"nova_object.data": spec},
        "hosts": [{"host": name} for name in hosts],
        "weights": dict.fromkeys(hosts, 0.0),
    }

    async def story(market: Market) -> None:
        await asyncio.sleep(QUIET_S)
        answers = _Answers(market, "POST", "/scheduler/nova/external", Role.SCHEDULER, body)
        await span.watch(answers.ask, answers.came)
        if span.happens:
            assert sorted(answers.body["hosts"]) == sorted(hosts)

    in_cloud((host(name) for name in hosts), story, settings=SELLING)


def sell(span: Span) -> None:
    """A call of change-commitments → its answer."""
    commitment = {"uuid": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "oldStatus": None, "newStatus": "confirmed"}
    resource = {
        "totalConfirmedBefore": 0,
        "totalConfirmedAfter": 1,
        "commitments": [{**commitment, "amount": 1, "expiresAt": "2099-01-01T00:00:00Z"}],
    }

    async def story(market: Market) -> None:
        await asyncio.sleep(QUIET_S)
        info = _Answers(market, "GET", "/commitments/v1/info", Role.LIQUID)
        await info.ask()
        body = {
            "az": ZONE,
            "dryRun": False,
            "infoVersion": info.body["version"],
            "byProject": {"p1": {"byResource": {"hw_version_g_ram": resource}}},
        }
        answers = _Answers(market, "POST", "/commitments/v1/change-commitments", Role.LIQUID, body)
        await span.watch(answers.ask, answers.came)
        if span.happens:
            assert "rejectionReason" not in answers.body
            assert len(await market.commitments()) == 1

    in_cloud((host(name) for name in ("h1", "h2", "h3")), story, settings=SELLING)


class _Answers:
    """One call of the application over the cloud's role, without sockets."""

    def __init__(self, market: Market, method: str, path: str, role: Role, body: object = None) -> None:
        known = [(token, Identity(f"{of}-of-tests", of, host_of(of))) for of, token in TOKENS.items()]
        clock = LoopClock()
        self._application = create_app(
            ApiDeps(
                store=market.store,
                clock=clock,
                ids=SeededIds(Random(3)),
                tokens=Tokens(known),
                metrics=market.role.metrics,
                version="0.0.0",
                placement=market.role.placement,
                commitments=market.role.commitments.service,
            )
        )
        self._call = (role, method, path, body)
        self.body: Any = None

    async def ask(self) -> None:
        """Send it and wait for the answer, which is no error."""
        status, self.body = await ask(self._application, *self._call)
        assert status == 200, self.body

    async def came(self) -> bool:
        """The answer is there."""
        return self.body is not None


PATHS: Final[dict[str, tuple[Callable[[Span], None], int]]] = {
    "reserve": (reserve, 70),
    "recover": (recover, 100),
    "rank": (rank, 33),
    "sell": (sell, 45),
}
"""By name: how to run it, and how many modules it is to have one day."""


def main() -> None:
    """Print the modules of each path, or write down how many they are."""
    found = {name: trace_path(path) for name, (path, _) in PATHS.items()}
    if "--record" in sys.argv[1:]:
        text = json.dumps({name: len(modules) for name, modules in found.items()}, indent=2)
        RECORD.write_text(text + "\n", encoding="utf-8")
        return
    for name, modules in found.items():
        print(f"{name}: {len(modules)} modules, aim {PATHS[name][1]}", *modules, sep="\n  ")


if __name__ == "__main__":
    main()
