"""Broken variants that proofs must refute: evidence that they notice."""
