"""The Redfish emulator of sushy-tools with one system whose power is a control script: DIRECTORY HOST PORT."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
import sys
from pathlib import Path
from typing import Any

import bcrypt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sushy_tools import error
from sushy_tools.emulator.main import app
from sushy_tools.emulator.resources.systems import fakedriver

from lab.bmc import PASSWORD, USERNAME

ID = "1"


class System(fakedriver.FakeDriver):  # type: ignore[misc]
    """See ``lab.bmc.Redfish``; a file ``state`` says what the system is on the way to, such as ``PoweringOff``."""

    directory = Path()

    @classmethod
    def initialize(cls, config: dict[str, Any], logger: Any) -> type[System]:
        """With the one system."""
        config["SUSHY_EMULATOR_FAKE_SYSTEMS"] = [{"uuid": ID, "name": "system", "power_state": "On", "nics": []}]
        super().initialize(config, logger)
        return cls

    def uuid(self, identity: str) -> str:
        """What it says that its system is."""
        self._get(identity)
        return (self.directory / "uuid").read_text(encoding="utf-8")

    def get_power_state(self, identity: str) -> str:
        """As the control script says."""
        said = self._control("get", "power")
        on_the_way = self.directory / "state"
        if on_the_way.exists():
            return on_the_way.read_text(encoding="utf-8").strip()
        return "On" if "power:1" in said else "Off"

    def set_power_state(self, identity: str, state: str) -> None:
        """By the control script, at once."""
        match state:
            case "On" | "ForceOn":
                self._control("set", "power", "1")
            case "ForceOff":
                self._control("set", "power", "0")
            case "ForceRestart":
                self._control("set", "reset", "1")
            case _:
                raise error.NotSupportedError(f"Power state {state} is not supported")

    def _control(self, *words: str) -> str:
        done = subprocess.run([self.directory / "control", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise error.FishyError(f"{words} failed: {done.stderr}")
        return done.stdout


def self_signed(directory: Path, host: str) -> tuple[Path, Path]:
    """Certificate and key of the service, made at its first start, as real controllers have them."""
    certificate, key_file = directory / "certificate.pem", directory / "key.pem"
    if certificate.exists():
        return certificate, key_file
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controller")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=plain)
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return certificate, key_file


def main() -> None:
    """Serve until killed."""
    directory, host, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    System.directory = directory
    fakedriver.FakeDriver = System
    users = directory / "users"
    users.write_bytes(USERNAME.encode() + b":" + bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)) + b"\n")
    certificate, key = self_signed(directory, host)
    app.configure(
        extra_config={
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_STATE_DIR": str(directory),
            "SUSHY_EMULATOR_AUTH_FILE": str(users),
        }
    )
    app.run(host=host, port=port, ssl_context=(str(certificate), str(key)), threaded=True)


if __name__ == "__main__":
    main()
