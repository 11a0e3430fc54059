"""Paged kernels and their address arithmetic: what reads and writes the cache. Knows nobody else."""
