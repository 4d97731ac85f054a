"""Commands to one Ceph cluster, each in a child process with a hard limit; no library of Ceph is in the daemon.

A library of Ceph in the process has no limit that works: monitors that are slow would stop the caller. The key
never is on a command line: the programs read it from the keyring file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.base import NotFound, OutliveError, Refused, Unavailable, Unknown
from outlive.drivers.commands import ProgramExit, run
from outlive.drivers.storage.settings import StorageSettings

CONNECT_S: Final = 5
"""How long the programs look for a monitor."""
OUTPUT_BYTES: Final = 2**25
"""Of the map of storage daemons: about 1.5 KiB for each."""
_LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_NO_MONITOR: Final = "timed out"
_UNREACHED: Final = ("error connecting", "couldn't connect")
"""What ``ceph`` and ``rbd`` print where they reached no monitor, or none that lets them in: nothing was sent then."""
_DENIED: Final = "handle_auth_bad_method"
"""What they print where no monitor lets them in."""
_ENOENT: Final = 2
_EBUSY: Final = 16
_NOT_ALLOWED: Final = frozenset({1, 13})
"""Exit codes: ``EPERM``, ``EACCES``."""


class CephCommands:
    """``ceph`` and ``rbd`` as the daemon's own user."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._limit_s = float(settings.command_limit)

    def check_configured(self) -> None:
        """``NotFound`` where this host has no Ceph."""
        if not Path(self._settings.ceph_conf).exists():
            raise NotFound(f"this host has no Ceph: {self._settings.ceph_conf} does not exist")

    async def ask(self, *words: str, limit_s: float | None = None) -> str:
        """The output of a question to the cluster. ``NotFound``: there is no such thing; else ``Unavailable``."""
        connect = () if limit_s is None else ("--connect-timeout", str(math.ceil(limit_s)))
        return await self._complete(self._ceph_argv(*connect, *words), words, Unavailable, limit_s)

    async def ask_json(self, *words: str) -> Any:
        """The same, decoded."""
        return parse_json_answer(await self.ask(*words, "--format", "json"), words)

    async def read_output(self, *words: str, limit_s: float) -> str:
        """What was printed by the end, also where some of those that were asked did not answer."""
        ended = await self._run(*self._ceph_argv(*words), limit_s=limit_s)
        if "EACCES" in ended.err:
            raise self._build_failure(ended, words, Unavailable)
        return ended.out

    async def run_order(self, *words: str) -> None:
        """Have something changed. ``Unavailable``: it was not; ``Unknown``: it may have been."""
        await self._complete(self._ceph_argv(*words), words, Unknown)

    async def ask_pools(self, *words: str, limit_s: float) -> str:
        """The output of a question about pools."""
        argv = [self._settings.rados_program, *self._client_options(), *words]
        return await self._complete(argv, words, Unavailable, limit_s)

    async def ask_images(self, *words: str) -> str:
        """The output of a question about images."""
        return await self._complete(self._rbd_argv(*words), words, Unavailable)

    async def check_reach(self, *words: str, limit_s: float) -> str | None:
        """Why no answer comes to a question about images; empty: one comes; ``None``: nobody can say."""
        ended = await self._run(*self._rbd_argv(*words), limit_s=limit_s)
        if ended.killed:
            return f"Ceph does not answer within {limit_s:g} s"
        no_monitor = last_line(ended.err) == _NO_MONITOR or any(one in ended.err for one in _UNREACHED)
        if ended.code and no_monitor and _DENIED not in ended.err:
            return "no monitor of Ceph answers"
        return "" if ended.code in (0, _ENOENT) else None

    async def order_images(self, *words: str) -> None:
        """Have an image changed. ``NotFound``: what was to be changed is not there; ``Refused``, ``Unknown``."""
        await self._complete(self._rbd_argv(*words), words, Unknown)

    def _ceph_argv(self, *words: str) -> list[str]:
        settings = self._settings
        return [settings.ceph_program, *self._client_options(), "--connect-timeout", str(CONNECT_S), *words]

    def _rbd_argv(self, *words: str) -> list[str]:
        limits = ("--client-mount-timeout", str(CONNECT_S), "--rados-mon-op-timeout", f"{self._limit_s:g}")
        return [self._settings.rbd_program, *self._client_options(), *limits, *words]

    def _client_options(self) -> list[str]:
        settings = self._settings
        keyring = ["--keyring", settings.ceph_keyring] if settings.ceph_keyring else []
        return ["--conf", settings.ceph_conf, "--id", settings.ceph_user, *keyring]

    async def _run(self, *argv: str, limit_s: float | None = None) -> ProgramExit:
        settings = self._settings
        for file, setting in ((settings.ceph_conf, "cephConf"), (settings.ceph_keyring, "cephKeyring")):
            if file and (why := unreadable_reason(file)):
                raise Unavailable(f"{file} cannot be read: {why}", remedy=f"see storage.{setting} in node.yaml")
        return await run(argv, limit_s=limit_s or self._limit_s, output_bytes=OUTPUT_BYTES)

    async def _complete(
        self, argv: Sequence[str], words: tuple[str, ...], late: type[OutliveError], limit_s: float | None = None
    ) -> str:
        """The output of a command that ended well. ``late``: the error for one that gave no answer."""
        ended = await self._run(*argv, limit_s=limit_s)
        if ended.code != 0:
            raise self._build_failure(ended, words, late, limit_s)
        return ended.out

    def _build_failure(
        self, ended: ProgramExit, words: tuple[str, ...], late: type[OutliveError], limit_s: float | None = None
    ) -> OutliveError:
        what, limit_s = " ".join(words[:3]), limit_s or self._limit_s
        if ended.killed:
            return late(f"Ceph did not answer '{what}' within {limit_s:g} s", remedy="see ceph status")
        user = self._settings.ceph_user
        if last_line(ended.err) == _NO_MONITOR or any(one in ended.err for one in _UNREACHED):
            if _DENIED in ended.err:
                return Unavailable(
                    f"Ceph does not know client.{user}, or not by this key",
                    remedy="see storage.cephKeyring in node.yaml",
                )
            return Unavailable("no monitor of Ceph answers", remedy=f"see mon host in {self._settings.ceph_conf}")
        if ended.code in _NOT_ALLOWED:
            return Unavailable(
                f"client.{user} of Ceph may not '{what}'", remedy="give it the rights of docs/how-to/storage.md"
            )
        why = last_line(ended.err) or last_line(ended.out) or f"exit code {ended.code}"
        if ended.code == _ENOENT:
            return NotFound(why)
        if ended.code == _EBUSY:
            return Refused(why)
        return late(f"Ceph: '{what}': {why}", remedy="see ceph status")


def unreadable_reason(file: str) -> str:
    """Why this process cannot read it; empty: it can."""
    try:
        with Path(file).open("rb"):
            return ""
    except OSError as error:
        return (error.strerror or "it is gone").lower()


def last_line(text: str) -> str:
    """What a program said last that is no line of a log; shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _LOG_LINE.match(line)]
    return lines[-1].removeprefix("rbd: ").removeprefix("Error ")[:200] if lines else ""


def parse_json_answer(text: str, words: tuple[str, ...]) -> Any:
    """JSON, or ``Unavailable``."""
    try:
        return msgspec.json.decode(text.strip() or "null")
    except msgspec.DecodeError:
        raise Unavailable(f"Ceph answered '{' '.join(words[:3])}' with something that is no JSON") from None
