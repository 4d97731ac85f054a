"""Where all randomness comes from: a seeded generator that is handed in, never a global one.

``fork`` gives a part of the program a stream of its own, so that one part drawing more numbers does
not change what another part sees for the same seed.
"""

from __future__ import annotations

import os
import random

from outlive.base.hashes import stable_hash


class Random(random.Random):
    """A pseudo-random generator that knows its seed. Not for secrets (see ``outlive.base.ids``)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.start = seed

    def fork(self, name: str) -> Random:
        """A generator of its own for ``name``, fixed by this one's seed and the name alone."""
        return Random(stable_hash(str(self.start), name))

    def backoff(self, failures: int, base_s: float, cap_s: float) -> float:
        """Seconds to wait after so many failures in a row: doubling from ``base_s`` to ``cap_s``.

        Between half of it and all of it is drawn, so that those who failed together do not come back together.
        """
        return min(cap_s, base_s * 2.0 ** min(failures - 1, 60)) * self.uniform(0.5, 1.0)


def system_random() -> Random:
    """A generator whose seed the operating system chose; log ``start`` to be able to repeat a run."""
    return Random(int.from_bytes(os.urandom(8), "big"))
