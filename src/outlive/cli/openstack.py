"""The session with an OpenStack that the settings name, with the secret that they name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from outlive.drivers.openstack import OpenStackSession
    from outlive.inventory import OpenStackSettings
    from outlive.store import Store


async def open_session(
    store: Store, directory: Path, settings: OpenStackSettings, closing: AsyncExitStack
) -> OpenStackSession:
    """One session for all that asks this OpenStack; nothing is sent yet. ``directory`` holds the cluster's key."""
    from outlive.drivers import KEY_FILE, Secrets
    from outlive.drivers.openstack import OpenStackSession

    credential = None
    if settings.secret:
        credential = partial(Secrets(store, directory / KEY_FILE).read_credential, settings.secret)
    session = OpenStackSession(settings, credential)
    closing.push_async_callback(session.close)
    return session
