"""The yardstick: a plain Hypothesis machine with hand-written asserts, as a good engineer would write it for one manager.

It knows the reference manager's own fields, keeps what the device would hold in a dict of slot to token, and asserts after
every rule. The benchmark compares its pace, and what it finds, with KVSan's own over the same target.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvsan.harness.clock import now_s
from kvsan.harness.target import Copy, Effects, Request, Result
from kvsan.models_under_test.paged import PagedManager

NUM_UNITS, BLOCK_SIZE = 12, 4

SETTINGS = settings(
    max_examples=30,
    stateful_step_count=100,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

_CHOICE = st.integers(0, 63)
_PROMPTS = st.sampled_from(
    [tuple(range(length)) for length in (1, 3, 4, 5, 9)] + [(0, 1, 2, 3, 77), (50, 51, 52, 53, 54)]
)


class PlainMachine(RuleBasedStateMachine):
    """Drives one manager with at most one launch in flight; ``steps`` counts rules of all machines."""

    manager_type: ClassVar[type[PagedManager]] = PagedManager
    steps: ClassVar[int] = 0

    @initialize()
    def start(self) -> None:
        """Make the manager and an empty device."""
        self.manager = self.manager_type(NUM_UNITS, BLOCK_SIZE)
        self.device: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.scheduled: dict[str, int] = {}
        self.batch: dict[str, tuple[int, int]] = {}
        self.effects: list[Copy] = []
        self.created = 0

    def _one_of(self, which: int) -> str:
        names = list(self.tokens)
        return names[which % len(names)]

    # -- rules

    @precondition(lambda self: len(self.tokens) < 6)
    @rule(prompt=_PROMPTS)
    def submit(self, prompt: tuple[int, ...]) -> None:
        """A request arrives."""
        type(self).steps += 1
        self.created += 1
        name = f"r{self.created}"
        self.tokens[name], self.scheduled[name] = list(prompt), 0
        self.manager.submit(Request(name, prompt))

    @precondition(lambda self: self.tokens)
    @rule(which=_CHOICE, n=st.sampled_from((1, 2, 4, 16)))
    def schedule(self, which: int, n: int) -> None:
        """Blocks for the next tokens of one request."""
        type(self).steps += 1
        name = self._one_of(which)
        start = self.scheduled[name]
        if name in self.batch or start >= len(self.tokens[name]):
            return
        hit = self.manager.lookup(name) if start == 0 else 0
        assert hit < len(self.tokens[name])
        stop = min(start + hit + n, len(self.tokens[name]))
        free = self.manager.pool.num_free
        admission = self.manager.schedule(name, stop - start - hit, 0, 0, False)
        if admission is None:
            assert self.manager.pool.num_free == free
            return
        start += admission.hit
        self._copies(admission.effects)
        self.batch[name] = start, stop
        self.scheduled[name] = stop
        if admission.hit:
            self._assert_content(name, admission.hit)

    @precondition(lambda self: self.batch)
    @rule(samples=st.lists(st.integers(0, 3), min_size=6, max_size=6))
    def step(self, samples: list[int]) -> None:
        """Launch the batch, execute it, retire it."""
        type(self).steps += 1
        self.manager.launch("step")
        for copy in self.effects:
            for offset in range(copy.start, copy.stop):
                self.device[copy.destination * BLOCK_SIZE + offset] = self.device[copy.source * BLOCK_SIZE + offset]
        self.effects.clear()
        results = []
        for name, (start, stop) in self.batch.items():
            table = self.manager.requests[name].table
            for position in range(start, stop):
                slot = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                self.device[slot] = tuple(self.tokens[name][: position + 1])
        for (name, (_, stop)), sample in zip(self.batch.items(), samples, strict=False):
            self._assert_content(name, stop)
            sampled = [100 + sample] if stop == len(self.tokens[name]) else []
            self.tokens[name] += sampled
            results.append(Result(name, stop, 0, sampled))
        self.manager.retire("step", results)
        self.batch.clear()

    @precondition(lambda self: self.batch)
    @rule()
    def cancel(self) -> None:
        """Drop the batch."""
        type(self).steps += 1
        self.manager.cancel()
        self.effects.clear()
        for name in self.batch:
            self.scheduled[name] = self.manager.requests[name].scheduled
        self.batch.clear()

    @precondition(lambda self: not self.batch and 0 < len(self.tokens) < 6)
    @rule(which=_CHOICE)
    def fork(self, which: int) -> None:
        """Fork a request that has computed something."""
        type(self).steps += 1
        parent = self._one_of(which)
        if self.scheduled[parent] == 0:
            return
        self.created += 1
        child = f"r{self.created}"
        self.manager.fork(parent, child)
        self.tokens[child], self.scheduled[child] = list(self.tokens[parent]), self.scheduled[parent]

    @precondition(lambda self: not self.batch and self.tokens)
    @rule(which=_CHOICE, preempt=st.booleans())
    def leave(self, which: int, preempt: bool) -> None:
        """Finish or preempt a request."""
        type(self).steps += 1
        name = self._one_of(which)
        if preempt:
            self.manager.preempt(name)
            self.scheduled[name] = 0
        else:
            self.manager.finish(name)
            del self.tokens[name], self.scheduled[name]

    # -- asserts

    def _copies(self, effects: Effects) -> None:
        self.effects += [effect for effect in effects if isinstance(effect, Copy)]

    def _assert_content(self, name: str, stop: int) -> None:
        table = self.manager.requests[name].table
        for position in range(stop):
            slot = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            assert self.device.get(slot) == tuple(self.tokens[name][: position + 1])

    @invariant()
    def counts_are_right(self) -> None:
        """References are table entries and copy sources; free is unreferenced; the queue is whole."""
        pool = self.manager.pool
        held = Counter(unit for request in self.manager.requests.values() for unit in request.table)
        held.update(copy.source for copy in self.effects)
        queue = pool.queue()
        assert len(queue) == len(set(queue)) == pool.num_free
        free = set(queue)
        for unit in range(1, NUM_UNITS):
            assert pool.references[unit] == held[unit]
            assert (unit in free) == (held[unit] == 0)

    @invariant()
    def hashes_are_right(self) -> None:
        """The hash map and the blocks name each other."""
        pool = self.manager.pool
        for unit, key in enumerate(pool.keys):
            assert key is None or unit in pool.published(key)
        for key in pool.by_key:
            assert all(pool.keys[unit] == key for unit in pool.published(key))

    @invariant()
    def nobody_owns_a_block_twice(self) -> None:
        """A block stands once in a table."""
        for request in self.manager.requests.values():
            assert len(set(request.table)) == len(request.table)


def measure(seconds: float) -> float:
    """Run the machine for about so many seconds; return rules a second."""
    started, before = now_s(), PlainMachine.steps
    while (elapsed := now_s() - started) < seconds:
        run_state_machine_as_test(PlainMachine, settings=SETTINGS)
    return (PlainMachine.steps - before) / elapsed


if __name__ == "__main__":
    print(f"{measure(5.0):.0f} rules a second")
