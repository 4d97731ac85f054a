"""The HTTP server: resources in a part of the Kubernetes protocol, placement, metrics, and pages for people."""

from outlive.api.app import ApiDeps, Query, create_app
from outlive.api.auth import Identity, Role, Tokens, ensure_token, read_tokens
from outlive.api.config import ApiSettings, SchedulerAuth, parse_listen
from outlive.api.server import ServerFile, Serving, read_server_file, serve, serving

__all__ = [
    "ApiDeps",
    "ApiSettings",
    "Identity",
    "Query",
    "Role",
    "SchedulerAuth",
    "ServerFile",
    "Serving",
    "Tokens",
    "create_app",
    "ensure_token",
    "parse_listen",
    "read_server_file",
    "read_tokens",
    "serve",
    "serving",
]
