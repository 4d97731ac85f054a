"""The pages of docs/reference that are made from the code: ``python -m tests.support.pages`` writes them anew.

Above the marker stands what people wrote, below it what the code makes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
import msgspec.inspect
import typer

from outlive.cli.host import SAME_AS
from outlive.cli.main import COMMANDS, app
from outlive.cli.settings import all_sections, host_sections
from outlive.node.ports import (
    CutPort,
    FunctionPort,
    GuardPort,
    HypervisorPort,
    LinkPort,
    MachinePort,
    PowerPort,
    StoragePort,
    StorageStatisticsPort,
)
from outlive.node.ports.services import DhcpPort, FirewallPort, MetadataPort, NamePort, RoleGuardPort
from outlive.resources import KINDS, Resource
from outlive.resources.codec import to_builtins
from outlive.resources.reasons.faults import FaultCode, Severity
from outlive.resources.schema import Schema, kind_schema
from outlive.runtime.config import reference_page
from outlive.simulation.kubernetes.verbs import STORAGE_VERBS
from outlive.simulation.verbs import VERBS
from outlive.simulation.verbs.table import Verb
from outlive.storage.flags import FLAGS, FlagSection
from tests.support.metrics_page import metrics_text

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
MARKER: Final = "<!-- Generated from the code below this line; do not edit. -->\n"


def current(name: str) -> str:
    """A page as it should be."""
    if name == "configuration.md":
        return reference_page(all_sections(), host_sections())
    head, marker, _ = (FOLDER / name).read_text(encoding="utf-8").partition(MARKER)
    assert marker, f"{name} has lost its marker"
    return head + MARKER + GENERATED[name]()


def commands_text() -> str:
    """All commands with their options, as Markdown."""
    parts = ["\n## Commands\n"]
    root = typer.main.get_command(app)
    parts.extend(_sections(root, "outlive", listed=tuple(COMMANDS)))
    for name, entry in COMMANDS.items():
        parts.extend(_sections(entry.load(name), f"outlive {name}"))
    return "\n".join(parts)


def _sections(command: Any, path: str, *, listed: tuple[str, ...] = ()) -> Iterator[str]:
    """The section of a command, and of those below it."""
    context = command.make_context(path, [], resilient_parsing=True)
    anchor = "-".join(path.split())
    yield f'### <a id="{anchor}"></a>`{path}`\n'
    if same := SAME_AS.get(path.removeprefix("outlive host ")) if path.startswith("outlive host ") else None:
        yield f"The same as [`outlive {same}`](#outlive-{same.replace(' ', '-')}).\n"
        return
    yield f"{_plain(command.help or '')}\n"
    below = getattr(command, "commands", {})
    if listed:
        yield "".join(f"- [`outlive {name}`](#outlive-{name}): {COMMANDS[name].help}\n" for name in listed)
    yield f"```\n{_usage(command, context)}\n```\n"
    records = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
    if records:
        rows = [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in records]
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"
    if not listed:
        for name, part in below.items():
            yield from _sections(part, f"{path} {name}")


def _usage(command: Any, context: Any) -> str:
    return " ".join(command.get_usage(context).removeprefix("Usage: ").split())


def _plain(text: str) -> str:
    return re.sub(r"[ \t]*\n(?!\n)[ \t]*", " ", text.strip()).replace("  ", "\n\n")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def verbs_text(verbs: Mapping[str, Verb] = VERBS) -> str:
    """All verbs of timelines of a kind of world with their fields, as Markdown."""
    lines = ["", "| verb | fields | what happens |", "|---|---|---|"]
    for word, verb in sorted(verbs.items()):
        if verb.act.__module__.startswith("outlive."):
            about = " ".join((inspect.getdoc(verb.act) or "").split())
            lines.append(
                f"| `{word}` | {_fields(verb.arguments)} | {_cell(f'{_happens(verb.sentence)}. {about}'.strip())} |"
            )
    return "\n".join(lines) + "\n"


SPOKEN: Final = {"who": "a host", "vms": "VMs", "to": "a host", "name": "somebody", "s": "s"}
"""What stands for the parts of a sentence of a story; others go, with what leads to them."""


def _happens(sentence: str) -> str:
    spoken = re.sub(r"\{(\w+)\}", lambda part: SPOKEN.get(part[1], part[0]), sentence)
    return re.sub(r":? ?\{\w+\}", "", spoken)


def _fields(arguments: type[msgspec.Struct]) -> str:
    shown = []
    for field in msgspec.structs.fields(arguments):
        kind = field.type
        words = get_args(kind) if get_origin(kind) is Literal else ()
        text = f"`{field.encode_name}`"
        if words:
            text += f" ({', '.join(map(str, words))})"
        shown.append(f"{text} (required)" if field.required else text)
    return ", ".join(shown) or "none"


class ShownCommand(NamedTuple):
    """One command of the tree, with its parameters as the command line knows them."""

    path: str
    parameters: tuple[Any, ...]

    @property
    def options(self) -> list[Any]:
        """Its own and the common ones, without help."""
        return [one for one in self.parameters if one.param_type_name == "option" and "--help" not in one.opts]


def command_tree() -> Iterator[ShownCommand]:
    """Every command that can be called, those of groups below them."""
    for name, entry in COMMANDS.items():
        yield from _branch(entry.load(name), name)


def _branch(command: Any, path: str) -> Iterator[ShownCommand]:
    below = getattr(command, "commands", {})
    for name, part in below.items():
        yield from _branch(part, f"{path} {name}")
    if not below:
        context = command.make_context(path, [], resilient_parsing=True)
        yield ShownCommand(path, tuple(command.get_params(context)))


WHERE: Final = {"--state", "--state-dir", "--server", "--token", "--fingerprint", "--insecure"}
COMMON: Final = {*WHERE, "--store", "--kubeconfig", "--context", "--zookeeper", "--output"}
"""Options of nearly every command, which the table leaves out."""


def tree_text() -> str:
    """All verbs by noun, with what stands after them and their own options, as Markdown."""
    nouns: dict[str, list[str]] = {}
    for one in command_tree():
        noun, _, verb = one.path.partition(" ")
        given = " ".join(_argument(part) for part in one.parameters if part.param_type_name == "argument")
        options = [_option(part) for part in one.options if not COMMON & {*part.opts}]
        row = f"| `{verb or noun}` | {f'`{given}`' if given else ''} | {', '.join(options)} |"
        nouns.setdefault(noun if verb else "", []).append(_escaped(row))
    parts = []
    for noun, rows in nouns.items():
        parts += [f"### {noun or 'Without a noun'}\n", "| verb | after it | options |", "|---|---|---|", *rows, ""]
    return "\n" + "\n".join(parts)


def _escaped(row: str) -> str:
    inner = row[2:-2].split(" | ")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in inner) + " |"


def _argument(argument: Any) -> str:
    name = str(argument.metavar or argument.name).strip("{}")
    return f"{name}…" if argument.nargs == -1 else name


def _option(option: Any) -> str:
    letters = sorted(one for one in (*option.opts, *option.secondary_opts) if not one.startswith("--"))
    words = [one for one in (*option.opts, *option.secondary_opts) if one.startswith("--")]
    value = "" if getattr(option, "is_flag", False) else f" {option.metavar or 'VALUE'}"
    return f"`{' '.join((*letters, '/'.join(words)))}{value}`"


def kinds_text() -> str:
    """All kinds with their fields, as Markdown."""
    return "\n" + "\n".join(_kind_section(KINDS[name]) for name in sorted(KINDS))


def _kind_section(kind: type[Resource]) -> str:
    info = kind.info
    schema = kind_schema(kind)
    form = "spec and status" if kind.has_status() else "spec only" if info.halves else "one document"
    names = ", ".join(f"`{name}`" for name in (info.plural, kind.singular(), *info.short_names))
    lines = [
        f"## {kind.kind()}",
        "",
        schema["description"],
        "",
        f"Names: {names}. Form: {form}.",
        "",
        "| field | type | meaning |",
        "|---|---|---|",
    ]
    defaults = dict(_defaults("", msgspec.inspect.type_info(kind)))
    for name, part in schema["properties"].items():
        if name not in ("apiVersion", "kind", "metadata"):
            lines += _rows(name, part, defaults, required=name in schema.get("required", ()))
    return "\n".join(lines) + "\n"


def _defaults(path: str, found: msgspec.inspect.Type) -> Iterator[tuple[str, object]]:
    """Path of a field → its default, of those whose default is more than nothing."""
    match found:
        case msgspec.inspect.StructType():
            for field in found.fields:
                name = f"{path}.{field.encode_name}" if path else field.encode_name
                if field.default and field.default is not msgspec.NODEFAULT:
                    default = to_builtins(field.default)
                    if not isinstance(default, dict | list | tuple):
                        yield name, default
                yield from _defaults(name, field.type)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            yield from _defaults(f"{path}[]", found.item_type)
        case msgspec.inspect.DictType():
            yield from _defaults(f"{path}.*", found.value_type)
        case msgspec.inspect.UnionType():
            for one in found.types:
                yield from _defaults(path, one)


def _rows(path: str, schema: Schema, defaults: Mapping[str, object], *, required: bool) -> Iterator[str]:
    meaning = schema.get("description", "")
    if schema.get("enum"):
        words = ", ".join(f"`{word}`" if word else "empty" for word in schema["enum"])
        meaning = f"{meaning} One of {words}.".strip()
    if required:
        meaning = f"Required. {meaning}".strip()
    if path in defaults:
        default = defaults[path]
        meaning = f"{meaning} Default: `{str(default).lower() if isinstance(default, bool) else default}`.".strip()
    yield f"| `{path}` | {_type(schema)} | {meaning.replace('|', '/')} |"
    inner, suffix = schema, ""
    while "properties" not in inner:
        if "items" in inner:
            inner, suffix = inner["items"], f"{suffix}[]"
        elif isinstance(inner.get("additionalProperties"), dict):
            inner, suffix = inner["additionalProperties"], f"{suffix}.*"
        else:
            return
    for name, part in inner["properties"].items():
        yield from _rows(f"{path}{suffix}.{name}", part, defaults, required=name in inner.get("required", ()))


def _type(schema: Schema) -> str:
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    return "time" if schema.get("format") == "date-time" else str(schema["type"])


def faults_text() -> str:
    """All faults with their severity and weight, the most urgent first, as Markdown."""
    order = list(Severity)
    codes = sorted(FaultCode, key=lambda code: (order.index(code.severity), -code.delta, code))
    rows = [f"| `{code}` | {code.severity} | {code.delta} |" for code in codes]
    return "\n".join(["", "| fault | severity | off the health |", "|---|---|---|", *rows, ""])


def ports_text() -> str:
    """What the docstrings of the node's ports promise, call by call, as Markdown."""
    return "\n" + "\n".join(_port_section(port, suite) for port, suite in PORTS.items())


