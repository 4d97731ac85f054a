"""BMCs to try against: real IPMI and Redfish services whose commands run a program of ours (the hook).

The hook is a command line to which ``on``, ``off``, ``reset`` or ``status`` is appended; ``status`` prints ``on`` or
``off``. ``StateFile`` is one that only remembers. A controller can be halted, slowed, made to lie, stopped, and wired
to another system; each command that it receives is a line of ``DIRECTORY/commands``. A caller that makes an object of
the same directory and name finds the same controller.

``Ipmi`` is ``ipmi_sim`` (Debian: openipmi) and ``Redfish`` is the emulator of ``sushy-tools``.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lab.processes import Process, until

USERNAME, PASSWORD = "admin", "four-words-of-two"
START_S = 30.0
_CONTROL = """#!/bin/sh
# what a controller does with a command: CONTROL get|set|check PARAMETER [VALUE] ...
cd {directory} || exit 1
op=$1; shift
if [ -e slow ]; then sleep "$(cat slow)"; fi
while [ $# -gt 0 ]; do
  name=$1; shift
  case $op:$name in
  get:power)
    if [ -e lying ]; then state=$(cat lying); else state=$({hook} status) || exit 1; fi
    case $state in on) echo power:1 ;; *) echo power:0 ;; esac ;;
  set:power)
    if [ "$1" = 1 ]; then verb=on; else verb=off; fi
    shift
    echo "$verb" >>commands
    if [ -e lying ]; then echo "$verb" >lying
    elif [ "$({hook} status)" != "$verb" ]; then {hook} "$verb" || exit 1; fi ;;
  set:reset)
    shift
    echo reset >>commands
    [ -e lying ] || {hook} reset || exit 1 ;;
  set:*) shift ;;
  get:boot) echo boot:none ;;
  esac
