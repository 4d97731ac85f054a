"""The pages of docs/reference that are made from the code: ``python -m tests.support.pages`` writes them anew.

Above the marker stands what people wrote, below it what the code makes.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
import msgspec.inspect
import typer

from outlive.cli import COMMANDS, SAME_AS, all_sections, app, host_sections
from outlive.node.ports import (
    CutPort,
    DhcpPort,
    FirewallPort,
    FunctionPort,
    GuardPort,
    HypervisorPort,
    LinkPort,
    MachinePort,
    MetadataPort,
    NamePort,
    PowerPort,
    RoleGuardPort,
    StoragePort,
    StorageStatisticsPort,
)
from outlive.resources import KINDS, Resource, Schema, field_docs, struct_schema, summarize, to_builtins
from outlive.resources.reasons import (
    FAULTS,
    TABLE,
    AllocationFault,
    CoverageReason,
    FailBackReason,
    FaultCode,
    HoldReason,
    ImportNotice,
    MigrationReason,
    NetworkReason,
    PlaceReason,
    RuleConflict,
    Severity,
    VmReason,
)
from outlive.runtime import reference_page
from outlive.simulation.kubernetes import STORAGE_VERBS
from outlive.simulation.verbs import VERBS, Verb
from outlive.storage import FLAGS, FlagSection
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
    """All commands as Markdown: options of many commands once, then a line for each command with its own options."""
    shown = [_Shown(("outlive",), typer.main.get_command(app))]
    for name, entry in COMMANDS.items():
        shown.extend(_tree(("outlive", name), entry.load(name)))
    uses = Counter(record for one in shown for record in one.records if one.path[1:2] != ("import",))
    often = [record for record, count in uses.items() if count >= SHARED_BY]
    everywhere = [record for record in often if record.words & COMMON]
    shared = [record for record in often if not record.words & COMMON]
    tops = [one for one in shown if len(one.path) == len(("outlive", "COMMAND"))]
    alone = [one for one in tops if not one.is_group]
    common = set(often)
    parts = [
        '\n## <a id="common-options"></a>Common options\n',
        f"Every command that asks a cluster has {_listed(everywhere)} ([where the state is](#where-the-state-is)).\n",
        "Many commands have some of these:\n",
        _options(record for at, record in enumerate(shared) if record.name not in {one.name for one in shared[:at]}),
        *_lines_of_root(shown[0]),
        "## Commands\n",
        "Each line ends with the options of its own; `outlive COMMAND --help` explains all. Exit code 1: no, or "
        "something is wrong.\n",
        "".join(_command_line(one, common) for one in alone),
    ]
    for top in (one for one in tops if one.is_group):
        parts.extend(_group_section(top, shown, common))
    return "\n".join(parts)


SHARED_BY: Final = 5
"""An option or argument of so many commands is described once."""
GROUP_SHARED_BY: Final = 2
"""The same within a group."""
OF_TYPER: Final = {"--install-completion", "--show-completion"}
"""Options that the library adds, and that the page describes elsewhere."""


class _Record(NamedTuple):
    """An option or argument as the help shows it."""

    name: str
    text: str

    @property
    def words(self) -> set[str]:
        return set(re.findall(r"--[\w-]+", self.name))

    @property
    def short(self) -> str:
        found = re.findall(r"--[\w-]+", self.name)
        return found[0] if found else self.name


class _Shown(NamedTuple):
    """A command or group of the tree."""

    path: tuple[str, ...]
    command: Any

    @property
    def anchor(self) -> str:
        return "-".join(self.path)

    @property
    def is_group(self) -> bool:
        return bool(getattr(self.command, "commands", {}))

    @property
    def about(self) -> str:
        """The first paragraph of the help, as Markdown, without what exit code 1 always means."""
        paragraph = _escaped(" ".join((self.command.help or "").strip().partition("\n\n")[0].split()))
        return re.sub(r"[;,] exit code 1 (if|while) [^.;,]*\.$", ".", paragraph)

    @property
    def context(self) -> Any:
        return self.command.make_context(" ".join(self.path), [], resilient_parsing=True)

    @property
    def records(self) -> list[_Record]:
        context = self.context
        params = [param for param in self.command.get_params(context) if not {"--help", *OF_TYPER} & set(param.opts)]
        found = (param.get_help_record(context) for param in params)
        return [_Record(_bare(name), _unless_argument(name, text)) for name, text in filter(None, found)]

    @property
    def twin(self) -> str:
        """The command that this one repeats; empty: none."""
        return SAME_AS.get(self.path[-1], "") if self.path[:2] == ("outlive", "host") and len(self.path) == 3 else ""


def _bare(name: str) -> str:
    """The name of an option or argument without the type of its value, but with its words to choose from."""
    return re.sub(r" ?<(?![^>]*\|)[^>]*>", "", " ".join(name.split())).strip("[]").replace("...", "")


def _unless_argument(name: str, text: str) -> str:
    """The meaning, with its range in words; the usage line shows already that an argument is required."""
    text = re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", " ".join(text.split())).replace("x>=", "at least ")
    return text if name.startswith("-") else text.removesuffix("[required]").strip()


def _tree(path: tuple[str, ...], command: Any) -> Iterator[_Shown]:
    yield _Shown(path, command)
    for name, part in getattr(command, "commands", {}).items():
        yield from _tree((*path, name), part)


def _listed(records: Iterable[_Record]) -> str:
    return ", ".join(f"`{re.sub(r'[<>]', '', record.name)}`" for record in records)


def _lines_of_root(root: _Shown) -> Iterator[str]:
    yield "Of `outlive` itself:\n"
    yield _options(root.records)


def _group_section(top: _Shown, shown: Sequence[_Shown], common: Set[_Record]) -> Iterator[str]:
    """A group: what it is about, what several of its commands have, and a line for each."""
    below = [one for one in shown if one.path[: len(top.path)] == top.path and one is not top]
    of_group = {one.path: _group_options(one.path, shown) - common for one in (top, *below)}
    yield f'### <a id="{top.anchor}"></a>{top.path[-1]}\n'
    if own := _named(top, common):
        yield f"{top.about}{own}\n"
    if several := [f"`{record.short}`" for record in _ordered(of_group[top.path], below)]:
        yield f"Several of its commands have {', '.join(several)}.\n"
    lines = (_command_line(one, common | of_group.get(one.path[:-1], set())) for one in below if not one.is_group)
    yield "".join(lines)


def _ordered(records: Set[_Record], below: Sequence[_Shown]) -> list[_Record]:
    """Options of a group in the order in which its commands have them."""
    return list(dict.fromkeys(record for one in below for record in one.records if record in records))


def _command_line(one: _Shown, elsewhere: Set[_Record]) -> str:
    name = f'- <a id="{one.anchor}"></a>`{" ".join(one.path[1:])}{_given(one)}`: '
    if one.twin:
        return f"{name}the same as [`{one.twin}`](#outlive-{one.twin.replace(' ', '-')}).\n"
    return f"{name}{one.about}{_named(one, elsewhere)}\n"


def _named(one: _Shown, elsewhere: Set[_Record]) -> str:
    """The options of a command that the page describes nowhere else, by name."""
    own = [record for record in one.records if record not in elsewhere and record.words]
    everywhere = {record.short for record in elsewhere}
    return "".join(f" `{record.short}`" for record in own if record.short not in everywhere & COMMON)


def _given(one: _Shown) -> str:
    """What stands after a command in its usage line."""
    words = _usage(one.command, one.context).removeprefix(" ".join(one.path)).split()
    return "".join(f" {re.sub(r'[{}]', '', word).replace('......', '...')}" for word in words if word != "[OPTIONS]")


def _group_options(path: tuple[str, ...], shown: Sequence[_Shown]) -> set[_Record]:
    """Options that several commands right below a group share."""
    below = [one for one in shown if one.path[:-1] == path and len(path) > 1]
    uses = Counter(record for one in below for record in one.records if record.words)
    return {record for record, count in uses.items() if count >= GROUP_SHARED_BY}


def _options(records: Iterable[_Record]) -> str:
    return "".join(f"- `{record.name}`: {_escaped(record.text)}\n" for record in records)


def _usage(command: Any, context: Any) -> str:
    return " ".join(command.get_usage(context).removeprefix("Usage: ").split())


def _escaped(text: str) -> str:
    """Plain text for Markdown, in which ``<`` would begin HTML."""
    return re.sub(r"<(?=[A-Za-z/!])", "&lt;", text)


def verbs_text(verbs: Mapping[str, Verb] = VERBS) -> str:
    """All verbs of timelines of a kind of world with their fields, as Markdown."""
    lines = [""]
    for word, verb in sorted(verbs.items()):
        if verb.act.__module__.startswith("outlive."):
            about = " ".join((inspect.getdoc(verb.act) or "").split())
            text = f"{_happens(verb.sentence)}. {about if '`' in about else ''}".strip().replace("``", "`")
            lines.append(f"- `{word}`{_fields(verb.arguments)}: {_escaped(text)}")
    return "\n".join(lines) + "\n"


SPOKEN: Final = {"who": "a host", "vms": "VMs", "to": "a host", "name": "an operator", "s": "s"}
"""What stands for the parts of a sentence of a story; others go, with what leads to them."""


PLAIN: Final = {"somebody": "an operator", "nobody reaches": "no host reaches", "answers nobody": "answers no request"}
"""Words of a story's sentences, and what the page has for them."""
HOSTS: Final = {"host", "hosts", "domain"}
"""Verbs that have all of these take one of them."""