def _port_section(port: type[Any], suite: str) -> str:
    parts = [f"## {port.__name__}\n", f"{_markdown(inspect.getdoc(port) or '')}\n", f"Checks: `{SUITES}/{suite}.py`.\n"]
    calls = [(name, one) for name, one in vars(port).items() if inspect.isfunction(one) and not name.startswith("_")]
    for name, one in calls:
        given = ", ".join(parameter for parameter in inspect.signature(one).parameters if parameter != "self")
        parts.append(f"### `{name}({given})`\n\n{_markdown(inspect.getdoc(one) or '')}\n")
    return "\n".join(parts)


def _markdown(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip()).replace("``", "`")


OPTION_SECTIONS: Final[dict[FlagSection, str]] = {
    "reference": "Those of the piraeus HA controller",
    "hardened": "Further ones",
    "own": "Rules of our own",
    "client": "How the API server is reached",
}


def agent_options_text() -> str:
    """All options of the storage agent, as Markdown."""
    parts = []
    for section, title in OPTION_SECTIONS.items():
        rows = [
            f"| `{'-' if len(flag.name) == 1 else '--'}{flag.name}` | {flag.kind.name} "
            f"| {_shown_default(flag.default)} | {_cell(flag.doc)} |"
            for flag in FLAGS
            if flag.section == section
        ]
        parts.append(
            "\n".join([f"\n## {title}\n", "| option | value | default | meaning |", "|---|---|---|---|", *rows, ""])
        )
    return "".join(parts)


def _shown_default(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


SUITES: Final = "tests/conformance/ports"
PORTS: Final[dict[type[Any], str]] = {
    HypervisorPort: "test_hypervisor",
    PowerPort: "test_power",
    CutPort: "test_isolation",
    StoragePort: "test_isolation",
    StorageStatisticsPort: "test_storage_statistics",
    MachinePort: "test_machine",
    GuardPort: "test_guard",
    LinkPort: "test_links",
    DhcpPort: "test_services",
    NamePort: "test_services",
    FirewallPort: "test_services",
    MetadataPort: "test_services",
    RoleGuardPort: "test_services",
    FunctionPort: "test_functions",
}
GENERATED: Final[dict[str, Callable[[], str]]] = {
    "cli.md": commands_text,
    "drivers.md": ports_text,
    "resources.md": kinds_text,
    "../operating/simulating.md": verbs_text,
    "../operating/simulating-storage.md": lambda: verbs_text(STORAGE_VERBS),
    "../design/commands.md": tree_text,
    "faults.md": faults_text,
    "metrics.md": metrics_text,
    "storage-agent.md": agent_options_text,
}
PAGES: Final = (*GENERATED, "configuration.md")

if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(current(page), encoding="utf-8")
