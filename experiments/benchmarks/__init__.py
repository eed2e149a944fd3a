"""Benchmarks of speed: each a module with a command that measures, and writes tables and figures."""
