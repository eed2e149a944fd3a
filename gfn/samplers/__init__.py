"""Samplers: where the trajectories of each training step come from."""

from gfn.samplers.backward import BackwardFromData, every_terminal
from gfn.samplers.compound import Mixture, Repeated, Stale
from gfn.samplers.local_search import LocalSearch
from gfn.samplers.on_policy import OnPolicy
from gfn.samplers.replay import Replay
from gfn.samplers.sampler import Sampler

__all__ = [
    "BackwardFromData",
    "LocalSearch",
    "Mixture",
    "OnPolicy",
    "Repeated",
    "Replay",
    "Sampler",
    "Stale",
    "every_terminal",
]
