"""The generated pages of docs/ are what the code says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsan.ci.docs import EXAMPLES, LABELS, PAGES, labelled, main
from kvsan.harness.operations import OPERATIONS
from kvsan.invariants import Entry, catalogue
from kvsan.models_under_test.disagg.mutants import MUTANTS as PAIR_MUTANTS
from kvsan.models_under_test.graphs.mutants import MUTANTS as GRAPH_MUTANTS
from kvsan.models_under_test.mutants import MUTANTS

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run python -m kvsan.ci.docs"


def test_the_command_writes_every_page(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)


def test_every_operation_has_an_example() -> None:
    assert [type(example) for example in EXAMPLES] == list(OPERATIONS)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.id)
def test_an_invariant_says_what_it_states_and_what_it_does_not_see(entry: Entry) -> None:
    assert tuple(label.partition(" (")[0] for label, _ in labelled(entry)) == LABELS


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.id)
def test_an_invariant_names_seeded_bugs_that_exist(entry: Entry) -> None:
    named = dict(labelled(entry))["Mutant"].split("``")[1::2]
    assert named
    known = {*MUTANTS, *(f"graphs-mutant:{name}" for name in GRAPH_MUTANTS)}
    known |= {f"disagg-mutant:{name}" for name in PAIR_MUTANTS}
    assert set(named) <= known
