"""The target: a KV-cache manager as KVSan sees it.

A target makes the decisions (which block, whose reference, which hash); the harness owns the device, the bytes and the
expectation. About a dozen methods and a ``Traits`` are enough; what a target cannot do it leaves out of its traits, and
those operations are skipped.

Requests are named by their *engine id* here, which a client may use again after the first request has ended. All counts
are tokens unless a name says otherwise. A *unit* is a block; it is one page of one cache group's layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsan.harness.operations import OPERATIONS, Adapter, Media, Operation
from kvsan.harness.tiers import DEVICE_TIER, Get, Put, Store, TierView

IntArray = npt.NDArray[np.int64]

COMPUTE_STREAM, COPY_STREAM = "compute", "copy"
"""Names of the two streams that every device has."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a manager learns when a request arrives. ``tokens`` is the prompt; the target must copy it to change it."""

    name: str
    tokens: Sequence[int]
    salt: str = ""
    adapter: Adapter | None = None
    media: tuple[Media, ...] = ()


class Address(NamedTuple):
    """Where one token's bytes live. Tiers, shards and pools add values here and change nothing else."""

    unit: int
    offset: int = 0
    group: int = 0
    pool: str = "p0"
    tier: str = DEVICE_TIER
    rank: int = 0

    def __str__(self) -> str:
        """Name what is not the plain case, and always unit, offset and group."""
        plain = Address(self.unit)
        rest = [f"{name} {getattr(self, name)}" for name in ("pool", "tier", "rank")
                if getattr(self, name) != getattr(plain, name)]  # fmt: skip
        return ", ".join([f"unit {self.unit}, offset {self.offset}, group {self.group}", *rest])


class Copy(NamedTuple):
    """Effect: slots ``[start, stop)`` of unit ``source`` go to the same slots of unit ``destination``.

    It waits for everything that the streams ``after`` have been given so far.
    """

    source: int
    destination: int
    start: int
    stop: int
    stream: str = COMPUTE_STREAM
    after: tuple[str, ...] = ()


class Zero(NamedTuple):
    """Effect: slots ``[start, stop)`` of a unit are zeroed."""

    unit: int
    start: int
    stop: int
    stream: str = COMPUTE_STREAM
    after: tuple[str, ...] = ()


class Fill(NamedTuple):
    """Effect: ``values``, int64 ``[rows, columns]``, go to a static buffer of captured graphs, from row ``row`` on.

    They are read when the device executes it: an array that is changed before is staging memory that was reused too early.
    """

    buffer: str
    row: int
    values: IntArray
    stream: str = COMPUTE_STREAM
    after: tuple[str, ...] = ()


Effect = Copy | Zero | Put | Get | Fill
Effects = Sequence[Effect]


class Admission(NamedTuple):
    """``Schedule`` was granted; ``hit`` prefix tokens were reused (0 unless this was the request's first chunk)."""

    hit: int
    effects: Effects = ()


class Chunk(NamedTuple):
    """A part of a request's prefix in the tiers: ``key`` stands for the blocks from ``block`` on, one for each host unit.

    ``tier`` is where it comes from, in a load, or goes to.
    """

    key: str
    block: int
    units: tuple[int, ...]
    tier: str


class Offloading(NamedTuple):
    """``Offload`` was granted: these chunks go down."""

    chunks: Sequence[Chunk]
    effects: Effects


class Loading(NamedTuple):
    """``Load`` was granted: ``tokens`` behind the ``hit`` tokens that the device has come up with these chunks.

    The blocks that they go to are in the request's table; nobody may count on them before the transfer is complete. Until
    then the whole table stays held, also if the request leaves.
    """

    hit: int
    tokens: int
    chunks: Sequence[Chunk]
    effects: Effects


class Result(NamedTuple):
    """A retired row: ``computed`` tokens of the request are valid now, in all; ``rejected`` drafts of the row are not.

    ``sampled`` are the tokens that extend the request: accepted drafts and the one sampled behind them.
    """

    name: str
    computed: int
    rejected: int
    sampled: Sequence[int]


