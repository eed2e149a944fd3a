"""Objective = balance ∘ divergence ∘ partition, three independent pieces."""

from gfn.objectives.balance import (
    Scores,
    detailed_balance,
    flow_matching,
    sub_trajectory_balance,
    trajectory_balance,
)
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
from gfn.objectives.learner import Learner, ParameterGroup
from gfn.objectives.members import Huber, Jeffreys, JensenShannon, LogCosh, ShiftedCosh, TotalVariation
from gfn.objectives.objective import Objective
from gfn.objectives.partition import (
    ConditionalLogZ,
    DevGrad,
    ExactLogZ,
    FlowLogZ,
    LearnedLogZ,
    MeanLogReward,
    Partition,
)
from gfn.objectives.policy_gradient import PolicyGradient

__all__ = [
    "Alpha",
    "Clipped",
    "ConditionalLogZ",
    "DevGrad",
    "Divergence",
    "ExactLogZ",
    "FlowLogZ",
    "ForwardKL",
    "FromGenerator",
    "FromLoss",
    "Hellinger",
    "Huber",
    "Jeffreys",
    "JensenShannon",
    "LearnedLogZ",
    "Learner",
    "LogCosh",
    "MeanLogReward",
    "NeymanChi2",
    "Objective",
    "ParameterGroup",
    "Partition",
    "PearsonChi2",
    "PolicyGradient",
    "ReverseKL",
    "Scores",
    "ShiftedCosh",
    "Tempered",
    "TotalVariation",
    "detailed_balance",
    "flow_matching",
    "sub_trajectory_balance",
    "trajectory_balance",
]
