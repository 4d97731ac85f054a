"""The options of the storage agent: from flags, environment and file to what its decisions read.

``parse_options`` says what was meant, also by a command line with which nobody should run the agent, so that it can be
replayed; ``check_usable`` refuses such values when the agent starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from outlive.base import BadInput, parse_duration
from outlive.runtime import Decision, read_settings_file
from outlive.storage.flags import BOOLEAN, FLAGS, SATELLITE_POD_LABEL, TEXTS, ZONE_LABEL, FlagSpec, FlagValue

Profile = Literal["hardened", "compat"]
PromotionSource = Literal["status", "events2"]

VARIABLE_PREFIX: Final = "OUTLIVE_STORAGE_AGENT__"
"""Of variables that stand for options: ``OUTLIVE_STORAGE_AGENT__FAIL_OVER_TIMEOUT``."""
LAST_DEADLINE_S: Final = 60.0
"""The deadline of operations where neither their timeout nor the grace period gives one."""
LEAST_INTERVAL_S: Final = 0.1
WORDS_LIMIT: Final = 10_000
"""Arguments, variables and keys of a file, each."""
_BY_NAME: Final = {flag.name: flag for flag in FLAGS}
_Source = Iterator[tuple[FlagSpec, str, str]]
"""Options with the text of their value, and where it was said."""


class BadOption(BadInput):
    """An option that is not known, or a value that it does not take."""

    code = "bad-option"


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the decisions of the agent read of its options."""

    node_name: str = ""
    """The own node, as Kubernetes and DRBD name it."""
    fail_over_timeout_s: float = 5.0
    operations_timeout_s: float = 30.0
    grace_period_s: int = 10
    reconcile_interval_s: float = 10.0
    satellite_pod_label: str = SATELLITE_POD_LABEL
    """A label selector; an empty one selects every pod."""
    fail_over_unsafe_pods: bool = False
    disable_node_taints: bool = False
    own_taint_delay_s: float = -1.0
    """Absent (or negative): ``failOverTimeoutS``."""
    drbd_command_timeout_s: float = 10.0
    drbd_stale_after_s: float = 30.0
    promotion_source: PromotionSource = "status"

    def __post_init__(self) -> None:
        if self.own_taint_delay_s < 0:
            msgspec.structs.force_setattr(self, "own_taint_delay_s", self.fail_over_timeout_s)

    @property
    def deadline_s(self) -> float:
        """The deadline of an operation: its timeout, else twice the grace period, else a minute."""
        return self.operations_timeout_s or 2.0 * self.grace_period_s or LAST_DEADLINE_S


class OwnOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options of rules that go beyond the controller that came before."""

    brake_fraction: float = 0.34
    """Share of nodes, and of failure domains: if more is lost at once, failovers wait."""
    brake_window_s: float = 60.0
    """How much longer each loss must last then; 0: there is no brake."""
    brake_domain_label: str = ZONE_LABEL
    """The label of a node that names its failure domain; a node without it is a domain of its own."""
    standby_delay_s: float = 10.0
    """How long other survivors wait for the one that acts first; 0: all of them act."""
    vm_evacuation_timeout_s: float = 60.0
    """How long an evicted VM of KubeVirt may take to migrate away from a volume that fails."""
    drbdsetup: str = "drbdsetup"
    """The program that reads and changes DRBD."""
    drbd_proc_file: str = "/proc/drbd"
    """The file that is there while the kernel has DRBD."""
    record_cuts: bool = False
    """Whether lost quorum is recorded in the Membership of a condemned host."""
    state_dir: str = "/var/lib/outlive-storage-agent"
    """Where is remembered from whom this node was disconnected for that."""


class AgentFlags(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one process."""

    flags: dict[str, FlagValue]
    """Each option of the sections ``reference`` and ``hardened``: durations as text, numbers, booleans, texts."""
    options: AgentOptions
    own: OwnOptions
    client: dict[str, FlagValue | tuple[str, ...]]
    """Those options of the client that were given. They may hold secrets, and are in no answer."""

    @property
    def profile(self) -> Profile:
        """By which rules the agent decides."""
        return "compat" if self.flags["profile"] == "compat" else "hardened"

    def get_seconds(self, flag: str) -> float:
        """The value of a duration in ``flags``."""
        return parse_duration(str(self.flags[flag]))


