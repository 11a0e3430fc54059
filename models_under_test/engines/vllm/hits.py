"""The hit that a release owes: how many tokens a look-up must give from what is published now.

A full-attention group hits the longest published prefix. A sliding-window group hits up to the last run of published
blocks that covers the window (``cdiv(W - 1, block_size)`` of them), or a published prefix that is shorter than that.
With EAGLE a group must match one block more and gives it back, because its drafting head needs that block's hidden
states. The last token of a request is always recomputed.

Several groups must agree on one length (``HybridKVCacheCoordinator.find_longest_cache_hit``). Up to 0.12 that is one
pass, full attention first, and *each* group gives its EAGLE block back. From 0.14 on the length shrinks until every
group accepts it, and the EAGLE block is to be given back once for a length, not in every round: 0.14.1 gave it back in
every round (vLLM 33270, 32802), so it is measured by the rule of 0.17.1 and later.

The bound is computed as 0.17.1 to 0.24.0 compute the hit, capped at the request's last token but one; 0.32.0 may look
one block further for the EAGLE match and then finds as much or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsan.harness.target import Group, PrefixIndex

Promise = Callable[[PrefixIndex, int], int]
"""A ``Traits.promised_hit``: from the published blocks and length of a request to the tokens a look-up must give."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Groups of one specification, which hit together: a block counts if all of them have it."""

    window: int | None
    members: tuple[int, ...]

    def has(self, index: PrefixIndex, block: int) -> bool:
        return all(index.has(group, block) for group in self.members)

    def hit(self, index: PrefixIndex, limit: int, drop: bool) -> int:
        """Blocks of the longest hit within the first ``limit`` blocks; ``drop``: the last one matched is given back."""
        blocks = self._prefix(index, limit) if self.window is None else self._window_run(index, limit, drop)
        return blocks - 1 if drop and blocks else blocks

    def _prefix(self, index: PrefixIndex, limit: int) -> int:
        block = 0
        while block < limit and self.has(index, block):
            block += 1
        return block

    def _window_run(self, index: PrefixIndex, limit: int, drop: bool) -> int:
        """End of the last run that is long enough; else the run at the front, however short."""
        assert self.window is not None
        needed = max(1, -(-(self.window - 1) // index.block_size) + drop)
        run = 0
        for block in range(limit - 1, -1, -1):
            run = run + 1 if self.has(index, block) else 0
            if run >= needed:
                return block + run
        return run


def promised_hit(groups: Sequence[Group], eagle: bool, one_pass: bool) -> Promise:
    """Make the rule for a manager's groups; ``one_pass`` is the rule of releases up to 0.12."""
    kinds = _kinds(groups)

    def in_one_pass(index: PrefixIndex, num_tokens: int) -> int:
        limit = (num_tokens - 1) // index.block_size
        for kind in kinds:
            limit = kind.hit(index, limit, eagle)
        return limit * index.block_size

    def by_agreement(index: PrefixIndex, num_tokens: int) -> int:
        return _agreed(kinds, index, (num_tokens - 1) // index.block_size, eagle) * index.block_size

    return in_one_pass if one_pass or len(kinds) == 1 else by_agreement


def _agreed(kinds: Sequence[_Kind], index: PrefixIndex, cap: int, eagle: bool) -> int:
    """Shrink the length until all accept it, as the coordinator does: full attention is looked up once.

    ``dropped`` are the kinds that have given their EAGLE block back for the length at hand.
    """
    length = cap
    dropped: set[int] = set()
    full_length: int | None = None
    once = len(kinds) == 2 and kinds[0].window is None
    while True:
        current = length
        for number, kind in enumerate(kinds):
            if kind.window is None and full_length is not None:
                continue
            drop = eagle and number not in dropped
            found = kind.hit(index, min(current + 1, cap) if drop else current, drop)
            if drop:
                dropped.add(number)
            elif found < current:
                dropped.clear()
            current = found
            if kind.window is None:
                full_length = found
        if current >= length or once:
            return min(current, length)
        length = current


def _kinds(groups: Sequence[Group]) -> tuple[_Kind, ...]:
    """Merge groups of one window; full attention comes first."""
    windows = list(dict.fromkeys(group.window for group in groups))
    windows.sort(key=lambda window: window is not None)
    return tuple(
        _Kind(window, tuple(number for number, group in enumerate(groups) if group.window == window))
        for window in windows
    )
