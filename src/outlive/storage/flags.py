"""The table of all options of the storage agent, and how the text of each is read.

Names and defaults are those of the piraeus HA controller, so that its command lines keep their meaning; texts are read
as Go's flags read them. docs/reference/storage-agent.md is made from this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from outlive.base import BadInput, parse_duration
from outlive.store import Selector

FlagValue = str | bool | int | float
FlagSection = Literal["reference", "hardened", "own", "client"]
"""Whose option it is: of the controller that came before, of the profile ``hardened``, ours, or of any client."""

SATELLITE_POD_LABEL: Final = "app.kubernetes.io/component=linstor-satellite"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0b(?P<binary>(?:_?[01])+)|0o?(?P<octal>(?:_?[0-7])+)|0x(?P<hex>(?:_?[0-9a-f])+)"
    r"|(?P<decimal>0|[1-9](?:_?[0-9])*))\Z",
    re.IGNORECASE | re.ASCII,
)
_BASES: Final = {"binary": 2, "octal": 8, "decimal": 10, "hex": 16}
_INTEGER_LENGTH: Final = 80
_PLAIN_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}\Z", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})\Z", re.ASCII)


class FlagKind(NamedTuple):
    """A kind of value: its name in the manual, and what reads its text (``BadInput`` if it is none)."""

    name: str
    read: Callable[[str], FlagValue]


class FlagSpec(NamedTuple):
    """One option."""

    name: str
    kind: FlagKind
    default: FlagValue
    section: FlagSection
    doc: str


def _read_duration(text: str) -> str:
    if text != text.strip():
        raise BadInput(f"{text[:80]!r} is not a duration", remedy="write it without blanks")
    parse_duration(text)
    return text


def _read_integer(text: str) -> int:
    """A whole number of 64 bits as Go writes one: also ``0x1f``, ``0o17``, ``017``, ``0b1`` and ``1_000``."""
    match = _INTEGER.match(text) if len(text) <= _INTEGER_LENGTH else None
    if match is not None:
        (base,) = (one for one in _BASES if match[one] is not None)
        value = int(match["sign"] + match[base].replace("_", ""), _BASES[base])
        if -(2**63) <= value < 2**63:
            return value
    raise BadInput(f"{text[:80]!r} is not a whole number", remedy="write digits only, such as 10")


def _read_verbosity(text: str) -> int:
    if not _PLAIN_INTEGER.match(text) or not -(2**31) <= int(text) < 2**31:
        raise BadInput(f"{text[:80]!r} is not a level of the log", remedy="write digits only, such as 4")
    return int(text)


def _read_number(text: str) -> int | float:
    if not _DECIMAL.match(text):
        raise BadInput(f"{text[:80]!r} is not a number", remedy="write it in decimals, such as 20")
    value = float(text)
    return int(value) if value.is_integer() else value


def _read_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise BadInput(f"{text[:80]!r} is neither true nor false", remedy="write true or false")
    return _BOOLEANS[text]


def _read_selector(text: str) -> str:
    Selector.parse(text)
    return text


def _choice_kind(*words: str) -> FlagKind:
    def read(text: str) -> str:
        if text not in words:
            raise BadInput(f"{text[:80]!r} is not known", remedy=f"one of {', '.join(words)}")
        return text

    return FlagKind(" or ".join(words), read)


DURATION: Final = FlagKind("duration", _read_duration)
INTEGER: Final = FlagKind("whole number", _read_integer)
VERBOSITY: Final = FlagKind("whole number", _read_verbosity)
NUMBER: Final = FlagKind("number", _read_number)
BOOLEAN: Final = FlagKind("boolean", _read_boolean)
SELECTOR: Final = FlagKind("label selector", _read_selector)
TEXT: Final = FlagKind("text", str)
TEXTS: Final = FlagKind("text, repeatable", str)

FLAGS: Final = (
    FlagSpec("node-name", TEXT, "", "reference",
             "The own node, as Kubernetes and DRBD name it. Default: `NODE_NAME` of the environment."),
    FlagSpec("drbd-status-interval", DURATION, "5s", "reference", "Pause between two polls of DRBD."),
    FlagSpec("reconcile-interval", DURATION, "10s", "reference", "Time from one tick to the next."),
    FlagSpec("resync-interval", DURATION, "15m", "reference",
             "How often caches deliver everything anew; it changes nothing that is decided."),
    FlagSpec("fail-over-timeout", DURATION, "5s", "reference",
             "How long a peer must look lost before its pods are moved; 0: at first sight."),
    FlagSpec("operations-timeout", DURATION, "30s", "reference",
             "Deadline of each operation. 0: twice the grace period; if that is 0 as well, 60 s."),
    FlagSpec("grace-period-seconds", INTEGER, 10, "reference",
             "Grace period of evictions, and of detaching, on a node that is ready."),
    FlagSpec("health-bind-address", TEXT, ":8000", "reference",
             "Where `/healthz` and `/metrics` are served; empty: nowhere."),
    FlagSpec("satellite-pod-label", SELECTOR, SATELLITE_POD_LABEL, "reference",
             "Pods whose name may stand for that of their node in DRBD's connections; empty: all pods."),
    FlagSpec("fail-over-unsafe-pods", BOOLEAN, False, "reference",
             "Move also pods with volumes that DRBD does not fence."),
    FlagSpec("disable-node-taints", BOOLEAN, False, "reference",
             "Write no taints; those that are there stay."),
    FlagSpec("v", VERBOSITY, 0, "reference", "Verbosity of the log: `-v=4` logs each decision."),
    FlagSpec("profile", _choice_kind("hardened", "compat"), "hardened", "hardened",
             "By which rules it decides; `compat`: by those of the piraeus HA controller 1.3.2."),
    FlagSpec("drbd-command-timeout", DURATION, "10s", "hardened", "When a `drbdsetup` that hangs is killed."),
    FlagSpec("drbd-stale-after", DURATION, "30s", "hardened",
             "When the last state of DRBD is too old: nothing is done by it, and health is red."),
    FlagSpec("own-taint-delay", DURATION, "", "hardened",
             "How long a volume must lack quorum before the own node is tainted. Default: `--fail-over-timeout`."),
    FlagSpec("promotion-source", _choice_kind("status", "events2"), "status", "hardened",
             "What proves that a volume may be promoted here: local disks, or also the word of `drbdsetup events2`."),
    FlagSpec("api-qps", NUMBER, 20, "hardened", "Calls to the API server a second, on average."),
    FlagSpec("api-burst", INTEGER, 40, "hardened", "Calls to the API server at once."),
    FlagSpec("dry-run", BOOLEAN, False, "hardened", "Decide, report what would be done, and do nothing."),
    FlagSpec("config", TEXT, "", "own", "A file with these options in YAML, by the same names."),
    FlagSpec("drbdsetup", TEXT, "drbdsetup", "own", "The program that reads and changes DRBD."),
    FlagSpec("drbd-proc-file", TEXT, "/proc/drbd", "own",
             "The file that is there while the kernel has DRBD; where the host's `/proc` is mounted elsewhere."),
    FlagSpec("record-cuts", BOOLEAN, False, "own",
             "Beside Outlive's own fencing: record lost quorum as proof `cut` in the Membership of a condemned host."),
    FlagSpec("state-dir", TEXT, "/var/lib/outlive-storage-agent", "own",
             "Where `--record-cuts` remembers from whom this node was disconnected."),
    FlagSpec("brake-fraction", NUMBER, 0.34, "own",
             "If more than this share of nodes, and of failure domains, is lost at once, failovers wait."),
    FlagSpec("brake-window", DURATION, "60s", "own",
             "How much longer each loss must last then before its pods are moved; 0: there is no brake."),
    FlagSpec("brake-domain-label", TEXT, ZONE_LABEL, "own",
             "The label of a node that names its failure domain; a node without it is a domain of its own."),
    FlagSpec("standby-delay", DURATION, "10s", "own",
             "How long other survivors wait for the one that acts first; 0: all of them act."),
    FlagSpec("vm-evacuation-timeout", DURATION, "60s", "own",
             "How long an evicted VM of KubeVirt may take to migrate away from a volume that answers with errors; then "
             "its pods are deleted. 0: at once."),
    FlagSpec("kubeconfig", TEXT, "", "client", "File that says where the API server is. Default: as a pod of it."),
    FlagSpec("context", TEXT, "", "client", "Context of the kubeconfig."),
    FlagSpec("cluster", TEXT, "", "client", "Cluster of the kubeconfig."),
    FlagSpec("user", TEXT, "", "client", "User of the kubeconfig."),
    FlagSpec("server", TEXT, "", "client", "Address of the API server, with which no kubeconfig is needed."),
    FlagSpec("token", TEXT, "", "client", "Bearer token."),
    FlagSpec("as", TEXT, "", "client", "User to act as."),
    FlagSpec("as-group", TEXTS, "", "client", "Group to act as; each one by an option of its own."),
    FlagSpec("as-uid", TEXT, "", "client", "Uid to act as."),
    FlagSpec("certificate-authority", TEXT, "", "client", "File with the authority of the API server's certificate."),
    FlagSpec("client-certificate", TEXT, "", "client", "File with the client's certificate."),
    FlagSpec("client-key", TEXT, "", "client", "File with the client's key."),
    FlagSpec("insecure-skip-tls-verify", BOOLEAN, False, "client", "Believe any certificate."),
    FlagSpec("tls-server-name", TEXT, "", "client",
             "The name in the API server's certificate, if it is not that of its address."),
    FlagSpec("request-timeout", TEXT, "", "client",
             "Deadline of each request but watches: seconds, or a duration; `0`: none. Default: 75 s."),
    FlagSpec("cache-dir", TEXT, "", "client", "Taken and not used: nothing is kept on disk."),
    FlagSpec("disable-compression", BOOLEAN, False, "client", "Taken and not used: nothing is compressed."),
    FlagSpec("namespace", TEXT, "", "client", "Taken and not used: all namespaces are observed."),
)  # fmt: skip
"""All options, in the order of the manual."""