class Delta(NamedTuple):
    """What a target says has changed since it was last asked: requests whose tables changed, units touched.

    A target with ``free_order="lru"`` names requests in the order in which their units were freed.
    """

    requests: Collection[str]
    units: Collection[int]


class View(Protocol):
    """A live, read-only view of everything the manager holds; nothing is copied until asked for."""

    def tables(self, name: str) -> Sequence[Sequence[int]]:
        """Block tables of one live request, one a cache group; entries are units."""

    def requests(self) -> Collection[str]:
        """Names of the requests that hold a table."""

    def ref_count(self, unit: int) -> int:
        """References that the target counts on one unit."""

    def ref_counts(self) -> IntArray:
        """All reference counts, ``[num_units]``."""

    def key(self, unit: int) -> Hashable | None:
        """Return the key under which a unit is published, or None."""

    def published(self, key: Hashable) -> Collection[int]:
        """Units that the hash map holds under one key."""

    def keys(self) -> Collection[Hashable]:
        """Return the keys of the hash map."""

    def is_free(self, unit: int) -> bool:
        """Whether the unit is in the free queue."""

    def num_free(self) -> int:
        """Length of the free queue, as the target counts it."""

    def free_queue(self) -> Sequence[int]:
        """Walk the free queue in eviction order, first to be evicted first."""

    def free_front(self) -> int | None:
        """First unit of the free queue, or None when it is empty."""


@dataclass(frozen=True, slots=True)
class Group:
    """A cache group: layers that share block tables. ``window`` is in tokens, None for full attention."""

    kind: Literal["full", "sliding"] = "full"
    window: int | None = None


class RequestState(NamedTuple):
    """What a contract rule may look at, for the request that an operation names."""

    scheduled: int
    retired: int
    in_flight: int
    in_batch: bool
    loading: bool
    looked_up: bool


class SessionState(NamedTuple):
    """What a contract rule may look at besides the request."""

    batch_size: int
    launches_in_flight: int
    lookup_pending: str | None


Rule = Callable[[RequestState | None, SessionState, Operation], bool]


def anything_goes(_request: RequestState | None, _session: SessionState, _operation: Operation) -> bool:
    """Contract of a target that promises to survive every operation it implements."""
    return True


@dataclass(frozen=True, slots=True)
class Traits:
    """What a target promises, and how. Every difference between legal engines that an invariant must know is here.

    - ``publish``: when a block's hash becomes visible to look-ups.
    - ``free_order``: ``"lru"``: freed units are appended, a request's last block first; eviction takes the front.
    - ``deferred_free``: a unit that a launched step uses, and the source of a copy that goes with it, is not free until
      that launch has retired; otherwise the target relies on the order of the compute stream, and loads wait for it. In
      both cases the source of a copy is held until its launch: until then a cancel may want it back.
    - ``watermark``: units that a first admission must leave free.
    - ``external_unit``: external tokens are a multiple of this.
    - ``promised_hit``: tokens that a look-up must give, from the reusable tokens of each group; None: not judged.
    - ``streams``: names of the device's streams, ``compute`` and ``copy`` first; effects may name no others.
    - ``tiers``: names of the tiers below the device, ``host`` first, then stores. ``host_units`` are the host's, numbered
      behind the pool's own; ``chunk_blocks`` is what is kept under one key.
    - ``late_notices``: survives to hear again how a transfer ended.
    - ``preempts_loading``: a request can be preempted while it waits for a load.
    - ``offloads_all``: an offload to the host leaves no full chunk of the request outside of it, and is refused only while
      something of the request is on its way there, or where free units and idle chunks of others are too few.
    - ``loads_hits``: a load that is possible is granted; it begins where the device's hit ends.
    - ``resets_tiers``: a reset of the prefix cache that is granted empties the tiers too.
    - ``loads_progress``: a load is admitted only if some request that loads, or has loaded, can be scheduled to the end
      of its prompt with the units that are free, and no later admission takes that away.
    - ``graph_rows``: most rows of a captured graph; 0: replays none (``kvsan.harness.graphs``).
    - ``allows``: the contract, each rule with its source where it is defined.
    """

    num_units: int
    block_size: int
    groups: tuple[Group, ...] = (Group(),)
    null_unit: int | None = None
    operations: frozenset[type[Operation]] = frozenset(OPERATIONS)
    counts_references: bool = True
    publish: Literal["allocation", "launch", "retire"] = "retire"
    free_order: Literal["lru", "any"] = "any"
    deferred_free: bool = False
    watermark: int = 0
    max_in_flight: int = 1
    max_drafts: int = 0
    max_lookahead: int = 0
    max_model_len: int = 1 << 20
    external_unit: int = 1
    adapters: bool = True
    salts: bool = True
    media: bool = False
    atomic_refusal: bool = True
    judge_admission: bool = False
    promised_hit: Callable[[PrefixIndex, int], int] | None = None
    streams: tuple[str, ...] = (COMPUTE_STREAM, COPY_STREAM)
    tiers: tuple[str, ...] = ()
    host_units: int = 0
    chunk_blocks: int = 1
    late_notices: bool = False
    preempts_loading: bool = False
    offloads_all: bool = False
    loads_hits: bool = False
    resets_tiers: bool = False
    loads_progress: bool = False
    graph_rows: int = 0
    allows: Rule = field(default=anything_goes)


