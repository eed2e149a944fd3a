"""Objective = balance ∘ divergence ∘ partition, three independent pieces."""

from gfn.objectives.balance import Scores, trajectory_balance
from gfn.objectives.derived import Clipped, FromGenerator, FromLoss, Tempered
from gfn.objectives.divergence import (
    Alpha,
    Divergence,
    ForwardKL,
    Hellinger,
    NeymanChi2,
    PearsonChi2,
    ReverseKL,
)
from gfn.objectives.members import Huber, Jeffreys, JensenShannon, LogCosh, ShiftedCosh, TotalVariation
from gfn.objectives.objective import Objective, ParameterGroup
from gfn.objectives.partition import ConditionalLogZ, DevGrad, ExactLogZ, LearnedLogZ, Partition

__all__ = [
    "Alpha",
    "Clipped",
    "ConditionalLogZ",
    "DevGrad",
    "Divergence",
    "ExactLogZ",
    "ForwardKL",
    "FromGenerator",
    "FromLoss",
    "Hellinger",
    "Huber",
    "Jeffreys",
    "JensenShannon",
    "LearnedLogZ",
    "LogCosh",
    "NeymanChi2",
    "Objective",
    "ParameterGroup",
    "Partition",
    "PearsonChi2",
    "ReverseKL",
    "Scores",
    "ShiftedCosh",
    "Tempered",
    "TotalVariation",
    "trajectory_balance",
]