done
exit 0
"""
_STATE = """#!/bin/sh
# a system that is nothing but its state: STATE on|off|reset|status
cd {directory} || exit 1
case $1 in
status) cat state ;;
on|reset) echo on >state; echo boot >>boots ;;
off) echo off >state; [ ! -e pid ] || kill -KILL "$(cat pid)" 2>/dev/null ;;
esac
exit 0
"""
_IPMI = """name "{name}"
set_working_mc 0x20
  startlan 1
    addr {host} {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid {guid}
  endlan
  chassis_control "{control}"
  user 1 true "" "" user 10 none md2 md5 straight
  user 2 true "{username}" "{password}" admin 10 none md2 md5 straight
"""
_CONTROLLER = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""


class Controller(Protocol):
    """What both kinds can do."""

    name: str
    system_uuid: str

    @property
    def address(self) -> str:
        """For ``Hypervisor.spec.fencing.address``."""
        ...

    def start(self) -> None:
        """Return once it answers."""
        ...

    def stop(self) -> None:
        """Its port is closed; its state stays."""
        ...

    def hang(self) -> None:
        """It takes what is sent, and answers nothing."""
        ...

    def go_on(self) -> None:
        """It answers again."""
        ...

    def slow(self, seconds: float) -> None:
        """Each answer takes so long; 0: as long as it takes."""
        ...

    def lie(self, lies: bool = True) -> None:
        """It says that it has carried out the command, and does nothing."""
        ...

    def rewire(self, system_uuid: str, hook: Sequence[str]) -> None:
        """From now on it is another system's, at the same address."""
        ...


class StateFile:
    """A system that is nothing but its power, and a process that dies with it (``feeds``): a hook for controllers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._script = directory / "system"

    def create(self, *, on: bool = True) -> StateFile:
        """A new one, on or off."""
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "state").write_text("on\n" if on else "off\n", encoding="utf-8")
        (self._directory / "boots").write_text("boot\n" if on else "", encoding="utf-8")
        _write_script(self._script, _STATE.format(directory=shlex.quote(str(self._directory))))
        return self

    def feeds(self, pid: int) -> None:
        """The process is killed when the power goes."""
        (self._directory / "pid").write_text(f"{pid}\n", encoding="utf-8")

    def lose_power(self) -> None:
        """Without any command."""
        subprocess.run([str(self._script), "off"], check=True)

    @property
    def hook(self) -> tuple[str, ...]:
        """For a controller."""
        return (str(self._script),)

    @property
    def is_on(self) -> bool:
        """Whether current flows."""
        return (self._directory / "state").read_text(encoding="utf-8").strip() == "on"

    @property
    def boots(self) -> int:
        """How often it was switched on or reset."""
        return len((self._directory / "boots").read_text(encoding="utf-8").splitlines())


class _Simulated:
    """What ``Ipmi`` and ``Redfish`` share: a directory, a control script, and the files by which it is broken."""

    def __init__(
        self,
        directory: Path,
        name: str,
        system_uuid: str,
        hook: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.system_uuid = system_uuid
        self.directory = directory / name
        self.host = host
        self._prefix = prefix
        self._process = Process(self.directory / "controller.pid")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or self._remembered_port()
        self._hook = tuple(hook)

    def stop(self) -> None:
        """Its port is closed; its state stays."""
        self._process.kill()

    def hang(self) -> None:
        """It takes what is sent, and answers nothing."""
        self._process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again."""
        self._process.signal(signal.SIGCONT)

    def slow(self, seconds: float) -> None:
        """Each answer takes so long; 0: as long as it takes."""
        self._set("slow", f"{seconds:g}" if seconds else None)

    def lie(self, lies: bool = True) -> None:
        """It says that it has carried out the command, and does nothing."""
        self._set("lying", "on" if lies else None)

    @property
    def lies(self) -> bool:
        """Whether it does so now."""
        return (self.directory / "lying").exists()

    @property
    def commands(self) -> int:
        """Power commands that it has received."""
        path = self.directory / "commands"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    @property
    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self._process.pid != 0

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.directory / "controller.log"

    @property
    def control(self) -> Path:
        """The program that it runs for each command."""
        return self.directory / "control"

    def _write_control(self) -> None:
        hook = shlex.join(self._hook)
        _write_script(self.control, _CONTROL.format(directory=shlex.quote(str(self.directory)), hook=hook))

    def _set(self, name: str, value: str | None) -> None:
        path = self.directory / name
        if value is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(value + "\n", encoding="utf-8")

    def _remembered_port(self) -> int:
        path = self.directory / "port"
        if not path.exists():
            path.write_text(f"{_free_port()}\n", encoding="utf-8")
        return int(path.read_text(encoding="utf-8"))


class Ipmi(_Simulated):
    """One ``ipmi_sim``; it knows cipher suite 3 only."""

    @staticmethod
    def missing() -> str:
        """Which program is not installed; empty: none."""
        return next((one for one in ("ipmi_sim", "ipmitool") if shutil.which(one) is None), "")

    @property
    def address(self) -> str:
        """For ``Hypervisor.spec.fencing.address``."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Return once it answers."""
        if self.alive:
            return
        self._write_control()
        guid = uuid.UUID(self.system_uuid).bytes_le.hex()
        settings, emulator, state = (self.directory / one for one in ("lan.conf", "emulator", "state.d"))
        state.mkdir(exist_ok=True)
        settings.write_text(
            _IPMI.format(
                name=self.name,
                host=self.host,
                port=self.port,
                guid=guid,
                control=self.control,
                username=USERNAME,
                password=PASSWORD,
            ),
            encoding="utf-8",
        )
        emulator.write_text(_CONTROLLER, encoding="utf-8")
        argv = ["ipmi_sim", "-n", "-c", str(settings), "-f", str(emulator), "-s", str(state)]
        self._process.start([*self._prefix, *argv], self.log)
        if not self._prefix:
            until(lambda: _answers_ping(self.host, self.port), f"the controller {self.name} answers", START_S)

    def rewire(self, system_uuid: str, hook: Sequence[str]) -> None:
        """From now on it is another system's, at the same address."""
        running = self.alive
        self.stop()
        self.system_uuid, self._hook = system_uuid, tuple(hook)
        if running:
            self.start()


def _answers_ping(host: str, port: int) -> bool:
    """Get Channel Authentication Capabilities, outside of any session (IPMI 2.0, 22.13)."""
    message = bytes.fromhex("0600ff07000000000000000000092018c88100388e04b5")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(0.1)
        try:
            one.connect((host, port))
            one.send(message)
            return bool(one.recv(512))
        except OSError:
            return False


class Redfish(_Simulated):
    """One emulator with one system, on TLS with a certificate of its own (``certificate``)."""

    @property
    def address(self) -> str:
        """For ``Hypervisor.spec.fencing.address``."""
        return f"https://{self.host}:{self.port}/redfish/v1/Systems/1"

    @property
    def certificate(self) -> Path:
        """What it shows, signed by itself; there once it has started."""
        return self.directory / "certificate.pem"

    def start(self) -> None:
        """Return once it answers."""
        if self.alive:
            return
        self._write_control()
        (self.directory / "uuid").write_text(self.system_uuid, encoding="utf-8")
        argv = [sys.executable, "-m", "lab.redfish_emulator", str(self.directory), self.host, str(self.port)]
        here = str(Path(__file__).resolve().parents[1])
        self._process.start([*self._prefix, *argv], self.log, {"PYTHONPATH": here})
        if not self._prefix:
            until(lambda: _accepts(self.host, self.port), f"the controller {self.name} answers", START_S)

    def rewire(self, system_uuid: str, hook: Sequence[str]) -> None:
        """From now on it is another system's, at the same address."""
        self.system_uuid, self._hook = system_uuid, tuple(hook)
        self._write_control()
        (self.directory / "uuid").write_text(system_uuid, encoding="utf-8")


class Strip(_Simulated):
    """What a program of an operator's switches: a control script without a service. ``program`` is the program."""

    PROGRAM = "strip"
    _TEXT = """#!/bin/sh
# read|off|on ADDRESS: the address is the directory of the strip
cd "$2" 2>/dev/null || exit 4
[ -e plugged ] || exit 6
case $1 in
read)
  case $(./control get power) in power:1) state=on ;; power:0) state=off ;; *) exit 6 ;; esac
  echo '{"state": "'$state'", "systemUuid": "'$(cat uuid)'"}' ;;
off) ./control set power 0 ;;
on) ./control set power 1 ;;
esac
"""

    @property
    def address(self) -> str:
        """For ``Hypervisor.spec.fencing.address``."""
        return str(self.directory)

    @classmethod
    def program(cls, directory: Path) -> Path:
        """Put the program there; the directory."""
        _write_script(directory / cls.PROGRAM, cls._TEXT)
        return directory

    def start(self) -> None:
        """It answers."""
        self._write_control()
        self._set("uuid", self.system_uuid)
        self._set("plugged", "")

    def stop(self) -> None:
        """It answers nobody."""
        self._set("plugged", None)

    def rewire(self, system_uuid: str, hook: Sequence[str]) -> None:
        """From now on it is another system's, at the same address."""
        self.system_uuid, self._hook = system_uuid, tuple(hook)
        self._write_control()
        self._set("uuid", system_uuid)


class HalfOpen:
    """A port that takes connections and then says nothing."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((host, 0))
        self.host, self.port = self._socket.getsockname()[:2]

    def close(self) -> None:
        """Close the port."""
        self._socket.close()


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 0.5).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """Of both protocols."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        port = int(one.getsockname()[1])
        other.bind(("127.0.0.1", port))
        return port


def _write_script(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o755)
    new.replace(path)
