"""Competitors of the speed benchmarks, each a script that runs in an environment of its own."""
