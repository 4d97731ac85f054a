"""A real Nova on this machine: API, conductor, scheduler, Placement, Keystone, and compute services.

What they run on is real as well (PostgreSQL, RabbitMQ); stand-ins are only the hypervisor (Nova's own fake driver),
Neutron (no networks) and Glance (one image). Everything listens on 127.0.0.1 and ends with the block.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from aiohttp import web

from tests.support import http_service, keystone, postgres
from tests.support.environments import environment, step
from tests.support.http_service import HttpService
from tests.support.keystone import ADMIN, PASSWORD, REGION, Keystone, free_port

RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_LIMIT_S = 120.0
IMAGE = "5c0f1f3e-0000-4000-8000-000000000001"
DATABASES = ("nova_api", "nova_cell0", "nova", "placement")
MAIN = "import sys; sys.argv[0] = '{name}'; from {module} import main; main()"
WSGI = """\
import sys, waitress
sys.argv = ["{name}"]
{load}
waitress.serve(application, host="127.0.0.1", port={port}, threads=8)
"""
NOVA_WSGI = "from nova.wsgi.osapi_compute import application"
PLACEMENT_WSGI = "from placement.wsgi import init_application; application = init_application()"
COMPUTE = """\
import sys
from nova.cmd import compute
from nova.virt import fake

class TestDriver(fake.FakeDriverWithoutFakeNodes):
    vcpus, memory_mb, local_gb = 16, 65536, 500

fake.TestDriver = TestDriver
sys.argv[0] = "nova-compute"
compute.main()
"""
LOGIN = """\
auth_type = password
auth_url = {identity}
username = {user}
password = {password}
project_name = admin
user_domain_id = default
project_domain_id = default
region_name = {region}
"""
CONFIGURATION = """\
[DEFAULT]
state_path = {folder}/state
host = control
my_ip = 127.0.0.1
transport_url = rabbit://guest:guest@127.0.0.1:{rabbit}/
compute_driver = fake.TestDriver
report_interval = 2
service_down_time = 8
periodic_fuzzy_delay = 1
use_stderr = false
[api]
auth_strategy = keystone
[oslo_concurrency]
lock_path = {folder}/lock
[scheduler]
discover_hosts_in_cells_interval = 2
workers = 1
[conductor]
workers = 1
[filter_scheduler]
track_instance_changes = false
[vnc]
enabled = false
[glance]
endpoint_override = {glance}
{login}
[neutron]
endpoint_override = {neutron}
{login}
[placement]
{login}
[cinder]
{login}
[service_user]
{login}
[keystone_authtoken]
www_authenticate_uri = {identity}
{login}
"""
NOVA_DATABASES = """\
[api_database]
connection = {api}
[database]
connection = {main}
"""
PLACEMENT_CONFIGURATION = """\
[DEFAULT]
use_stderr = false
[api]
auth_strategy = keystone
[placement_database]
connection = {database}
[keystone_authtoken]
{login}
"""
PASTE = """\
[composite:osapi_compute]
use = call:nova.api.openstack.urlmap:urlmap_factory
/: versions
/v2.1: v21
[pipeline:versions]
pipeline = faultwrap versionsapp
[pipeline:v21]
pipeline = faultwrap authtoken context v21app
[app:versionsapp]
paste.app_factory = nova.api.openstack.compute.versions:Versions.factory
[app:v21app]
paste.app_factory = nova.api.openstack.compute:APIRouterV21.factory
[filter:faultwrap]
paste.filter_factory = nova.api.openstack:FaultWrapper.factory
[filter:context]
paste.filter_factory = nova.api.auth:NovaKeystoneContext.factory
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
"""


class Neutron(HttpService):
    """Has no networks, ports or groups."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """An empty list of whatever is asked for."""
        what = request.path.rstrip("/").rpartition("/")[2].removesuffix(".json").replace("-", "_")
        return web.json_response({what: {} if what == "quotas" else []})


class Glance(HttpService):
    """Has one image."""

    image: ClassVar[dict[str, Any]] = {
        "id": IMAGE, "name": "small", "status": "active", "visibility": "public", "size": 1048576, "min_ram": 0,
        "min_disk": 0, "disk_format": "raw", "container_format": "bare", "owner": "admin", "protected": False,
        "tags": [], "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The image, or the schema of images."""
        if request.path.endswith("/schemas/image"):
            properties = {name: {"is_base": True} for name in self.image}
            return web.json_response({"name": "image", "properties": properties})
        return web.json_response(self.image)


