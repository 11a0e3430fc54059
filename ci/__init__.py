"""What runs in continuous integration: benchmarks and tables."""
