"""Bugs of testimony: the target is right, and tells too little."""

from __future__ import annotations

from kvsan.harness.target import Effects
from kvsan.models_under_test.mutants.base import Mutant


class DeltaUnderReports(Mutant):
    """A fork changes a table and reference counts, and ``delta`` does not say so.

    Reports: none; SGLang 47046 (ids not recorded) in kind. Every cheap check trusts the delta.
    """

    name = "delta_under_reports"
    killed_by = ("testimony", "ref_counts", "ownership")

    def fork(self, name: str, child: str) -> Effects:
        """Fork without a word."""
        changed, touched = self.changed[:], self.pool.touched[:]
        super().fork(name, child)
        self.changed, self.pool.touched = changed, touched
        return ()