def _happens(sentence: str) -> str:
    spoken = re.sub(r"\{(\w+)\}", lambda part: SPOKEN.get(part[1], part[0]), sentence)
    said = re.sub(r":? ?\{\w+\}", "", spoken)
    for word, plain in PLAIN.items():
        said = said.replace(word, plain)
    return said


def _fields(arguments: type[msgspec.Struct]) -> str:
    shown = []
    fields = msgspec.structs.fields(arguments)
    if {field.encode_name for field in fields} >= HOSTS:
        shown.append("hosts")
        fields = tuple(field for field in fields if field.encode_name not in HOSTS)
    for field in fields:
        kind = field.type
        words = get_args(kind) if get_origin(kind) is Literal else ()
        text = f"`{field.encode_name}`"
        if words:
            text += f" {'/'.join(map(str, words))}"
        shown.append(f"{text}\\*" if field.required else text)
    return f" ({', '.join(shown)})" if shown else ""


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


def kinds_text() -> str:
    """All kinds with their fields, and after them the objects that several fields are, as Markdown."""
    kinds = [KINDS[name] for name in sorted(KINDS)]
    described = [kind for kind in kinds if kind.kind() not in INTERNAL]
    uses = Counter(struct for kind in described for struct in _structs_of(msgspec.inspect.type_info(kind)))
    bases = {base for struct in uses if (base := struct.__mro__[1]) in uses}
    shared = {struct for struct, count in uses.items() if count > 1} | bases
    parts = [_kind_section(kind, shared) for kind in described]
    parts.append("## Kinds that only Outlive uses\n")
    internal = (kind for kind in kinds if kind.kind() in INTERNAL)
    lines = (f"- `{kind.kind()}` (`{kind.info.plural}`): {_linked(_in_short(summarize(kind)))}\n" for kind in internal)
    parts.append("".join(lines))
    parts.append('## <a id="objects"></a>Objects that several fields are\n')
    text = "\n".join(parts)
    objects = {_object_anchor(struct): _object_section(struct, shared) for struct in shared}
    while named := {anchor for anchor in objects if f"(#{anchor})" in text and f'id="{anchor}"' not in text}:
        text = "\n".join([text, *(objects[anchor] for anchor in sorted(named))])
    return f"\n{text}"


