"""What is to be shown, and what became of it: data that every part of the proofs shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import z3

PROVED: Final = "proved"
REFUTED: Final = "refuted"
UNKNOWN: Final = "unknown"
REJECTED: Final = "rejected"
Status: TypeAlias = Literal["proved", "refuted", "unknown", "rejected"]

Values: TypeAlias = Mapping[str, int]
"""Of a counterexample: integers by name; bools are 0 and 1."""


@dataclass(frozen=True, slots=True)
class Obligation:
    """``goal`` holds wherever all ``hypotheses`` do.

    ``what`` says it in words; ``line`` is that of the source, 0 where there is none. ``watch`` names expressions whose
    values a counterexample shows, the first ``small`` of them made as small as can be, in order; all of them if None.
    """

    what: str
    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    line: int = 0
    watch: Mapping[str, z3.ExprRef] = field(default_factory=dict)
    small: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver says: ``values`` of what was watched if refuted, ``reason`` if unknown."""

    status: Status
    seconds: float
    values: Values = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that is proved: ``part`` (addressing, kernel, protocol), ``name`` (without spaces) in it.

    ``statement`` and ``assumptions`` are sentences for people; ``source`` is a hash of the code that it is about.
    """

    part: str
    name: str
    statement: str
    assumptions: tuple[str, ...] = ()
    source: str = ""

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.part}/{self.name}"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Why a claim does not hold: the obligation that fails, values that break it, and what a replay of them showed.

    ``replay`` is empty until it was replayed; ``trace`` is a trace file's text where it is one for ``kvsan replay``.
    """

    what: str
    line: int
    values: Values
    story: tuple[str, ...] = ()
    replay: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a claim.

    ``rejected``: the code has something that proofs do not know, said by ``reason``; like ``unknown`` it is a failure.
    ``obligations`` counts what was shown; ``limits`` are numbers that it holds up to, such as a largest pool.
    """

    claim: Claim
    status: Status
    obligations: int
    seconds: float
    counterexample: Counterexample | None = None
    reason: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
