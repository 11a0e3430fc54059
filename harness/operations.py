"""Operations: what a trace is made of.

Operations are data. Each names requests and launches by *symbolic ids* fixed at creation (``r1``, ``b7``), never by index,
so that every sub-list of a trace is a trace: an operation on an id that is not live, or that the target's contract forbids
at that moment, is skipped and counted.

The life of a request's tokens, which the counts of a request follow::

    Submit      Schedule        Launch          (device executes)     Retire
      |            |               |                   |                 |
    prompt --> blocks for n --> table frozen --> KV written, read --> result reaches the manager
               `scheduled`                        `executed`            `retired`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsan.harness.tiers import HOST_TIER

Segment = tuple[int, int] | tuple[Literal["out"], str, int]
"""A piece of a prompt: ``(family, length)``, or ``("out", r, length)``: the first tokens that request ``r`` generated."""

FAMILY_STRIDE = 1 << 16
"""Distance between the token ids of two families; no segment is longer."""


def token_id(family: int, index: int) -> int:
    """Give the token at ``index`` of a family; generated tokens use their position in the request as index."""
    return family * FAMILY_STRIDE + index


class Adapter(NamedTuple):
    """A LoRA adapter. Two adapters are the same only if name and id are."""

    name: str
    id: int


class Media(NamedTuple):
    """A multimodal item that stands at ``[offset, offset + length)`` of the prompt, in tokens."""

    id: str
    offset: int
    length: int


class Outcome(NamedTuple):
    """What a launch did for one request: drafts accepted, and the family that its new token was sampled from."""

    r: str
    accepted: int
    family: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives. Everything that must be in its prefix-cache key is here."""

    r: str
    prompt: tuple[Segment, ...]
    salt: str = ""
    adapter: Adapter | None = None
    media: tuple[Media, ...] = ()
    engine_id: str = ""
    at: str = "p0"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Prefix look-up alone; ``Schedule`` looks up itself if none is pending."""

    r: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Blocks for ``n`` more tokens, plus ``lookahead`` slots behind them. The target may refuse.

    Of the ``n``, ``external`` come from a connector: the harness writes them before the launch, or at ``Landed`` if
    ``delayed`` (then nothing else is computed until they landed). Tokens past the known ones are drafts.
    """

    r: str
    n: int
    lookahead: int = 0
    external: int = 0
    delayed: bool = False


@dataclass(frozen=True, slots=True)
class Landed:
    """The delayed external tokens of a request are there, and the manager is told."""

    r: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The scheduled batch, of pool ``at``, is dropped before its launch."""

    at: str = "p0"


@dataclass(frozen=True, slots=True)
class Launch:
    """The scheduled batch goes to the compute stream of pool ``at``; block tables are snapshotted now."""

    b: str
    at: str = "p0"


@dataclass(frozen=True, slots=True)
class Capture:
    """A graph is captured, for batches of up to ``rows`` rows of one token."""

    g: str
    rows: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The scheduled batch goes to the compute stream through graph ``g``, if it fits; what it reads is in static buffers."""

    b: str
    g: str


@dataclass(frozen=True, slots=True)
class Retire:
    """The result of launch ``b`` reaches the manager. A request without an outcome accepts all drafts, family 0."""

    b: str
    outcome: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class Advance:
    """The simulated device executes the next work item of one stream, such as ``compute``, ``p1.copy`` or ``net``."""

    stream: str


@dataclass(frozen=True, slots=True)
class Offload:
    """Transfer ``t`` begins: what a request has computed goes down to a tier, from the device or from the host."""

    t: str
    r: str
    tier: str = HOST_TIER


@dataclass(frozen=True, slots=True)
class Load:
    """Transfer ``t`` begins: a new request's prefix comes up from the tiers; it waits until the transfer is complete."""

    t: str
    r: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The manager hears how transfer ``t`` ended; once it was told, it may be told again."""

    t: str


@dataclass(frozen=True, slots=True)
class Fail:
    """What transfer ``t`` has not moved yet is never moved."""

    t: str


@dataclass(frozen=True, slots=True)
class Tear:
    """Half of the next piece of transfer ``t`` is moved, and nothing behind it."""

    t: str


@dataclass(frozen=True, slots=True)
class Spoil:
    """Bytes that a tier has stored outside of the process are damaged: those of its key number ``index``, in order."""

    tier: str
    index: int
    how: Literal["flip", "truncate"] = "flip"


@dataclass(frozen=True, slots=True)
class Restart:
    """A tier's service dies and comes back with what its medium kept; transfers that store into it fail, perhaps torn."""

    tier: str


@dataclass(frozen=True, slots=True)
class Send:
    """What a request has retired is offered as transfer ``t``: its blocks are held until ``Release`` or ``Expire``."""

    t: str
    r: str


@dataclass(frozen=True, slots=True)
class Receive:
    """A new request of the other pool asks to pull what transfer ``t`` offers; it waits until ``Complete``."""

    t: str
    r: str


@dataclass(frozen=True, slots=True)
class Release:
    """The producer hears that nobody will read transfer ``t`` any more; it may hear so again, or of one it does not know."""

    t: str


@dataclass(frozen=True, slots=True)
class Expire:
    """The producer has waited too long for somebody to ask for transfer ``t``, and gives up, unless it is being read."""

    t: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Parallel sampling or beam search: the child shares every block of ``r``, copy on write."""

    r: str
    child: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is complete; its blocks go back."""

    r: str


@dataclass(frozen=True, slots=True)
class Abort:
    """The client went away; the request may be in any state."""

    r: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """The request gives its blocks back and will be recomputed."""

    r: str


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """The operator empties the prefix cache of pool ``at``."""

    at: str = "p0"


Operation = (
    Submit
    | Lookup
    | Schedule
    | Landed
    | Cancel
    | Launch
    | Capture
    | Replay
    | Retire
    | Advance
    | Offload
    | Load
    | Complete
    | Fail
    | Tear
    | Spoil
    | Restart
    | Send
    | Receive
    | Release
    | Expire
    | Fork
    | Finish
    | Abort
    | Preempt
    | ResetPrefixCache
)

OPERATIONS: tuple[type[Operation], ...] = (
    Submit,
    Lookup,
    Schedule,
    Landed,
    Cancel,
    Launch,
    Capture,
    Replay,
    Retire,
    Advance,
    Offload,
    Load,
    Complete,
    Fail,
    Tear,
    Spoil,
    Restart,
    Send,
    Receive,
    Release,
    Expire,
    Fork,
    Finish,
    Abort,
    Preempt,
    ResetPrefixCache,
)
"""Every operation class, in the order in which documentation and summaries list them."""

TRANSFERS: frozenset[type[Operation]] = frozenset({Offload, Load, Complete, Fail, Tear, Spoil, Restart})
"""What needs a target with tiers."""

GRAPHS: frozenset[type[Operation]] = frozenset({Capture, Replay})
"""What needs a target that replays captured graphs."""

EXCHANGES: frozenset[type[Operation]] = frozenset({Send, Receive, Release, Expire})
"""What needs a pair of targets."""
