"""Faults that are really injected: what a run promises, shown by breaking what it stands on."""
