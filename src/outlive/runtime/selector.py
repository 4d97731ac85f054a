"""An event loop that serves some sockets later than others, and few of those in each round.

asyncio handles everything that is ready before it looks again. A thousand busy connections are then one long round, in
which a timer, a child process or the one connection that matters waits. Here accepted connections are marked
``later``: of them at most ``LATER_EVENTS`` are handled in a round, each once before any of them again. Everything else
is handled in every round.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import weakref
from collections import ChainMap, deque
from collections.abc import Mapping
from typing import Any, Final

LATER_EVENTS: Final = 8
"""Events of later sockets in one round of the loop."""

Ready = tuple[selectors.SelectorKey, int]


class FairSelector(selectors.BaseSelector):
    """Two selectors, of which the first also watches the other one."""

    def __init__(self) -> None:
        self._first = selectors.EpollSelector()
        self._later = selectors.EpollSelector()
        self._first.register(self._later.fileno(), selectors.EVENT_READ)
        self._marked: dict[int, weakref.ref[socket.socket]] = {}
        """Descriptors of later sockets; the socket says whether it is still that one."""
        self._waiting: deque[Ready] = deque()
        """Later sockets that are ready and have not been handled since."""

    def mark_later(self, opened: socket.socket) -> None:
        """Serve the socket later, from before it is registered."""
        self._marked[opened.fileno()] = weakref.ref(opened)

    def move(self, fd: int, *, first: bool) -> None:
        """Serve a marked socket, registered or not, in every round from now on, or later again."""
        mark = self._marked.get(fd)
        opened = mark() if mark is not None else None
        if opened is None or opened.fileno() != fd:
            return
        source, target = (self._later, self._first) if first else (self._first, self._later)
        key = source.get_map().get(fd)
        if key is not None:
            source.unregister(fd)
            target.register(key.fd, key.events, key.data)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As ``BaseSelector``."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        mark = self._marked.get(fd)
        opened = mark() if mark is not None else None
        if opened is None or opened.fileno() != fd:
            self._marked.pop(fd, None)
            return self._first.register(fileobj, events, data)
        return self._later.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As ``BaseSelector``."""
        return self._selector_of(fileobj).unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """As ``BaseSelector``."""
        return self._selector_of(fileobj).modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[Ready]:
        """What is ready: all that is first, and some of the rest."""
        ready = self._first.select(0 if self._waiting else timeout)
        found = [each for each in ready if each[0].fd != self._later.fileno()]
        if not self._waiting and len(found) < len(ready):
            self._waiting.extend(self._later.select(0))
        for _ in range(min(LATER_EVENTS, len(self._waiting))):
            key, mask = self._waiting.popleft()
            now = self._later.get_map().get(key.fd)
            if now is not None and now.events & mask:  # it may have been closed, or want something else by now
                found.append((now, now.events & mask))
        return found

    def close(self) -> None:
        """As ``BaseSelector``."""
        self._first.close()
        self._later.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """As ``BaseSelector``."""
        return ChainMap(self._first.get_map(), self._later.get_map())  # type: ignore[arg-type]

    def _selector_of(self, fileobj: Any) -> selectors.EpollSelector:
        return self._later if fileobj in self._later.get_map() else self._first


class FairLoop(asyncio.SelectorEventLoop):
    """The event loop with such a selector."""

    def __init__(self) -> None:
        self.selector = FairSelector()
        super().__init__(self.selector)


def current_selector() -> FairSelector | None:
    """The selector of the running loop, if it is such a loop."""
    loop = asyncio.get_running_loop()
    return loop.selector if isinstance(loop, FairLoop) else None
