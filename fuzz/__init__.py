"""How targets are searched: generator, search loop, Hypothesis machine, shrinker, corpus."""
