"""The HTTP server: resources in a part of the Kubernetes protocol, placement, metrics, and pages for people."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.api.admission import check_admission, check_deletion, check_network_in_use, definition_warnings
    from outlive.api.admission import deletion_conflict, fill_from_definition, without_finalizer
    from outlive.api.admission_review import SERVICE, AdmissionReviews, ReviewedWrite, webhook_manifest
    from outlive.api.app import AdmissionEndpoint, ApiDeps, create_app
    from outlive.api.audit import CHANGED, DRY_RUN, TARGET, RequestAudit, audit_entry, is_audited
    from outlive.api.auth import ANYBODY, CHECKED, HOSTS, IN_FILES, AccessLevel, Identity, KeystoneAccess, Role, Tokens
    from outlive.api.auth import allow, check_write, ensure_token, may_write, read_tokens, visible_part
    from outlive.api.authority import AuthorityRotation, refuse_rotation
    from outlive.api.config import AUTHORITY_FILE, PIPELINED_REQUESTS, SERVER_FILE, STALLED_SECONDS, TOKEN_FILE
    from outlive.api.config import UNKNOWN_WRITE_SECONDS, WRITE_SECONDS, ApiSettings, HostMetricsSettings, ServerFile
    from outlive.api.config import check_scheduler_auth, parse_listen
    from outlive.api.connections import Connections, client_group
    from outlive.api.errors import STATUSES, Expired, TooLarge, TooManyRequests, Unauthenticated, plain_problem
    from outlive.api.errors import status_document, status_of
    from outlive.api.host_metrics import serve_metrics
    from outlive.api.kubernetes import column_definitions, format_age, table_row
    from outlive.api.levels import QUEUE_SECONDS, Bodies, Levels, PriorityLevel, SeatLimits, Seats, Turns, level_of
    from outlive.api.lifetimes import LOOK_S, ExpiryGauges, StateToken, TokenService, TokenUpkeep, certificate_end
    from outlive.api.lifetimes import file_faults, is_renewal_due
    from outlive.api.middleware import IDENTITY
    from outlive.api.neighbours import DiskOwners, Neighbours
    from outlive.api.patches import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, json_patch, merge_patch
    from outlive.api.permission import permit_write, revoke_tokens
    from outlive.api.pod_review import PodReviews, pods_webhook_manifest
    from outlive.api.quotas import COUNTED_AGAIN_S, HostQuotas
    from outlive.api.requests import RequestTarget, wanted_table
    from outlive.api.resources import merge_half
    from outlive.api.server import OwnTls, Serving, read_server_file, serve_app, tls_context
    from outlive.api.tls import AUTHORITY_KEY_FILE, CERTIFICATE_FILE, NEXT_FILE, NEXT_KEY_FILE, ServerTls, names_of
    from outlive.api.tokens import HostJoin, Joining, StoredTokens, digest_of
    from outlive.api.watch import WatchRequest, render_events
    from outlive.api.watch_cache import WatchCache, WatchCaches, WatchEvent, coalesce
else:
    __getattr__ = load_exports(__name__)
