"""Declaring a host dead: who looks silent, who may be condemned, and what proves that an epoch is over."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.fencing.attestation import ATTEST, AttestView, is_missing, lost_memberships
    from outlive.node.fencing.context import FencerContext
    from outlive.node.fencing.faults import HOLD_S, Holds, fencing_faults
    from outlive.node.fencing.fence import BACKOFF_S, Opening
    from outlive.node.fencing.fencer import SPARED_KEPT, Fencer
    from outlive.node.fencing.identity import SystemIndex, board_problem, identity_problem, is_unset, system_key
    from outlive.node.fencing.isolation import Isolation, split_by_storage
    from outlive.node.fencing.policy import DAEMON_CONDITION, PROFILES, VALIDATE_FENCING, VALIDATE_PROFILE
    from outlive.node.fencing.policy import WRITE_LIMIT_S, Departure, DesiredState, FencingConfigInput
    from outlive.node.fencing.policy import FencingConfigResult, HostSettings, Profile, ProfileError, ProfileInput
    from outlive.node.fencing.policy import ProfileName, absence_limit_s, default_profile, departure_of, fence_order
    from outlive.node.fencing.policy import profile_of, validate_fencing
    from outlive.node.fencing.power import answer_limit_s, longer_s, power_forecast
    from outlive.node.fencing.proofs import CLOCK_ERROR, GUARD_SLACK_S, ISOLATE, LIFT_CUT, PROVE_CUT, PROVE_OPERATOR
    from outlive.node.fencing.proofs import PROVE_POWER, PROVE_WATCHDOG, READINGS_APART_S, CutView, FencedView, LiftView
    from outlive.node.fencing.proofs import OperatorView, PowerView, TimedReading, WatchdogView, find_last_off_times
    from outlive.node.fencing.proofs import safe_after_s
    from outlive.node.fencing.rehearsals import AT_ONCE, CHECKED_EVERY_S, EVERY_S, IN_DATE_S, OK, STRICT_EVERY_S
    from outlive.node.fencing.rules import RateRule
    from outlive.node.fencing.states import CONDEMN, TRANSITIONS, AttemptView, CondemnView, FenceEvent, TakeOverView
    from outlive.node.fencing.states import allows, phase_of
    from outlive.node.fencing.watcher import HAIR_S, Watcher
else:
    __getattr__ = load_exports(__name__)
