"""What dnsmasq runs for each change of a lease: it writes the change down for the daemon, and wakes that.

It is run as a file of its own and imports nothing of the product, since it runs at every renewal. Changes always go
through the spool, a file of JSON lines, so that none is lost while the daemon or the store is away.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time

SPOOL_BYTES = 64 * 1024 * 1024
"""A spool that is larger takes no more: the daemon has been away for a very long time."""
TEXT_CHARACTERS = 255
CLIENT_ID_CHARACTERS = 765
"""255 bytes as dnsmasq writes them."""


def main(arguments: list[str], env: dict[str, str]) -> int:
    """Do what dnsmasq asks for; return the exit code."""
    folder, vni, action = arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else ""
    if action not in ("add", "del", "old") or len(arguments) < 5:
        return 0
    expires = env.get("DNSMASQ_LEASE_EXPIRES", "0")
    iaid = env.get("DNSMASQ_IAID", "")  # there for IPv6 alone, where the third argument is the guest's DUID
    change = {
        "vni": int(vni),
        "action": action,
        "time": int(time.time()),
        "lease": {
            "mac": env.get("DNSMASQ_MAC", "") or ("" if iaid else arguments[3]),
            "address": arguments[4],
            "hostname": (arguments[5] if len(arguments) > 5 else "")[:TEXT_CHARACTERS],
            "clientId": (arguments[3] if iaid else env.get("DNSMASQ_CLIENT_ID", ""))[:CLIENT_ID_CHARACTERS],
            "iaid": iaid,
            "expires": int(expires) if expires.isdecimal() else 0,
        },
    }
    line = json.dumps(change).encode() + b"\n"
    with open(os.path.join(folder, "spool.lock"), "ab") as lock:  # noqa: PTH118, PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        spool = os.open(os.path.join(folder, "spool"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # noqa: PTH118
        try:
            size = os.fstat(spool).st_size
            if size > SPOOL_BYTES:
                return 1
            try:
                whole = os.write(spool, line) == len(line)
            except OSError:
                whole = False
            if not whole:  # on a full disk: half a line would spoil the next one too
                os.ftruncate(spool, size)
                return 1
            os.fdatasync(spool)
        finally:
            os.close(spool)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.setblocking(False)
        with contextlib.suppress(OSError):  # the daemon is away, and reads the spool when it is back
            wake.sendto(b"1", os.path.join(folder, "wake"))  # noqa: PTH118
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
