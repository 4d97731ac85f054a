"""What every package uses: clocks, random numbers, ids, limits, errors, logging, quantities, durations, name patterns.

Nothing here knows of hosts, VMs or slots.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.base.clock import SHORTEST_SLEEP_S, Clock, FasterOf, Instant, LoopClock, SlowerOf, SystemClock
    from outlive.base.clock import as_datetime, as_instant, deadline, set_within
    from outlive.base.errors import AlreadyExists, BadInput, Conflict, ExitCode, Forbidden, IllegalTransition, InUse
    from outlive.base.errors import Invalid, LimitExceeded, NotFound, NotUnderstood, OutliveError, Refused, Throttled
    from outlive.base.errors import Transitions, Unavailable, Unknown, Usage, follow, leaf_errors
    from outlive.base.files import check_private, read_private, rename_whole, write_whole
    from outlive.base.ids import Ids, Random, SeededIds, SystemIds, stable_hash, system_random
    from outlive.base.limits import OBJECT_BYTES, OBJECT_VALUES, REQUEST_VALUES
    from outlive.base.logging import GAP_S, REPEAT_S, Defect, Repeats, configure_logging, copy_log, gather_defects
    from outlive.base.logging import get_logger, global_request_id, new_global_request_id, reopen_log, request_context
    from outlive.base.logging import request_id, silence_logging
    from outlive.base.processes import BOOT_ID, YOUNG_OBJECTS, collector_paused, freeze_objects, limit_collections
    from outlive.base.processes import process_identity, split_batches, start_time
    from outlive.base.quantity import QUANTITY_LIMIT, duration_of_flag, format_bytes, format_duration, format_milli
    from outlive.base.quantity import parse_bytes, parse_duration, parse_milli, parse_quantity, round_away_from_zero
    from outlive.base.text import PATTERN_LENGTH_LIMIT, Pattern, compile_pattern, count_of, escape_controls
    from outlive.base.text import format_until, join_parts, matches, natural_key, noun_for, shown_age, shown_bytes
    from outlive.base.text import shown_time
else:
    __getattr__ = load_exports(__name__)
