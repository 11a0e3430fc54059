"""The hit that a vLLM release owes, on hand-made indexes; blocks of four tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvsan.harness.target import Group
from kvsan.models_under_test.engines.vllm.hits import promised_hit

FULL, W8, W16 = Group(), Group("sliding", 8), Group("sliding", 16)


class Index:
    """Published blocks by group, each written as a row of ``x`` (there) and ``.`` (not)."""

    block_size = 4

    def __init__(self, *rows: str) -> None:
        self.rows = rows

    def has(self, group: int, block: int) -> bool:
        return self.rows[group][block] == "x"


def hit_blocks(
    groups: Sequence[Group], rows: Sequence[str], tokens: int, eagle: bool = False, each_gives_back: bool = False
) -> int:
    rule = promised_hit(groups, eagle, each_gives_back)
    assert rule is not None
    return rule(Index(*rows), tokens) // 4


@pytest.mark.parametrize(
    ("row", "tokens", "blocks"),
    [("xxx", 13, 3), ("xxx", 12, 2), ("x.x", 13, 1), (".xx", 13, 0), ("", 3, 0), ("xxx.", 17, 3)],
)
def test_full_attention_hits_the_longest_prefix_and_computes_the_last_token(row: str, tokens: int, blocks: int) -> None:
    assert hit_blocks([FULL], [row], tokens) == blocks


@pytest.mark.parametrize(
    ("row", "blocks"),
    [(".xx.", 3), ("x..x", 1), ("..xx", 4), ("x.x.", 1), (".x..", 0), ("xx.x", 2)],
)
def test_a_window_of_two_blocks_hits_the_last_run_of_two_or_a_short_prefix(row: str, blocks: int) -> None:
    assert hit_blocks([W8], [row], 17) == blocks


def test_eagle_gives_one_block_back_and_a_window_must_cover_it() -> None:
    assert hit_blocks([FULL], ["xxxx"], 17, eagle=True) == 3
    assert hit_blocks([W8], [".xxx"], 17, eagle=True) == 3
    assert hit_blocks([W8], ["..xx"], 17, eagle=True) == 0


def test_full_attention_bounds_what_a_window_hits() -> None:
    assert hit_blocks([FULL, W8], ["xxx.", "xxxx"], 17) == 3
    assert hit_blocks([W8, FULL], ["..xx", "xxx."], 17) == 0


def test_groups_of_one_kind_hit_together() -> None:
    assert hit_blocks([FULL, FULL], ["xxx", "xx."], 13) == 2


def test_two_windows_shrink_the_length_until_both_accept_it() -> None:
    # W16 needs four blocks in a row and has only the first two; W8 must then accept two as well.
    assert hit_blocks([FULL, W8, W16], ["xxxxxx", "..xxxx", "xx.xxx"], 25) == 0
    assert hit_blocks([FULL, W8, W16], ["xxxxxx", "xxxxxx", "xx.xxx"], 25) == 2


def test_eagle_costs_each_group_a_block_up_to_0_17_and_one_in_all_later() -> None:
    rows = ["x" * 10, "x" * 10]
    assert hit_blocks([FULL, W8], rows, 41, eagle=True, each_gives_back=True) == 8
    assert hit_blocks([FULL, W8], rows, 41, eagle=True) == 9


def test_nothing_is_promised_where_eagle_takes_a_block_in_every_round() -> None:
    assert promised_hit([FULL, W8, W16], eagle=True, each_gives_back=True) is None
    assert promised_hit([W8, W16], eagle=True, each_gives_back=True) is None
