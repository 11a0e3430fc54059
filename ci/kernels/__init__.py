"""Comparisons of kernels: random problems as data, the contiguous float64 reference, and what each check can see."""
