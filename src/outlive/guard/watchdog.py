"""The hardware watchdog: started by opening it, fed by writing to it, stopped only by a ``V`` before closing.

The kernel resets the host when it was not fed for its timeout. That holds after the guard's death only where the
driver knows the ``V`` (magic close); a driver that stops at any close, that only raises an alarm, that cannot take the
timeout, or that can never be stopped again is refused, each with its reason.

A file or a FIFO takes the place of the device in rehearsals (docs/how-to/guard.md#rehearse): it is fed alike and
resets nothing.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import struct
from pathlib import Path
from typing import Final

from outlive.guard.states import BAD_INPUT, FORBIDDEN, IN_USE, NOT_FOUND, GuardError

GET_SUPPORT: Final = 0x80285700
SET_TIMEOUT: Final = 0xC0045706
CAN_SET_TIMEOUT: Final = 0x0080
CAN_MAGIC_CLOSE: Final = 0x0100
ALARM_ONLY: Final = 0x0400
NO_HARDWARE: Final = {
    "Software Watchdog": "is a timer of the same kernel, and does nothing when the kernel hangs",
    "i6300ESB": "is emulated by a hypervisor, and stands still when the machine is paused",
    "xen_wdt": "is a timer of a hypervisor, and stands still when the machine is paused",
}
"""How watchdogs name themselves that are none of the machine's own, and what they lack."""
CLASSES: Final = "/sys/class/watchdog"
"""Where the kernel says of each watchdog whether it runs."""
LEGACY_DEVICE: Final = (10, 130)
"""``/dev/watchdog``, which is the same as ``/dev/watchdog0``."""


class Watchdog:
    """One watchdog, closed until the guard is armed."""

    def __init__(self, path: str, *, rehearsal: bool, classes: str = CLASSES) -> None:
        self._path = path
        self._rehearsal = rehearsal
        self._classes = classes
        self._fd = -1
        self._ran = False
        """Whether it ran when it was opened: somebody armed this host and died, and the reset is what others wait for.
        """
        self.hardware = False
        """Whether what runs is a device, which resets the host."""

    @property
    def open(self) -> bool:
        """Whether it runs."""
        return self._fd >= 0

    def start(self, watchdog_s: float) -> str:
        """Start it with that timeout, or give a running one another; returns what it calls itself.

        Raises ``GuardError`` where it is missing, taken, or would not keep the promise; it is left running then only
        if it ran before.
        """
        fresh = not self.open
        if fresh:
            self._ran = _is_running(self._path, self._classes)
            self._fd = _open_device(self._path)
        try:
            return self._configure(watchdog_s)
        except (GuardError, OSError) as error:
            if fresh:
                self.give_back()
            if isinstance(error, GuardError):
                raise
            raise GuardError(f"{self._path}: {error.strerror}; is it a watchdog?") from error

    def feed(self) -> None:
        """Say that the host is well. Raises ``OSError``."""
        os.write(self._fd, b"\0")

    def stop(self) -> None:
        """Stop it cleanly. Whatever fails here leaves it running, so it is raised as ``OSError``."""
        fd, self._fd, self.hardware = self._fd, -1, False
        if fd >= 0:
            try:
                os.write(fd, b"V")
            finally:
                os.close(fd)

    def give_back(self) -> None:
        """Leave it as it was found: what a dead guard had started goes on, and resets the host. Raises ``OSError``."""
        if not self._ran:
            self.stop()
            return
        fd, self._fd, self.hardware = self._fd, -1, False
        os.close(fd)

    def _configure(self, watchdog_s: float) -> str:
        status = os.fstat(self._fd)
        if not stat.S_ISCHR(status.st_mode):
            if not self._rehearsal:
                raise GuardError(
                    f"{self._path} is no device and resets nothing: name the watchdog, or say --rehearsal", BAD_INPUT
                )
            return "rehearsal: resets nothing"
        self.hardware = True
        _check_stoppable(self._path, os.major(status.st_rdev), os.minor(status.st_rdev))
        answer = bytearray(40)
        fcntl.ioctl(self._fd, GET_SUPPORT, answer)
        options, _, name = struct.unpack("II32s", answer)
        identity = bytes(name).rstrip(b"\0").decode("ascii", "replace")
        _check_support(f"{self._path} ({identity})", options)
        _check_identity(self._path, identity)
        wanted = math.floor(watchdog_s)
        if wanted < 1:
            raise GuardError(f"{self._path} counts whole seconds: W {watchdog_s} s is below 1 s")
        seconds = bytearray(struct.pack("i", wanted))
        fcntl.ioctl(self._fd, SET_TIMEOUT, seconds)
        granted = struct.unpack("i", seconds)[0]
        if granted != wanted:
            raise GuardError(f"{self._path} ({identity}) takes {granted} s for W {watchdog_s} s: arm with W {granted}")
        return identity


def _open_device(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise GuardError(f"{path}: no such watchdog; load its driver, or name it with --watchdog", NOT_FOUND) from error
    except PermissionError as error:
        raise GuardError(f"{path}: not permitted; run the guard as root", FORBIDDEN) from error
    except OSError as error:
        remedy = "free it, for instance RuntimeWatchdogSec=off in /etc/systemd/system.conf"
        raise GuardError(f"{path}: {error.strerror}; {remedy}", IN_USE) from error


def _is_running(path: str, classes: str) -> bool:
    """Whether the kernel says that it runs already; one of which it says nothing does not."""
    name = os.path.basename(os.path.realpath(path))  # noqa: PTH119 - light
    try:
        state = Path(classes, "watchdog0" if name == "watchdog" else name, "state").read_text(encoding="ascii")
    except OSError:
        return False
    return state.strip() == "active"


def _check_support(name: str, options: int) -> None:
    if not options & CAN_MAGIC_CLOSE:
        raise GuardError(f"{name} stops when the guard dies: it proves nothing; use another watchdog")
    if options & ALARM_ONLY:
        raise GuardError(f"{name} raises an alarm and resets nothing: use another watchdog")
    if not options & CAN_SET_TIMEOUT:
        raise GuardError(f"{name} does not take a timeout: use another watchdog")


def _check_identity(path: str, identity: str) -> None:
    """A watchdog that stands still together with what it watches proves nothing."""
    for name, why in NO_HARDWARE.items():
        if identity.startswith(name):
            raise GuardError(f"{path} ({identity}) {why}: load the driver of the machine's own watchdog")


def _check_stoppable(path: str, major: int, minor: int) -> None:
    """A watchdog that cannot be stopped would reset the host on ``disarm``. Where nothing is known it may pass."""
    legacy = (major, minor) == LEGACY_DEVICE
    folder = "/sys/class/watchdog/watchdog0" if legacy else f"/sys/dev/char/{major}:{minor}"
    try:
        word = (Path(folder) / "nowayout").read_text(encoding="ascii").strip()
    except OSError:
        return
    if word == "1":
        raise GuardError(f"{path} cannot be stopped once it runs, so disarming would reset the host: use nowayout=0")