def _object_section(struct: type[msgspec.Struct], shared: Set[type]) -> str:
    heading = f'### <a id="{_object_anchor(struct)}"></a>{struct.__name__}'
    return f"{heading}\n\n{_linked(summarize(struct))}\n\n{_fields_text(struct, shared)}"


def _structs_of(found: msgspec.inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """The structs of the fields below a type, each as often as a field is one; below equal ones it looks once."""
    seen: set[type] = set()
    waiting = [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, msgspec.inspect.StructType) and one.cls not in seen:
            seen.add(one.cls)
            for field in one.fields:
                inner = _inner(field.type)
                if field.name not in ENVELOPE and isinstance(inner, msgspec.inspect.StructType):
                    yield inner.cls
                    waiting.append(inner)


ENVELOPE: Final = {"api_version", "kind", "metadata"}


def _inner(found: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """What a list, a map or an optional value is made of."""
    match found:
        case msgspec.inspect.Metadata():
            return _inner(found.type)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return _inner(found.item_type)
        case msgspec.inspect.DictType():
            return _inner(found.value_type)
        case msgspec.inspect.UnionType():
            return _inner(next(one for one in found.types if not isinstance(one, msgspec.inspect.NoneType)))
        case _:
            return found


def _object_anchor(struct: type) -> str:
    return f"object-{struct.__name__.lower()}"


INTERNAL: Final = {"CommitmentChange", "Console", "DecisionRecord", "Election", "HostLog", "Notification"}
"""Kinds that only Outlive writes and reads; commands show what is in them."""
FIGURES: Final = {
    *("Coverage", "DhcpLease", "Event", "Fault", "FlavorGroup", "HypervisorUsage", "Membership", "PlacementHistory"),
    *("StorageCluster", "StorageDaemon", "StoragePool", "Token", "UsageHistory"),
}
"""Kinds of which only Outlive writes all, under names that say what they are; commands show them."""
FIGURES_IN_STATUS: Final = {
    *("CommittedResource", "Descheduling", "FlavorGroupCapacity", "Knowledge", "ProjectQuota", "Reservation"),
    *("VirtualMachinePort", "VirtualNetwork"),
}
"""Kinds of which that is true for the status."""


def _kind_section(kind: type[Resource], shared: Set[type]) -> str:
    info = kind.info
    names = ", ".join(f"`{name}`" for name in (info.plural, *info.short_names))
    summary = summarize(kind)
    form = "" if info.halves or "One document" in summary else "; one document"
    of_figures = kind.kind() in FIGURES
    fields = f"Fields: {_names_of(kind, shared)}.\n" if of_figures else _fields_text(kind, shared)
    return f"## {kind.kind()}\n\n{_linked(summary)}\n\n{names}{form}.\n\n{fields}"


def _names_of(struct: type[msgspec.Struct], shared: Set[type]) -> str:
    """The names of fields, with those of the objects that they are."""
    found = msgspec.inspect.type_info(struct)
    assert isinstance(found, msgspec.inspect.StructType)
    names = []
    for field in found.fields:
        if field.name in ENVELOPE and issubclass(struct, Resource):
            continue
        inner = _inner(field.type)
        own = isinstance(inner, msgspec.inspect.StructType) and inner.cls not in shared
        below = f" ({_names_of(inner.cls, shared)})" if own else ""
        names.append(f"`{field.encode_name}`{below}")
    return ", ".join(names)


def _fields_text(struct: type[msgspec.Struct], shared: Set[type]) -> str:
    return "".join(f"{line}\n" for line in _field_lines(struct, shared, 0))


def _field_lines(
    struct: type[msgspec.Struct], shared: Set[type], depth: int, *, observed: bool = False
) -> Iterator[str]:
    """A line for each field, below it those of the object that it is, unless that stands among the shared ones.

    Of what people only read (``observed``) no field is marked as required, and the fields of inner objects are names.
    """
    docs = field_docs(struct)
    found = msgspec.inspect.type_info(struct)
    assert isinstance(found, msgspec.inspect.StructType)
    schemas = struct_schema(struct)["properties"]
    base = struct.__mro__[1]
    inherited = {field.name for field in msgspec.structs.fields(base)} if base in shared else set()
    if inherited:
        yield f"{'    ' * depth}- the fields of [{base.__name__}](#{_object_anchor(base)}), and:"
    for field in found.fields:
        if field.name in inherited or (field.name in ENVELOPE and issubclass(struct, Resource)):
            continue
        inner = _inner(field.type)
        part = schemas[field.encode_name]
        kind = _type(part)
        if isinstance(inner, msgspec.inspect.StructType) and inner.cls in shared:
            link = f"[{inner.cls.__name__}](#{_object_anchor(inner.cls)})"
            kind = link if kind == "object" else f"{kind} of {link}"
        defaults = [] if observed else list(_default(field))
        notes = [] if kind in ("string", "object") or defaults or kind in PLAIN_TYPES else [kind]
        if field.required and kind != "object" and not observed:
            notes.append("required")
        notes += [f"default `{default}`" for default in defaults]
        about = f" ({', '.join(notes)})".replace(" (default ", " (") if notes else ""
        own = isinstance(inner, msgspec.inspect.StructType) and inner.cls not in shared
        by_name = (observed and depth) or (field.name == "status" and struct.__name__ in FIGURES_IN_STATUS)
        below = f" Fields: {_names_of(inner.cls, shared)}." if own and by_name else ""
        meaning = docs.get(field.name) or (
            summarize(inner.cls) if isinstance(inner, msgspec.inspect.StructType) else ""
        )
        words = [f"`{word}`" if word else "empty" for word in _enum_of(part)]
        explained = all(word in meaning for word in words if word != "empty")
        chosen = f" One of {', '.join(words)}." if words and not explained else ""
        meaning = NOTHING.sub("", meaning)
        if field.name in HALVES and issubclass(struct, Resource):
            meaning = meaning.partition(". ")[2]
        text = f"{_linked(_in_short(meaning))}{chosen}{below}".strip()
        yield f"{'    ' * depth}- `{field.encode_name}`{about}{f': {text}' if text else ''}"
        if own and not below:
            yield from _field_lines(inner.cls, shared, depth + 1, observed=observed or field.name == "status")


NOTHING: Final = re.compile(r"(; (empty|absent): (it has |it is in )?(none|never|not known|not measured)( is)?)+(?=\.)")
"""What the top of the page says once: an absent field is nothing."""
HALVES: Final = {"spec", "status"}
"""Fields of a kind whose meaning is that of the kind."""
PLAIN_TYPES: Final = {"boolean", "integer", "number", "time"}
"""Types that the meaning shows, and that programs read from the schema."""


def _in_short(meaning: str) -> str:
    """The first sentence, and those after it that say what a value means; the schema has all."""
    first, *others = re.split(r"(?<=[a-z)`]\.) (?=[A-Z`])", meaning)
    return " ".join([first, *(one for one in others if one.startswith(("`", "Empty:", "Absent:", "For `")))])


def _linked(text: str) -> str:
    """The text with links in place of names of pages, as a page of the reference has them."""
    return re.sub(r"docs/([\w/-]+)\.md(#[\w-]+)?", r"[\1](../\1.md\2)", text).replace("](../reference/", "](")


def _enum_of(schema: Schema) -> list[str]:
    """The words that a field may be, also of those in a list."""
    inner = schema.get("items", schema)
    return list(inner.get("enum", ()))


def _default(field: msgspec.inspect.Field) -> Iterator[str]:
    """The default of a field, if it is more than nothing."""
    if field.default and field.default is not msgspec.NODEFAULT:
        default = to_builtins(field.default)
        if not isinstance(default, dict | list | tuple):
            yield str(default).lower() if isinstance(default, bool) else str(default)


def _type(schema: Schema) -> str:
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if "items" in schema:
        return f"list of {_type(schema['items'])}".removesuffix(" of string").removesuffix(" of object")
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}".removesuffix(" of string").removesuffix(" of object")
    return "time" if schema.get("format") == "date-time" else str(schema["type"])


SEVERITIES: Final = {
    Severity.CRITICAL: "Act at once, at night as well: a VM is down or may be lost, or the next failure would "
    "remain unseen.",
    Severity.WARNING: "Act on the same day: nothing is lost yet, and the next failure could cost something.",
    Severity.INFO: "Act when there is time.",
}
FAULT_ROW: Final = re.compile(r"^- <a [^>]*></a>`([\w-]+)` \(\d+\): (.+); \*(.+)\*$", re.MULTILINE)


def faults_text() -> str:
    """All faults by severity with their weights, as Markdown; the page itself has what each means and what helps.

    A fault that the page lacks gets its text and remedy from the code, to be written out there.
    """
    page = (FOLDER / "faults.md").read_text(encoding="utf-8")
    explained = {code: (meaning, help_) for code, meaning, help_ in FAULT_ROW.findall(page)}
    parts = []
    for severity, urgency in SEVERITIES.items():
        codes = sorted((code for code in FaultCode if code.severity is severity), key=lambda code: (-code.delta, code))
        parts.append(f"\n## {severity.value.capitalize()}\n\n{urgency}\n")
        for code in codes:
            meaning, help_ = explained.get(code.value) or _from_code(FAULTS[code].text, FAULTS[code].remedy)
            parts.append(f'- <a id="{code}"></a>`{code}` ({code.delta}): {meaning}; *{help_}*')
    return "\n".join(parts) + "\n"


class ReasonFamily(NamedTuple):
    """Codes that are a section of the page of reasons."""

    anchor: str
    title: str
    about: str
    codes: Iterable[enum.StrEnum]
    printed: bool = False
    """Whether what reports a code always prints its sentence and remedy as well: then the page only lists codes."""


REASON_FAMILIES: Final = (
    ReasonFamily(
        "waiting",
        "Why a VM waits",
        "Recovery does not start the VM until the cause is gone. `outlive why VM` shows the code, the values and the "
        "remedy; `status.recovery` of the VM has them too.",
        HoldReason,
    ),
    ReasonFamily("vm", "Why a VM does not run", "`status.reason` of the VM.", VmReason),
    ReasonFamily(
        "uncovered",
        "Why a VM lacks slots",
        "`status.reason` of its `Coverage`, and `reason` of `outlive failover coverage`.",
        (*CoverageReason, *AllocationFault),
    ),
    ReasonFamily("places", "Why a host does not suit a VM", "The answer to moves, fail-backs and starts.", PlaceReason),
    ReasonFamily(
        "failback", "Why a VM does not go back to its preferred host", "Shown by `outlive why`.", FailBackReason
    ),
    ReasonFamily("migration", "Why a move was aborted", "`status.migration.reason` of the VM.", MigrationReason),
    ReasonFamily("rules", "Rules that contradict each other", "What the fault `rules-contradict` names.", RuleConflict),
    ReasonFamily(
        "network",
        "Why a port is not programmed, and what `outlive network check` finds",
        "The condition `Programmed` of a `VirtualMachinePort` or `VirtualNetwork`.",
        (code for code in NetworkReason if code is not NetworkReason.PROGRAMMED),
    ),
    ReasonFamily(
        "import",
        "What an import leaves out or assumes",
        "Codes of `notices` in the JSON of an import, each with sentence and remedy, which an import also prints.",
        ImportNotice,
        printed=True,
    ),
)


def reasons_text() -> str:
    """Every code that an operator meets, with its sentence and remedy, as Markdown."""
    parts = []
    for family in REASON_FAMILIES:
        parts.append(f'\n## <a id="{family.anchor}"></a>{family.title}\n\n{family.about}\n')
        if family.printed:
            parts.append(f"{', '.join(f'`{code}`' for code in family.codes)}.")
            continue
        above = ("", "")
        lines = []
        for code in family.codes:
            cells = (_short(TABLE[code].text), _short(TABLE[code].remedy))
            text, remedy = (
                AS_ABOVE if len(cell) >= REPEATED_LENGTH and cell == before else cell
                for cell, before in zip(cells, above, strict=True)
            )
            above = cells
            shown = [part for part in (text, f"*{remedy}*" if remedy else "") if part]
            lines.append(f'- <a id="{code}"></a>`{code}`: {"; ".join(shown) or NO_WORDS}')
        parts.append("\n".join(lines))
    return "\n".join(parts) + "\n"


def _short(text: str | Callable[..., str]) -> str:
    """A sentence of a reason for its row, without values that stand at its end."""
    shown = _escaped(" ".join(_with_placeholders(text).split()))
    return re.sub(r"(^…|: (…|HOSTS))?( \((…|HOSTS)\))?$", "", shown)


NO_WORDS: Final = "its message has the cause"
AS_ABOVE: Final = "as above"
REPEATED_LENGTH: Final = 40
"""A cell at least so long that repeats the cell above it is not written again."""


class _Placeholders(dict[str, Any]):
    """Values of a reason for its row in a table: the names of its fields, as far as they are names of something."""

    def __missing__(self, name: str) -> str:
        return PLACEHOLDERS.get(name, "…")

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


PLACEHOLDERS: Final = {
    "subject": "NAME",
    "host": "HOST",
    "vm": "VM",
    "name": "VM",
    "uid": "UID",
    "hosts": "HOSTS",
    "limit": "N",
}


def _from_code(text: str | Callable[..., str], remedy: str | Callable[..., str]) -> tuple[str, str]:
    """The sentence and remedy of a reason with placeholders for its values."""
    return _with_placeholders(text), _with_placeholders(remedy)


def _with_placeholders(text: str | Callable[..., str]) -> str:
    fields = _Placeholders()
    pattern = text(fields) if callable(text) else text
    return re.sub(r"\{(\w+)[^}]*\}", lambda field: fields[field[1]], pattern).replace("……", "…")


def ports_text() -> str:
    """The ports of the node daemon with the modules that promise and the suites that check, as Markdown."""
    rows = "".join(f"| {_port_row(port)} | `{suite}.py` |\n" for port, suite in PORTS.items())
    return f"\n| port | reaches | module | suite |\n|---|---|---|---|\n{rows}"


def _port_row(port: type[Any]) -> str:
    sentence = _markdown((inspect.getdoc(port) or "").partition("\n\n")[0]).partition(". ")[0].rstrip(".")
    return f"`{port.__name__}` | {sentence} | `{port.__module__.rpartition('.')[2]}.py`"


def _markdown(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip()).replace("``", "`")


OPTION_SECTIONS: Final[dict[FlagSection, str]] = {
    "reference": "Those of the piraeus HA controller",
    "hardened": "Further ones",
    "own": "Rules of our own",
    "client": "How the API server is reached",
}


def agent_options_text() -> str:
    """All options of the storage agent, as Markdown; those of every client of Kubernetes by name."""
    parts = []
    for section, title in OPTION_SECTIONS.items():
        parts.append(f"\n## {title}\n\n")
        flags = [flag for flag in FLAGS if flag.section == section]
        if section == "client":
            parts.append(f"As `kubectl` has them: {', '.join(f'`--{flag.name}`' for flag in flags)}.\n")
            continue
        for flag in flags:
            note = f"`{_shown(flag.default)}`" if _shown(flag.default) else flag.kind.name
            dash = "-" if len(flag.name) == 1 else "--"
            parts.append(f"- `{dash}{flag.name}` ({note}): {' '.join(flag.doc.split())}\n")
    return "".join(parts)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    "../design/drivers.md": ports_text,
    "resources.md": kinds_text,
    "scenarios.md": verbs_text,
    "scenarios-storage.md": lambda: verbs_text(STORAGE_VERBS),
    "faults.md": faults_text,
    "reasons.md": reasons_text,
    "metrics.md": metrics_text,
    "storage-agent.md": agent_options_text,
}
PAGES: Final = (*GENERATED, "configuration.md")

if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(current(page), encoding="utf-8")
