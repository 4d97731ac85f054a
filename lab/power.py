"""The power of one laboratory host: ``power.py STATE HOST on|off|reset|status``, as its BMC runs it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.hosts import Switch, hosts


def main() -> int:
    """Do it; ``status`` prints ``on`` or ``off``."""
    state, name, verb = sys.argv[1:4]
    host = next(host for host in hosts(Switch(Path(state)), 32) if host.name == name)
    if verb == "status":
        print("on" if host.on else "off")
    elif verb == "on":
        host.power_on()
    elif verb == "off":
        host.power_off()
    else:
        host.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
