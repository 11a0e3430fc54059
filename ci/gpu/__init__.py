"""What ``ci/gpu_check.py`` does on a machine with a GPU: comparisons for a time share, then times and bandwidths."""
