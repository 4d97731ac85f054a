"""``outlive config``: the settings in force, and the reference of all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from outlive.cli.access import Access
from outlive.cli.commands import command, group
from outlive.cli.output import Report, write

app = group("Show the settings in force, or the reference of all settings.")

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of outlive.yaml.")]
HIDDEN = "(hidden)"
_IN_QUERY = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


@command(app, "show")
def show(access: Access, output: Report, config: Config = None) -> None:
    """The settings that outlive up would start with here, with defaults filled in."""
    import msgspec

    from outlive.cli.output import table
    from outlive.cli.settings import config_file, load
    from outlive.roles.settings import role_settings
    from outlive.runtime.units import encode_unit

    file = config_file(config, access.directory)
    sections = load(file)
    settings = role_settings(sections)
    shown: dict[str, Any] = {**sections, "failover": settings.failover, "scheduler": settings.scheduler}
    document = {name: msgspec.to_builtins(section, enc_hook=encode_unit) for name, section in shown.items()}
    _hide_secrets(document["failoverUpkeep"])
    rows = [(f"{name}.{key}", _text(value)) for name, section in document.items() for key, value in section.items()]
    output.show(
        document, lambda: [f"from {file}" if file else "defaults and environment", table(("key", "value"), rows)]
    )


@command(app, "reference")
def reference() -> None:
    """The reference of all settings, as Markdown."""
    from outlive.cli.settings import all_sections
    from outlive.runtime.config import reference_page

    write(reference_page(all_sections()))


def _hide_secrets(upkeep: dict[str, Any]) -> None:
    """Take out what ``SECRET_KEYS`` hold: passwords in addresses, and tokens."""
    upkeep["databaseUrl"] = _without_password(upkeep["databaseUrl"])
    upkeep["dataSources"] = {name: _without_password(address) for name, address in upkeep["dataSources"].items()}
    upkeep["schedulerToken"] = HIDDEN if upkeep["schedulerToken"] else ""


def _without_password(address: str) -> str:
    scheme, separator, rest = _IN_QUERY.sub(rf"\1{HIDDEN}", address).partition("://")
    if "@" not in rest:
        return f"{scheme}{separator}{rest}"
    user, _, host = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{':' + HIDDEN if ':' in user else ''}@{host}"


def _text(value: Any) -> str:
    if value == "":
        return ""
    if isinstance(value, dict | list | tuple):
        import msgspec

        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
