"""Proofs about kernels, from the IR that the compiler gets.

One way, one module each: `lowering` (kernel to IR text), `parsing` (text to `ir`), `execution` with `semantics` (IR to
symbolic addresses and masks), `checking` (those against a `specification`, to obligations), and the solver.
"""
