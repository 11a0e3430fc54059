"""Known findings: what a search must get past, and what must keep failing.

A finding is known if a trace on file has the same target, a release range that holds this release, the same invariant and
cause, and needs no kind of operation that the finding does without. One bug often has two or three minimal traces that
differ in the order of harmless steps, and shrinking may stop at a longer one, so the kinds are compared as sets, without
Launch, Retire, Advance and Lookup. What this cannot tell apart: two bugs with one invariant and one cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kvsan.harness import trace as traces
from kvsan.harness.configuration import HOST
from kvsan.harness.operations import Operation, Schedule, Submit
from kvsan.harness.trace import Trace, TraceFile
from kvsan.harness.verdict import Finding, UsageError

_INCIDENTAL = frozenset({"Launch", "Retire", "Advance", "Lookup"})
_STEER = 0.9


def shape(operations: Iterable[Operation]) -> frozenset[str]:
    """Kinds of operation that make a trace what it is."""
    return frozenset(type(operation).__name__ for operation in operations) - _INCIDENTAL


def features_of(trace: Trace) -> frozenset[str]:
    """Generator features without which a trace could not have been drawn."""
    found: set[str] = set()
    names: set[str] = set()
    adapters: set[tuple[str, int]] = set()
    to_compute: dict[str, int] = {}
    for operation in trace.operations:
        if isinstance(operation, Submit):
            to_compute[operation.r] = sum(segment[-1] for segment in operation.prompt)
            if operation.salt:
                found.add("salts")
                names.add(operation.salt)
            if operation.adapter:
                found.add("adapters")
                adapters.add(tuple(operation.adapter))  # type: ignore[arg-type]
            if operation.media:
                found.add("media")
        elif isinstance(operation, Schedule):
            if operation.external:
                found.add("delayed" if operation.delayed else "external")
            left = to_compute.get(operation.r, 1)
            if operation.n > max(left, 1):
                found.add("drafts")
            to_compute[operation.r] = left - operation.n
    if any(a[0] == b[0] and a[1] != b[1] for a in adapters for b in adapters):
        found.add("adapter ids")
    if names & {name for name, _ in adapters}:
        found.add("one name for all")
    return frozenset(found)


@dataclass(slots=True)
class Known:
    """One trace on file. ``met`` counts how often the search came across it; after ``confirm`` times it is not shrunk."""

    name: str
    kind: tuple[str, str]
    shape: frozenset[str]
    features: frozenset[str]
    file: TraceFile
    met: int = 0
    confirm: int = 1


class KnownFindings:
    """The known findings of one target at one release."""

    def __init__(self, known: Sequence[Known] = ()) -> None:
        self.known = list(known)

    def of_kind(self, kind: tuple[str, str]) -> Known | None:
        """Return a known finding of this invariant and cause."""
        return next((one for one in self.known if one.kind == kind), None)

    def match(self, finding: Finding) -> Known | None:
        """Return the known finding that this one is."""
        wanted = shape(finding.trace.operations)
        return next((one for one in self.known if one.kind == finding.kind and one.shape <= wanted), None)

    def features(self) -> frozenset[str]:
        """Every feature that some run may leave out because of what is known."""
        return frozenset(feature for one in self.known for feature in one.features)

    def avoid(self, random: Random) -> frozenset[str]:
        """Features to leave out of a run so that it gets past what is known: one of each known finding's, mostly."""
        avoided: set[str] = set()
        for one in self.known:
            if one.features and not one.features & avoided and random.random() < _STEER:
                avoided.add(random.choice(sorted(one.features)))
        return frozenset(avoided)


def load_known(folder: Path, target: str, kernels: str = HOST) -> KnownFindings:
    """Read the traces of a folder, and of the folders in it, that concern a target or these kernels.

    UsageError if it is no folder.
    """
    if not folder.is_dir():
        raise UsageError(f"--known {folder}: expected a folder of trace files")
    known = []
    for path in sorted(folder.rglob("*.json")):
        file = traces.read(path)
        if file.expect is not None and concerns(file, target, kernels):
            trace = file.trace
            known.append(
                Known(
                    str(path.relative_to(folder)),
                    (file.expect.invariant, file.expect.cause),
                    shape(trace.operations),
                    features_of(trace),
                    file,
                )
            )
    return KnownFindings(known)


def concerns(file: TraceFile, target: str, kernels: str = HOST) -> bool:
    """Whether a trace on file is about this target at this release, on the host's kernels or on these."""
    if file.trace.configuration.kernels not in (HOST, kernels):
        return False
    name, _, release = target.partition("@")
    filed, _, filed_release = file.trace.configuration.target.partition("@")
    if name != filed:
        return False
    if file.expect is None or not file.expect.releases:
        return release == filed_release
    return in_range(release, file.expect.releases)


def in_range(release: str, releases: str) -> bool:
    """Whether a release lies in a range; UsageError if one of them cannot be read."""
    try:
        return SpecifierSet(releases).contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion) as error:
        raise UsageError(f"release {release!r} or range {releases!r}: {error}") from error
