"""Files to which libvirt logs the serial consoles of guests: ``ConsoleLogs``.

They are made here before a guest starts, so that nobody else reads them. What rotates them (virtlogd, logrotate) leaves
the former file beside the new one; where the new one is short its end is read as well. What is no plain file, such as a
link, a pipe or a folder in its place, is never opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from outlive.base import Unavailable, deadline, get_logger
from outlive.drivers.libvirt.threads import Threads
from outlive.node.vm import LogEnd, LogStamp

ROTATED: Final = (".0", ".1")
"""What follows the name of a former file: virtlogd's, and logrotate's."""
READ_S: Final = 10.0
"""How long a disk may take."""
FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = get_logger("drivers.consoles")


def console_path(folder: str, vm: str) -> Path:
    """The log of that virtual machine."""
    return Path(folder, f"{vm}.log")


def make_log(folder: str, vm: str) -> None:
    """The log of a guest that is to start, which only root reads; what it holds is kept. ``OSError``."""
    path = console_path(folder, vm)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, FLAGS | os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


class ConsoleFiles:
    """See the module. One thread reads; while it hangs, callers get ``Unavailable``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._threads = Threads(1, "the disk with the logs of consoles")
        self._strange: set[str] = set()
        """Virtual machines whose log was reported to be no file."""

    async def read_changed(self, known: Mapping[str, LogStamp | None], most: int) -> Mapping[str, LogEnd]:
        """See ``ConsoleLogs``."""
        answer = self._threads.submit(lambda: self._read(dict(known), most))
        try:
            with deadline(READ_S):
                return await answer
        except TimeoutError:
            why = f"the logs of consoles in {self._folder} were not read within {READ_S:g} s"
            raise Unavailable(why, remedy="see whether the disk hangs") from None

    def _read(self, known: dict[str, LogStamp | None], most: int) -> dict[str, LogEnd]:
        found = {}
        for vm, stamp in known.items():
            path = console_path(self._folder, vm)
            try:
                end = read_end(path, stamp, most)
            except FileNotFoundError:
                continue
            except OSError as error:
                if vm not in self._strange:
                    _log.warning("console.no_file", vm=vm, path=str(path), error=error.strerror)
                self._strange.add(vm)
                continue
            self._strange.discard(vm)
            if end is not None:
                found[vm] = end
        return found


def read_end(path: Path, known: LogStamp | None, most: int) -> LogEnd | None:
    """At most so many bytes of its end, in whole lines; ``None`` where it is as it is known. ``OSError``."""
    with _open_log(path) as file:
        now = os.fstat(file)
        stamp = (now.st_ino, now.st_size, now.st_mtime_ns)
        if stamp == known:
            return None
        raw, whole = _read_tail(file, now.st_size, most)
    for suffix in ROTATED if whole else ():
        with contextlib.suppress(OSError), _open_log(path.with_name(path.name + suffix)) as file:
            before, whole = _read_tail(file, os.fstat(file).st_size, most - len(raw))
            raw = before + raw
            break
    return LogEnd(stamp, raw)


def _read_tail(file: int, size: int, most: int) -> tuple[bytes, bool]:
    """Its last bytes without a line that is not there from its beginning, and whether that is all of it."""
    start = max(0, size - most - 1)
    raw = os.pread(file, size - start, start)
    return (raw.partition(b"\n")[2], False) if start else (raw, True)


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    file = os.open(path, FLAGS | os.O_RDONLY)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is no plain file")
        yield file
    finally:
        os.close(file)