def parse_options(
    arguments: Sequence[str], environment: Mapping[str, str], file: Mapping[str, Any] | None = None
) -> AgentFlags:
    """The options of a process: arguments count more than the environment, and that more than the file's values.

    Of an option that is given several times the last value counts. ``BadOption`` names an option that is not known
    with the nearest one, or the value that is not understood.
    """
    if max(len(arguments), len(environment), len(file or {})) > WORDS_LIMIT:
        raise BadOption("too many words", remedy=f"at most {WORDS_LIMIT} arguments, variables or keys")
    given: dict[str, list[FlagValue]] = {}
    for source in (_options_of_file(file or {}), _options_of_environment(environment), _options_of_words(arguments)):
        found: dict[str, list[FlagValue]] = {}
        for flag, text, place in source:
            found.setdefault(flag.name, []).append(_read_value(flag, text, place))
        given |= found
    values: dict[str, Any] = {flag.name: flag.default for flag in FLAGS}
    values |= {name: each[-1] for name, each in given.items()}
    values["own-taint-delay"] = values["own-taint-delay"] or values["fail-over-timeout"]
    options = AgentOptions(
        node_name=values["node-name"],
        fail_over_timeout_s=parse_duration(values["fail-over-timeout"]),
        operations_timeout_s=parse_duration(values["operations-timeout"]),
        grace_period_s=values["grace-period-seconds"],
        reconcile_interval_s=parse_duration(values["reconcile-interval"]),
        satellite_pod_label=values["satellite-pod-label"],
        fail_over_unsafe_pods=values["fail-over-unsafe-pods"],
        disable_node_taints=values["disable-node-taints"],
        own_taint_delay_s=parse_duration(values["own-taint-delay"]),
        drbd_command_timeout_s=parse_duration(values["drbd-command-timeout"]),
        drbd_stale_after_s=parse_duration(values["drbd-stale-after"]),
        promotion_source=values["promotion-source"],
    )
    own = OwnOptions(
        brake_fraction=values["brake-fraction"],
        brake_window_s=parse_duration(values["brake-window"]),
        brake_domain_label=values["brake-domain-label"],
        standby_delay_s=parse_duration(values["standby-delay"]),
        vm_evacuation_timeout_s=parse_duration(values["vm-evacuation-timeout"]),
        drbdsetup=values["drbdsetup"],
        drbd_proc_file=values["drbd-proc-file"],
        record_cuts=values["record-cuts"],
        state_dir=values["state-dir"],
    )
    client = {
        name: tuple(map(str, each)) if _BY_NAME[name].kind is TEXTS else each[-1]
        for name, each in given.items()
        if _BY_NAME[name].section == "client"
    }
    flags = {flag.name: values[flag.name] for flag in FLAGS if flag.section in ("reference", "hardened")}
    return AgentFlags(flags=flags, options=options, own=own, client=client)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> AgentFlags:
    """As ``parse_options``, with the file of ``--config``, and checked: the options that an agent starts with.

    ``BadOption``; ``BadInput``, ``NotFound`` or ``LimitExceeded`` of the file.
    """
    said = [*_options_of_environment(environment), *_options_of_words(arguments)]
    files = [text for flag, text, _ in said if flag.name == "config"]
    file, _ = read_settings_file(Path(files[-1])) if files and files[-1] else ({}, {})
    flags = parse_options(arguments, environment, file)
    check_usable(flags)
    return flags


def check_usable(flags: AgentFlags) -> None:
    """``BadOption`` names a value with which the agent cannot run, or would run without a pause."""
    options, own = flags.options, flags.own
    for name in ("fail-over-timeout", "operations-timeout", "resync-interval", "own-taint-delay"):
        _check_range(name, flags.get_seconds(name), least=0)
    for name in ("drbd-status-interval", "reconcile-interval", "drbd-command-timeout", "drbd-stale-after"):
        _check_range(name, flags.get_seconds(name), least=LEAST_INTERVAL_S)
    _check_range("grace-period-seconds", options.grace_period_s, least=0)
    _check_range("api-qps", float(flags.flags["api-qps"]), least=0.1)
    _check_range("api-burst", float(flags.flags["api-burst"]), least=1)
    _check_range("brake-window", own.brake_window_s, least=0)
    _check_range("standby-delay", own.standby_delay_s, least=0)
    _check_range("vm-evacuation-timeout", own.vm_evacuation_timeout_s, least=0)
    _check_range("brake-fraction", own.brake_fraction, least=0.01, most=1)
    if not options.node_name:
        raise BadOption("the own node has no name", place="--node-name", remedy="give it, or NODE_NAME")
    health_address(flags)


