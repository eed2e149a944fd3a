"""Samplers: where the trajectories of each training step come from."""

from gfn.samplers.backward import BackwardFromData, every_terminal
from gfn.samplers.compound import Mixture, Repeated
from gfn.samplers.late import Jittered, Stale, Synchronised
from gfn.samplers.local_search import LocalSearch
from gfn.samplers.on_policy import OnPolicy
from gfn.samplers.refreshed import Refreshed
from gfn.samplers.replay import Replay
from gfn.samplers.sampler import Sampler

__all__ = [
    "BackwardFromData",
    "Jittered",
    "LocalSearch",
    "Mixture",
    "OnPolicy",
    "Refreshed",
    "Repeated",
    "Replay",
    "Sampler",
    "Stale",
    "Synchronised",
    "every_terminal",
]