class NovaCloud:
    """The running services, and requests to Nova as the administrator."""

    def __init__(self, python: Path, folder: Path, identity: Keystone, database: postgres.Postgres) -> None:
        self.keystone = identity
        self.folder = folder
        self._python = python
        self._database = database
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._api, self._placement, self._rabbit = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._api}/v2.1"

    def start(self, neutron: str, glance: str, hosts: int) -> None:
        """Start everything, and wait until all hosts can be used."""
        self._configure(neutron, glance)
        self.keystone.add_service("compute", self.url)
        self.keystone.add_service("placement", f"http://127.0.0.1:{self._placement}")
        self._start_rabbit()
        self._migrate()
        self._serve("placement", WSGI.format(name="placement", load=PLACEMENT_WSGI, port=self._placement))
        self._serve("nova", WSGI.format(name="nova", load=NOVA_WSGI, port=self._api))
        for name in ("conductor", "scheduler"):
            main = MAIN.format(name=f"nova-{name}", module=f"nova.cmd.{name}")
            self._serve(name, main, "--config-file", str(self.folder / "nova.conf"))
        for port in (self._placement, self._api):
            self.until(lambda port=port: _answers(f"http://127.0.0.1:{port}/"), f"port {port}")
        for number in range(1, hosts + 1):
            self.start_host(f"h{number}")
        names = {f"h{number}" for number in range(1, hosts + 1)}
        self.until(lambda: self._usable() >= names, f"hosts {names}")

    def start_host(self, name: str) -> None:
        """Start the compute service of a host."""
        own = self.folder / f"{name}.conf"
        own.write_text(f"[DEFAULT]\nhost = {name}\nstate_path = {self.folder}/{name}\n")
        (self.folder / name).mkdir(exist_ok=True)
        self._serve(name, COMPUTE, "--config-file", str(self.folder / "compute.conf"), "--config-file", str(own))

    def kill(self, name: str) -> None:
        """Kill one service."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(timeout=30)

    def stop(self) -> None:
        """Stop everything."""
        processes, self._processes = list(self._processes.values())[::-1], {}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait(timeout=30)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to Nova; its document, ``None`` where it has none. Any error is an assertion that fails."""
        headers = {
            "X-Auth-Token": self.keystone.token(), "Content-Type": "application/json",
            "OpenStack-API-Version": "compute 2.61",
        }  # fmt: skip
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}/{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}; {self._log('nova')}") from None
        return json.loads(raw) if raw else None

    def boot(self, name: str, flavor: str) -> str:
        """A server without networks, once it runs; its id."""
        wanted = {"name": name, "flavorRef": flavor, "imageRef": IMAGE, "networks": "none"}
        server = self.ask("POST", "servers", {"server": wanted})["server"]["id"]

        def is_done() -> bool:
            found = self.ask("GET", f"servers/{server}")["server"]
            assert found["status"] != "ERROR", f"{found.get('fault', {}).get('message')}: {self._log('scheduler')}"
            return bool(found["status"] == "ACTIVE")

        self.until(is_done, f"server {name}")
        return str(server)

    def until(self, claim: Callable[[], bool], what: str, limit_s: float = START_LIMIT_S) -> None:
        """Wait until the claim is true."""
        deadline = time.monotonic() + limit_s
        while not claim():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended: {self._log(name)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not so within {limit_s:g} s; {self._log('conductor')}")
            time.sleep(0.2)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def _usable(self) -> set[str]:
        services = self.ask("GET", "os-services?binary=nova-compute")["services"]
        known = {one["service"]["host"] for one in self.ask("GET", "os-hypervisors/detail")["hypervisors"]}
        # a service counts as up from its start on, and its first report may come later than that lasts
        return {one["host"] for one in services if one["state"] == "up" and one["updated_at"]} & known

    def _configure(self, neutron: str, glance: str) -> None:
        identity = self.keystone.url
        login = LOGIN.format(identity=identity, user=ADMIN, password=PASSWORD, region=REGION)
        base = CONFIGURATION.format(
            folder=self.folder, rabbit=self._rabbit, glance=glance, neutron=neutron, login=login, identity=identity
        )
        main = NOVA_DATABASES.format(api=self._address("nova_api"), main=self._address("nova"))
        files = {
            "compute.conf": base,  # a compute service must not know the databases
            "nova.conf": base + main,
            "placement.conf": PLACEMENT_CONFIGURATION.format(database=self._address("placement"), login=login),
            "api-paste.ini": PASTE,
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def _address(self, database: str) -> str:
        return f"postgresql+psycopg2:///{database}?host={self._database.socket}&user=lab"

    def _start_rabbit(self) -> None:
        folder = self.folder / "rabbit"
        folder.mkdir()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self._rabbit}\nlog.file.level = warning\n")
        (folder / "plugins").write_text("[].\n")
        mapper = free_port()
        own = {
            "HOME": str(folder), "ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "tests@localhost", "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"), "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"), "RABBITMQ_MNESIA_BASE": str(folder / "db"),
            "RABBITMQ_LOG_BASE": str(folder / "log"), "RUNNING_UNDER_SYSTEMD": "1", "LANG": "C.UTF-8",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
            " +S 1:1 +sbwt none",
        }  # fmt: skip
        self._run("epmd", ["epmd"], own)
        self._run("rabbit", [str(RABBIT)], own)
        self.until(lambda: _listens(self._rabbit), "RabbitMQ")

    def _migrate(self) -> None:
        engine = sa.create_engine(self._database.address, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for name in DATABASES:
                connection.execute(sa.text(f"create database {name}"))
        engine.dispose()

        def manage(name: str, module: str, conf: str, *command: str) -> None:
            code = MAIN.format(name=name, module=module)
            step([str(self._python), "-W", "ignore", "-c", code, "--config-file", str(self.folder / conf), *command])

        with ThreadPoolExecutor() as pool:
            placement = pool.submit(manage, "placement-manage", "placement.cmd.manage", "placement.conf", "db", "sync")
            for command in (
                ("api_db", "sync"),
                ("cell_v2", "map_cell0", "--database_connection", self._address("nova_cell0")),
                ("cell_v2", "create_cell", "--name", "cell1"),
                ("db", "sync"),
            ):
                manage("nova-manage", "nova.cmd.manage", "nova.conf", *command)
            placement.result()

    def _serve(self, name: str, code: str, *arguments: str) -> None:
        folders = {"OS_NOVA_CONFIG_DIR": str(self.folder), "OS_PLACEMENT_CONFIG_DIR": str(self.folder)}
        self._run(name, [str(self._python), "-W", "ignore", "-c", code, *arguments], folders)

    def _run(self, name: str, command: list[str], environ: dict[str, str]) -> None:
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH",)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env={**kept, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )


@contextlib.contextmanager
def running(hosts: int = 2) -> Iterator[NovaCloud]:
    """A cloud with that many hosts for as long as the block lasts."""
    python = environment("nova") / "bin" / "python"
    neutron, glance = Neutron(), Glance()
    folder = Path(tempfile.mkdtemp(prefix="onova"))
    services = http_service.in_thread(neutron, glance)
    with services, keystone.running() as identity, postgres.running(connections=200) as database:
        cloud = NovaCloud(python, folder, identity, database)
        try:
            cloud.start(neutron.url, glance.url, hosts)
            yield cloud
        finally:
            cloud.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