def health_address(flags: AgentFlags) -> tuple[str, int] | None:
    """Host (empty: every address) and port where health and metrics are served; ``None``: nowhere. ``BadOption``."""
    text = str(flags.flags["health-bind-address"])
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not (port.isascii() and port.isdecimal())
        or int(port[:6]) > 65535
        or (":" in host) != ("[" in host)
    ):
        raise BadOption(
            f"{text[:80]!r} is no address", place="--health-bind-address", remedy="such as :8000 or 127.0.0.1:8000"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_range(name: str, value: float, *, least: float, most: float | None = None) -> None:
    if value < least or (most is not None and value > most):
        remedy = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
        raise BadOption(f"{value:g} is out of range", place=f"--{name}", remedy=remedy)


def _options_of_words(arguments: Sequence[str]) -> _Source:
    """Options of a command line as Go programs take them: ``--flag=value``, ``--flag value``, ``--switch``, ``-v4``."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            for rest in words:
                raise _positional_error(rest)
            return
        if not word.startswith("-") or word == "-":
            raise _positional_error(word)
        if word.startswith("-v"):
            flag, joined, text = _BY_NAME["v"], len(word) > 2, word[2:].removeprefix("=")
        elif word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            flag, joined = _find_flag(name, f"--{name}", [f"--{one}" for one in _BY_NAME if one != "v"]), bool(equals)
        else:
            raise BadOption(f"there is no option {word[:80]!r}", remedy="write --name=value, or -v=4")
        if not joined:
            following = "true" if flag.kind is BOOLEAN else next(words, None)
            if following is None:
                raise BadOption("has no value", place=word, remedy=f"write {word}=VALUE")
            text = following
        yield flag, text, f"--{flag.name}" if flag.name != "v" else "-v"


def _options_of_environment(environment: Mapping[str, str]) -> _Source:
    if node := environment.get("NODE_NAME"):
        yield _BY_NAME["node-name"], node, "NODE_NAME"
    variables = [VARIABLE_PREFIX + name.upper().replace("-", "_") for name in _BY_NAME]
    for variable, text in environment.items():
        if variable.startswith(VARIABLE_PREFIX):
            name = variable.removeprefix(VARIABLE_PREFIX).lower().replace("_", "-")
            yield _find_flag(name, variable, variables), text, variable


def _options_of_file(file: Mapping[str, Any]) -> _Source:
    for name, value in file.items():
        flag = _find_flag(name, name, _BY_NAME)
        if flag.name == "config":
            raise BadOption("a file names no other file", place=name, remedy="give --config, or its variable")
        for one in value if isinstance(value, list) and flag.kind is TEXTS else [value]:
            if not isinstance(one, str | int | float):
                raise BadOption(f"holds {type(one).__name__}", place=name, remedy=f"write one value: {flag.kind.name}")
            yield flag, str(one).lower() if isinstance(one, bool) else str(one), name


def _read_value(flag: FlagSpec, text: str, place: str) -> FlagValue:
    try:
        return flag.kind.read(text)
    except BadInput as error:
        raise BadOption(error.message, place=place, remedy=error.remedy) from None


def _find_flag(name: str, written: str, others: Iterable[str]) -> FlagSpec:
    flag = _BY_NAME.get(name)
    if flag is None:
        near = difflib.get_close_matches(written[:80], list(others), n=1)
        raise BadOption(
            f"there is no option {written[:80]!r}",
            remedy=f"did you mean {near[0]}?" if near else "docs/reference/storage-agent.md lists all",
        )
    return flag


def _positional_error(word: str) -> BadOption:
    return BadOption(f"{word[:80]!r} stands where an option is expected", remedy="write --name=value; --switch=false")


class OptionsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a process was started with."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    file: dict[str, Any] = {}
    """The values of the file that ``--config`` names."""


class OptionsAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What it means."""

    flags: dict[str, FlagValue]
    options: AgentOptions
    deadline_s: float
    """Of each operation, seconds."""
    own: OwnOptions


def decide_options(given: OptionsInput) -> OptionsAnswer:
    """The options of a process; ``BadOption`` for one that is not known and for a value that is not understood."""
    found = parse_options(given.arguments, given.environment, given.file)
    return OptionsAnswer(flags=found.flags, options=found.options, deadline_s=found.options.deadline_s, own=found.own)


OPTIONS: Final = Decision(
    "storage.options",
    decide_options,
    OptionsInput,
    OptionsAnswer,
    "What flags, environment and file of the storage agent mean",
    nulls_are_absent=True,
)
