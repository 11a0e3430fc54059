"""The hit that a release owes: how many tokens a look-up must give from what is published now.

A full-attention group hits the longest published prefix. A sliding-window group hits up to the last run of published
blocks that covers the window (``cdiv(W - 1, block_size)`` of them), or a published prefix that is shorter than that.
With EAGLE a group must match one block more and gives it back, because its drafting head needs that block's hidden
states. The last token of a request is always recomputed.

Several groups must agree on one length (``HybridKVCacheCoordinator.find_longest_cache_hit``): it shrinks until every
group accepts it. What EAGLE costs then differs. Up to 0.17.1 full attention and one other kind are asked once, in this
order, and *each* gives its block back; 0.14.1 asked again until nothing changed and gave one back in every round, until
the hit was 0 (vLLM 33270). From 0.20.2 on a length costs each kind one block, and it may look one block further for it.
With more kinds than two, 0.14.1 and 0.17.1 give a block back in every round (vLLM 32802), and no hit is promised.

From 0.20.2 on the bound is computed as 0.20.2 to 0.24.0 compute the hit, capped at the request's last token but one;
0.32.0 may look past that for the EAGLE match and then finds as much or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
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
        needed = max(1, blocks_for(self.window - 1, index.block_size) + drop)
        run = 0
        for block in range(limit - 1, -1, -1):
            run = run + 1 if self.has(index, block) else 0
            if run >= needed:
                return block + run
        return run


def promised_hit(groups: Sequence[Group], eagle: bool, each_gives_back: bool) -> Promise | None:
    """Make the rule for a manager's groups, or None: no promise. ``each_gives_back`` is EAGLE's cost up to 0.17.1."""
    kinds = _kinds(groups)

    def in_one_pass(index: PrefixIndex, num_tokens: int) -> int:
        limit = full_blocks(num_tokens - 1, index.block_size)
        for kind in kinds:
            limit = kind.hit(index, limit, eagle)
        return limit * index.block_size

    def by_agreement(index: PrefixIndex, num_tokens: int) -> int:
        return _agreed(kinds, index, full_blocks(num_tokens - 1, index.block_size), eagle) * index.block_size

    if len(kinds) == 1:
        return in_one_pass
    if eagle and each_gives_back:
        return in_one_pass if _asked_once(kinds) else None
    return by_agreement


def _asked_once(kinds: Sequence[_Kind]) -> bool:
    """Whether one pass settles the length: what full attention has, it has for every shorter length too."""
    return len(kinds) == 2 and kinds[0].window is None


def _agreed(kinds: Sequence[_Kind], index: PrefixIndex, cap: int, eagle: bool) -> int:
    """Shrink the length until all accept it, as the coordinator does: full attention is looked up once.

    ``dropped`` are the kinds that have given their EAGLE block back for the length at hand.
    """
    length = cap
    dropped: set[int] = set()
    full_length: int | None = None
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
        if current >= length or _asked_once(kinds):
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
