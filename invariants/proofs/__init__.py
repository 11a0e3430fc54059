"""Proofs: for all sizes, not for one run. docs/proofs.md says what is proved, under which assumptions, and what is not."""
