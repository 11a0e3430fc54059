"""Invariants: one statement a file, with why it matters, who was bitten, and the seeded bug that trips it."""

from kvsan.invariants.catalogue import INVARIANTS, ORACLES, Entry, Oracle, catalogue

__all__ = ["INVARIANTS", "ORACLES", "Entry", "Oracle", "catalogue"]
