"""The compile gate: every kernel, in every configuration, down to machine code for GPUs that are not there."""
