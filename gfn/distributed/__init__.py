"""Searchers that sample all the time, and one trainer that learns all the time."""
