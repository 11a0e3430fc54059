"""The seeded generator: draws the next operation from what is live now.

Swarm testing: every run draws its own weights, sizes and set of features, since a run that always does everything a
little never does one thing a lot. All randomness comes from one ``random.Random``.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random

from kvsan.fuzz.graph_draws import GraphDraws
from kvsan.fuzz.profiles import FEATURES, Profile
from kvsan.fuzz.transfer_draws import TransferDraws
from kvsan.harness.expectation import Expected
from kvsan.harness.operations import (
    GRAPHS,
    TRANSFERS,
    Abort,
    Adapter,
    Advance,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Media,
    Operation,
    Outcome,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Segment,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.target import COMPUTE_STREAM

_NAMES = ("x", "y")
_TURNS_KEPT = 32
_PROMPTS_KEPT = 512
_SWITCHABLE = ("Fork", "Abort", "Preempt", "Cancel", "Advance", "Lookup", "ResetPrefixCache")
_SWITCHABLE_FAULTS = ("Fail", "Tear", "Spoil", "Restart")


def draw_features(random: Random, profile: Profile, without: frozenset[str] = frozenset()) -> frozenset[str]:
    """Features of one run."""
    return frozenset(f for f in FEATURES if random.random() < profile.keep_features) - without


class Names:
    """Symbolic ids that no operation of a run has had."""

    def __init__(self) -> None:
        self._created = 0

    def fresh(self, letter: str) -> str:
        """Make a new one."""
        self._created += 1
        return f"{letter}{self._created}"


class Generator:
    """Draws operations for one run of one session.

    ``fresh`` makes ids, where several generators draw for one run.
    """

    def __init__(
        self,
        session: Session,
        profile: Profile,
        random: Random,
        features: frozenset[str],
        fresh: Callable[[str], str] | None = None,
    ) -> None:
        self.session = session
        self.profile = profile
        self.features = features
        self._draw = random.random
        self.fresh = fresh or Names().fresh
        self._turns: deque[Submit] = deque(maxlen=_TURNS_KEPT)
        self.prompts: dict[str, Submit] = {}
        self.max_live = random.choice(profile.live_requests)
        self._chunk = random.choice(profile.chunks)
        traits = session.traits
        capacity = (traits.num_units - 1) * traits.block_size // len(traits.groups)
        self._segment = min(random.choice(profile.segment_tokens), max(2, capacity // 4))
        self._families = 1 + int(random.random() * profile.families)
        self._prefixes = [self.new_segment() for _ in range(2)]
        self._max_in_flight = traits.max_in_flight if "two in flight" in features else 1
        self._transfers = TransferDraws(session, random, self.fresh, self._submit_again)
        self._graphs = GraphDraws(session, random, self.fresh, self._retire, self._schedule)
        self._kinds, self._cumulative = self._draw_weights(random)

    def _draw_weights(self, random: Random) -> tuple[list[Callable[[], Operation]], list[float]]:
        builders: dict[str, Callable[[], Operation]] = {
            "Submit": self._submit,
            "Schedule": self._schedule,
            "Launch": self._launch,
            "Retire": self._retire,
            "Advance": self._advance,
            "Fork": self._fork,
            "Finish": lambda: Finish(self._any()),
            "Abort": lambda: Abort(self._any()),
            "Preempt": lambda: Preempt(self._any()),
            "Cancel": Cancel,
            "Lookup": lambda: Lookup(self._idle().r),
            "Landed": self._landed,
            "ResetPrefixCache": ResetPrefixCache,
            **self._transfers.builders(),
            **self._graphs.builders(),
        }
        off = {name for name in _SWITCHABLE if random.random() < 0.25}
        if self.session.traits.tiers or self.session.exchange:
            off |= {name for name in _SWITCHABLE_FAULTS if random.random() < 0.25}
        else:
            off |= {kind.__name__ for kind in TRANSFERS}
        if not self.session.traits.graph_rows:
            off |= {kind.__name__ for kind in GRAPHS}
        if "fork" not in self.features:
            off.add("Fork")
        if "cancel" not in self.features:
            off.add("Cancel")
        if "own lookups" not in self.features:
            off.add("Lookup")
        possible = {kind.__name__ for kind in self.session.traits.operations} - off
        kinds, cumulative, total = [], [], 0.0
        for name, build in builders.items():
            if name in possible:
                total += self.profile.weights[name] * (0.3 + 1.7 * random.random())
                kinds.append(build)
                cumulative.append(total)
        return kinds, [bound / total for bound in cumulative[:-1]]

    def next(self) -> Operation:
        """Draw the next operation; now and then one that will be skipped."""
        if self._transfers.then is not None:
            following, self._transfers.then = self._transfers.then, None
            return following
        if self._graphs.following:
            return self._graphs.following.popleft()
        live = len(self.session.requests)
        if not live:
            return self._submit()
        if self.session.step_facts.refused and self._draw() < 0.4:
            return self._make_room()
        build = self._kinds[bisect(self._cumulative, self._draw())]
        if build == self._submit and live >= self.max_live:
            return self._schedule()
        return build()

    def _make_room(self) -> Operation:
        """What a scheduler does when a request is refused: somebody else has to go."""
        r = self._any()
        return Preempt(r) if self._draw() < 0.4 and Preempt in self.session.traits.operations else Finish(r)

    # -- choices

    def _below(self, bound: int) -> int:
        return int(self._draw() * bound)

    def _any(self) -> str:
        names = list(self.session.requests)
        return names[self._below(len(names))]

    def _idle(self) -> Expected:
        """A request that can be scheduled, if three tries find one."""
        requests = list(self.session.requests.values())
        for _ in range(3):
            request = requests[self._below(len(requests))]
            if request.row is None and request.loading is None:
                break
        return request

    # -- operations

    def _submit(self) -> Operation:
        features = self.features
        r = self.fresh("r")
        choice = self._draw()
        if "later turns" in features and self._turns and choice < 0.25:
            submit = self._later_turn(r)
        elif self._turns and choice < 0.35:
            submit = replace(self._turns[self._below(len(self._turns))], r=r, engine_id=self.engine_id())
        else:
            segments = tuple(self.new_segment() for _ in range(1 + self._below(self.profile.segments)))
            if self._draw() < 0.5:
                segments = (self._prefixes[self._below(2)], *segments)
            submit = Submit(r, segments, self._salt(), self._adapter(), self._media(), self.engine_id())
        self._turns.append(submit)
        if self.session.traits.tiers or self.session.exchange:
            if len(self.prompts) >= _PROMPTS_KEPT:
                self.prompts.clear()
            self.prompts[r] = submit
        return submit

    def _submit_again(self, r: str, tokens: int) -> Submit | None:
        """The prompt of a request comes again, with enough behind it to be longer than ``tokens``."""
        earlier = self.prompts.get(r)
        if earlier is None or len(self.session.requests) >= self.max_live:
            return None
        prompt = earlier.prompt
        if sum(segment[-1] for segment in prompt) <= tokens or self._draw() < 0.3:
            prompt = (*prompt, self.new_segment())
        return replace(earlier, r=self.fresh("r"), prompt=prompt, engine_id=self.engine_id())

    def new_segment(self) -> Segment:
        """Some tokens of one family."""
        return self._below(self._families), 1 + self._below(self._segment)

    def _later_turn(self, r: str) -> Submit:
        """The same conversation goes on: its prompt, what was generated, and something new."""
        earlier = self._turns[self._below(len(self._turns))]
        prompt = earlier.prompt
        if len(prompt) < 6:
            output: Segment = ("out", earlier.r, 1 + self._below(self._segment))
            prompt = (*prompt, output, self.new_segment())
        return Submit(r, prompt, earlier.salt, earlier.adapter, earlier.media, self.engine_id())

    def _salt(self) -> str:
        return _NAMES[self._below(2)] if "salts" in self.features and self._draw() < 0.25 else ""

    def _adapter(self) -> Adapter | None:
        if "adapters" not in self.features or self._draw() > 0.3:
            return None
        name = _NAMES[self._below(2)] if "one name for all" in self.features else "ab"[self._below(2)]
        return Adapter(name, 1 + self._below(2) if "adapter ids" in self.features else 1)

    def _media(self) -> tuple[Media, ...]:
        if "media" not in self.features or self._draw() > 0.2:
            return ()
        return (Media(_NAMES[self._below(2)], self._below(8), 1 + self._below(8)),)

    def engine_id(self) -> str:
        """Name that a client gives a request, now and then one that it gave before."""
        return f"e{self._below(4)}" if "reused ids" in self.features and self._draw() < 0.2 else ""

    def _schedule(self) -> Operation:
        request = self._idle()
        draw, features = self._draw, self.features
        if request.scheduled > self.profile.max_context:
            return Finish(request.r)
        n = 1 if draw() < self.profile.decode_share and request.scheduled else 1 + self._below(self._chunk)
        if request.scheduled and request.planned - request.scheduled < n:
            n = request.planned - request.scheduled
            if "drafts" in features and draw() < 0.3:
                n += 1 + self._below(4)
        lookahead = 1 + self._below(4) if "lookahead" in features and draw() < 0.2 else 0
        external = 0
        if not request.scheduled and "external" in features and draw() < 0.4:
            blocks = 1 + self._below(1 + len(request.life.tokens) // self.session.traits.block_size)
            external = min(blocks, 1 + self._below(4)) * self.session.traits.block_size
        delayed = external > 0 and "delayed" in features and draw() < 0.5
        return Schedule(request.r, n, lookahead, external, delayed)

    def _launch(self) -> Operation:
        session = self.session
        if not session.batch:
            return self._schedule()
        if len(session.in_flight) >= self._max_in_flight:
            return self._retire()
        return Launch(self.fresh("b"))

    def _retire(self) -> Operation:
        session = self.session
        if not session.in_flight:
            return self._schedule() if not session.batch else Launch(self.fresh("b"))
        b, work = next(iter(session.in_flight.items()))
        outcomes = []
        for row in work.payload.rows:  # type: ignore[union-attr]
            if row.samples and self._draw() < 0.5:
                family = self._below(3) if self._draw() < 0.5 else 0
                outcomes.append(Outcome(row.life.name, self._below(row.drafts + 1), family))
        return Retire(b, tuple(outcomes))

    def _advance(self) -> Operation:
        device = self.session.device
        streams = [stream for number, stream in enumerate(device.streams) if device.pending(number)]
        return Advance(streams[self._below(len(streams))] if streams else COMPUTE_STREAM)

    def _fork(self) -> Operation:
        if len(self.session.requests) >= self.max_live:
            return Finish(self._any())
        return Fork(self._any(), self.fresh("r"))

    def _landed(self) -> Operation:
        if not self.session.loads:
            return self._schedule()
        loads = list(self.session.loads.values())
        return Landed(loads[self._below(len(loads))][0].r)
