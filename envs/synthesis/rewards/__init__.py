"""Rewards of molecules: properties, predictions, docking, your own functions, and what combines and computes them."""

from envs.synthesis.rewards.admet import ADMET
from envs.synthesis.rewards.cache import Cached
from envs.synthesis.rewards.combine import Power, Product, Sum, mean
from envs.synthesis.rewards.desirability import Desired, Range, Rescaled
from envs.synthesis.rewards.docking import Dockstring, Vina
from envs.synthesis.rewards.pool import Pool
from envs.synthesis.rewards.properties import Property
from envs.synthesis.rewards.reward import Reward, Score, Values, require_values
from envs.synthesis.rewards.seh import SEH
from envs.synthesis.rewards.user import Function

__all__ = [
    "ADMET",
    "SEH",
    "Cached",
    "Desired",
    "Dockstring",
    "Function",
    "Pool",
    "Power",
    "Product",
    "Property",
    "Range",
    "Rescaled",
    "Reward",
    "Score",
    "Sum",
    "Values",
    "Vina",
    "mean",
    "require_values",
]