class PrefixIndex(Protocol):
    """What a ``promised_hit`` trait may ask about one request: which of its full blocks are published now."""

    block_size: int

    def has(self, group: int, block: int) -> bool:
        """Whether block number ``block`` of the request's prefix can be reused in a group."""


class Target(Protocol):
    """A KV-cache manager under test. A method that raises is a finding (``target.crash``), not a harness error."""

    traits: Traits

    def submit(self, request: Request) -> None:
        """Take a new request; no blocks yet."""

    def lookup(self, name: str) -> int:
        """Look the prefix up; return the tokens that can be reused."""

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Get blocks for ``external`` loaded and ``n`` computed tokens and ``lookahead`` slots more; None if refused.

        ``n`` is 0 when ``delayed``. Clipping is the target's caller's business: on a first chunk the harness passes
        the whole wish, and the target computes at most up to the end of the prompt.
        """

    def cancel(self) -> Effects:
        """Drop the scheduled batch."""

    def launch(self, b: str) -> None:
        """Note that the scheduled batch is on the device now, as launch ``b``."""

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        """Take the results of launch ``b``."""

    def landed(self, name: str) -> None:
        """Note that the request's delayed external tokens are there."""

    def fork(self, name: str, child: str) -> Effects:
        """Let ``child`` continue from the retired tokens of ``name``."""

    def finish(self, name: str) -> None:
        """Free a completed request."""

    def abort(self, name: str) -> None:
        """Free a request in whatever state it is."""

    def preempt(self, name: str) -> None:
        """Take a request's blocks away; it stays known and will be scheduled from its first token again."""

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False if refused."""

    def view(self) -> View:
        """Everything the target holds."""

    def delta(self) -> Delta | None:
        """What changed since the last call; None if the target does not keep track."""


class TieredTarget(Target, Protocol):
    """A manager that keeps pages in tiers below the device, and moves them asynchronously.

    A transfer is prepared (both its ends are held), the device moves its bytes, and the manager hears how it ended.
    """

    def offload(self, t: str, name: str, tier: str) -> Offloading | None:
        """Prepare to keep a request's full chunks in a tier as well; None if nothing is to be done or there is no room."""

    def load(self, t: str, name: str) -> Loading | None:
        """Prepare to bring a new request's prefix up; None, with nothing changed, if there is nothing or no room."""

    def complete(self, t: str, success: bool) -> None:
        """Note that transfer ``t`` has moved everything, or that it never will; the request may be gone."""

    def stores(self) -> Mapping[str, Store]:
        """Give the store of every tier but the host, by name."""

    def tier_view(self) -> TierView:
        """Show the tiers."""
