"""A few HTTP requests to one controller, each sent once: a program that imports nothing of ours.

In the file that is named: JSON ``{"url", "username", "password", "limitS", "insecure", "fingerprint",
"certificateAuthority", "reset"}``. ``reset`` is the reset type that is sent, such as ``ForceOff``; empty: it is only
read. It prints JSON: ``{"system": {…}}`` or ``{"sent": true, "status": 204, "text": …}``, or ``{"error": WORD,
"text": …, "sent": …}``; ``sent`` says whether the order had been sent by then.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import ssl
import sys
from typing import Any
from urllib.parse import urlsplit

ANSWER_BYTES = 2**20
"""The largest answer that is read."""
SYSTEMS = "/redfish/v1/Systems"


class Failed(Exception):
    """One word for the driver, and what was said."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word, self.text = word, text


class Controller:
    """One connection."""

    def __init__(self, given: dict[str, Any]) -> None:
        url: str = given["url"]
        parts = urlsplit(url)
        self._path: str = parts.path.rstrip("/")
        self._given = given
        self.sent = False
        """Whether an order was sent, or may have been."""
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, port, timeout=given["limitS"], context=_context(given))
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=given["limitS"])  # type: ignore[assignment]
        token = base64.b64encode(f"{given['username']}:{given['password']}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}", "Accept": "application/json", "OData-Version": "4.0"}

    def connect(self) -> None:
        """Connect, and see that it is the one that is pinned, before it hears a password."""
        self._connection.connect()
        wanted = self._given["fingerprint"].removeprefix("sha256:").replace(":", "").lower()
        if wanted:
            raw = (
                self._connection.sock.getpeercert(binary_form=True)
                if isinstance(self._connection.sock, ssl.SSLSocket)
                else b""
            )
            said = hashlib.sha256(raw or b"").hexdigest()
            if said != wanted:
                raise Failed("fingerprint", f"sha256:{said}")

    def system(self) -> str:
        """The path of the system; asked for where the address names none."""
        if self._path not in ("", "/redfish", "/redfish/v1"):
            return self._path
        members = self.get(SYSTEMS).get("Members")
        paths = [one.get("@odata.id") for one in members if isinstance(one, dict)] if isinstance(members, list) else []
        if len(paths) != 1 or not isinstance(paths[0], str):
            raise Failed("systems", ", ".join(map(str, paths)))
        return paths[0].rstrip("/")

    def get(self, path: str) -> dict[str, Any]:
        """One document."""
        status, text = self._request("GET", path, None)
        if status != 200:
            raise Failed(f"status-{status}", text)
        try:
            document = json.loads(text)
        except ValueError:
            raise Failed("answer", text) from None
        if not isinstance(document, dict):
            raise Failed("answer", text)
        return document

    def reset(self, path: str, kind: str) -> tuple[int, str]:
        """The order."""
        body = json.dumps({"ResetType": kind})
        self.sent = True
        return self._request("POST", f"{path}/Actions/ComputerSystem.Reset", body)

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        if self._connection.sock is None:  # it closed after the answer before
            self.connect()
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        raw = answer.read(ANSWER_BYTES + 1)
        if len(raw) > ANSWER_BYTES:
            raise Failed("answer", f"more than {ANSWER_BYTES} bytes")
        return answer.status, raw.decode(errors="replace")


def _context(given: dict[str, Any]) -> ssl.SSLContext:
    if given["fingerprint"] or given["insecure"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # what is pinned is compared before anything is sent
        return context
    return ssl.create_default_context(cadata=given["certificateAuthority"] or None)


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """What is printed."""
    controller: Controller | None = None
    try:
        controller = Controller(given)
        controller.connect()
        path = controller.system()
        if not given["reset"]:
            return {"system": controller.get(path)}
        status, text = controller.reset(path, given["reset"])
        return {"sent": True, "status": status, "text": text}
    except Failed as error:
        word, text = error.word, error.text
    except ssl.SSLCertVerificationError as error:
        word, text = "certificate", error.verify_message
    except ssl.SSLError as error:
        word, text = "tls", str(error.reason or error)
    except socket.gaierror as error:
        word, text = "name", str(error.strerror)
    except TimeoutError:
        word, text = "silent", ""
    except (OSError, http.client.HTTPException) as error:
        word, text = "network", str(getattr(error, "strerror", None) or error or type(error).__name__)
    except ValueError as error:
        word, text = "settings", str(error)
    return {"error": word, "text": text, "sent": controller is not None and controller.sent}


def main() -> None:
    """See the module."""
    with open(sys.argv[1], encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would double what this imports
        given = json.load(stream)
    json.dump(answer(given), sys.stdout)


if __name__ == "__main__":
    main()
