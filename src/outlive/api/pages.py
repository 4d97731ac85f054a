"""The pages for people: whole documents without any address outside this server, because many have no internet."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from typing import Final

from starlette.responses import HTMLResponse, Response

STATUS_PAGE: Final = "status.html"
SCHEMA_PAGE: Final = "schema.html"

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@lru_cache(maxsize=8)
def page(name: str) -> Response:
    """A page, with a policy under which a browser runs only what the page itself contains."""
    text = (files("outlive.api") / "static" / name).read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return HTMLResponse(text, headers=headers)
