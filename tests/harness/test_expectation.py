"""A request's life: its tokens and identities, and what is kept when it starts again."""

from __future__ import annotations

import pytest

from kvsan.harness.expectation import Expected, Life, Row
from kvsan.harness.identity import chain_over, root_identity
from kvsan.harness.operations import Adapter, Media, token_id


def life_of(tokens: list[int], adapter: Adapter | None = None, media: tuple[Media, ...] = ()) -> Life:
    life = Life("r1", adapter, media)
    life.extend(tokens)
    return life


def test_the_chain_starts_from_the_adapter() -> None:
    adapter = Adapter("a", 1)
    assert life_of([1, 2, 3], adapter).identities(3).tolist() == chain_over(root_identity(adapter), [1, 2, 3])


def test_positions_past_the_known_tokens_hold_drafts_of_family_0() -> None:
    life = life_of([1, 2])
    drafts = [token_id(0, 2), token_id(0, 3)]
    assert life.identities(4).tolist() == chain_over(life.root, [1, 2, *drafts])


def test_an_accepted_draft_has_the_identity_that_it_was_guessed_with() -> None:
    life = life_of([1, 2])
    guessed = life.identities(4).tolist()
    life.extend([token_id(0, 2), token_id(0, 3)])
    assert life.identities(4).tolist() == guessed


def test_another_token_than_the_draft_gets_another_identity() -> None:
    life = life_of([1, 2])
    guessed = life.identities(3).tolist()
    life.extend([token_id(1, 2)])
    assert life.identities(3).tolist()[:2] == guessed[:2]
    assert life.identities(3)[2] != guessed[2]


def test_drafts_lie_under_media_as_tokens_do() -> None:
    media = (Media("x", 1, 3),)
    assert life_of([1, 2], None, media).identities(3)[2] != life_of([1, 2]).identities(3)[2]


def test_a_copy_goes_its_own_way() -> None:
    life = life_of([1, 2])
    twin = life.copy("r2")
    twin.extend([5])
    life.extend([6])
    assert (life.tokens, twin.tokens) == ([1, 2, 6], [1, 2, 5])
    assert life.identities(2).tolist() == twin.identities(2).tolist()
    assert life.last_identity() != twin.last_identity()


def test_the_chain_grows_and_keeps_what_it_has() -> None:
    life = life_of([1, 2])
    before = life.identities(2).tolist()
    life.reserve(1000)
    assert len(life.chain) >= 1000
    assert life.identities(2).tolist() == before


def test_an_empty_life_continues_from_its_root() -> None:
    life = Life("r1", None, ())
    assert life.last_identity() == life.root


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_preempted_request_gets_a_new_life_if_rows_of_the_old_one_are_in_flight(in_flight: bool) -> None:
    life = life_of([1, 2, 3])
    request = Expected("r1", "r1", life, "", None)
    request.scheduled = request.retired = life.executed = 3
    request.planned = 4
    if in_flight:
        life.rows.append(Row(life, 0, 3, 0, True))

    request.restart()

    assert (request.life is life) is not in_flight
    assert (request.scheduled, request.retired, request.life.executed, request.planned) == (0, 0, 0, 3)
    assert request.life.tokens == [1, 2, 3]


def test_a_table_is_kept_as_an_array_until_it_changes() -> None:
    request = Expected("r1", "r1", life_of([1]), "", None)
    request.tables, request.arrays = [[4, 5]], [None]
    assert request.array(0) is request.array(0)
    assert request.array(0).tolist() == [4, 5]
