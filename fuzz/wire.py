"""What crosses between KVSan and its worker processes: JSON objects, one a line.

The worker runs foreign code, so nothing that comes from it is trusted to be more than data.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

from kvsan.fuzz.deaths import Death
from kvsan.fuzz.journal import Mark
from kvsan.fuzz.profiles import profile_named
from kvsan.fuzz.replay import Replayed
from kvsan.fuzz.search import SearchSettings, SearchSummary
from kvsan.harness import trace as traces
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, Violation

Message = dict[str, Any]


def trace_out(trace: Trace) -> str:
    """Give a trace as one string."""
    return traces.dumps(trace)


def trace_in(text: str) -> Trace:
    """Read a trace back."""
    return traces.loads(text, "trace from a worker").trace


def settings_out(settings: SearchSettings) -> Message:
    """Give settings; the configuration travels as a trace without operations."""
    message = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return message | {
        "configuration": trace_out(Trace(settings.configuration, ())),
        "profile": settings.profile.name,
        "drawn": sorted(settings.drawn),
        "without": sorted(settings.without),
        "seen": sorted(settings.seen),
    }


def settings_in(message: Message) -> SearchSettings:
    """Read settings back."""
    return SearchSettings(
        **message
        | {
            "configuration": trace_in(message["configuration"]).configuration,
            "profile": profile_named(message["profile"]),
            "drawn": frozenset(message["drawn"]),
            "without": frozenset(message["without"]),
            "seen": frozenset((invariant, cause) for invariant, cause in message["seen"]),
        }
    )


_ADDED = ("steps", "skipped", "runs", "outputs_compared", "tokens_read")


def summary_out(summary: SearchSummary) -> Message:
    """Give a summary without its findings, which travel alone."""
    return {name: getattr(summary, name) for name in (*_ADDED, "seconds", "interrupted")} | {
        "counts": dict(summary.counts),
        "calls": dict(summary.calls),
        "known": dict(summary.known),
        "impossible": sorted(summary.impossible),
    }


def summary_in(message: Message) -> SearchSummary:
    """Read a summary back."""
    return SearchSummary(
        **message
        | {
            "counts": Counter(message["counts"]),
            "calls": Counter(message["calls"]),
            "known": Counter(message["known"]),
            "impossible": frozenset(message["impossible"]),
        }
    )


def add_up(total: SearchSummary, part: SearchSummary) -> None:
    """Add what one worker did to what all did; time and findings are the caller's."""
    for name in _ADDED:
        setattr(total, name, getattr(total, name) + getattr(part, name))
    total.counts.update(part.counts)
    total.calls.update(part.calls)
    total.known.update(part.known)
    total.impossible |= part.impossible


def violation_out(violation: Violation) -> Message:
    """Give a violation."""
    return {
        "invariant": violation.invariant,
        "cause": violation.cause,
        "message": violation.message,
        "lineage": list(violation.lineage),
    }


def violation_in(message: Message) -> Violation:
    """Read a violation back."""
    return Violation(message["invariant"], message["cause"], message["message"], tuple(message["lineage"]))


def finding_out(finding: Finding) -> Message:
    """Give a finding."""
    return {
        "invariant": finding.invariant,
        "cause": finding.cause,
        "message": finding.message,
        "step": finding.step,
        "trace": trace_out(finding.trace),
        "lineage": list(finding.lineage),
        "replays": list(finding.replays),
    }


def finding_in(message: Message) -> Finding:
    """Read a finding back."""
    same, tried = message["replays"]
    return Finding(
        message["invariant"],
        message["cause"],
        message["message"],
        message["step"],
        trace_in(message["trace"]),
        tuple(message["lineage"]),
        (same, tried),
    )


def replayed_out(replayed: Replayed) -> Message:
    """Give what a replay showed."""
    return {
        "violation": None if replayed.violation is None else violation_out(replayed.violation),
        "step": replayed.step,
        "executed": replayed.executed,
        "counts": dict(replayed.counts),
        "hashes": replayed.hashes,
        "ran": replayed.ran,
    }


def replayed_in(message: Message) -> Replayed:
    """Read it back."""
    violation = message["violation"]
    return Replayed(
        None if violation is None else violation_in(violation),
        message["step"],
        message["executed"],
        Counter(message["counts"]),
        message["hashes"],
        message["ran"],
    )


def death_out(death: Death) -> Message:
    """Give how a process died."""
    return dataclasses.asdict(death)


def death_in(message: Message) -> Death:
    """Read it back."""
    return Death(**message | {"mark": Mark(*message["mark"])})


def line_out(message: Message) -> bytes:
    """Make one line of a message."""
    return json.dumps(message).encode("ascii") + b"\n"
