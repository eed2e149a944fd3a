"""Flows and balances that do not go together are refused when they are put together."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from envs.hypergrid import Hypergrid
from gfn.flows import EdgeFlows, ForwardLooking, ImpliedByStop, MLPFlow
from gfn.objectives import (
    Alpha,
    FlowLogZ,
    LearnedLogZ,
    Objective,
    detailed_balance,
    flow_matching,
    sub_trajectory_balance,
)
from gfn.policies import MLPPolicy, UniformBackward
from tests.toy_environments import Diffusion


def test_missing_flows_are_refused_at_once() -> None:
    env = Hypergrid(3)
    policy, backward = MLPPolicy(env, 4), UniformBackward(env)
    for balance in (detailed_balance, sub_trajectory_balance):
        with pytest.raises(ValueError, match="needs state flows: use flow=mlp"):
            Objective(policy, backward, Alpha(), LearnedLogZ(), balance)
    with pytest.raises(ValueError, match="flow_matching needs flows on edges: use flow=edges"):
        Objective(policy, backward, Alpha(), LearnedLogZ(), flow_matching, MLPFlow(env, policy))
    tree: Any = Diffusion()
    with pytest.raises(ValueError, match="Diffusion is no DiscreteEnvironment and lists none: use balance=detailed"):
        EdgeFlows(tree, policy)
    with pytest.raises(ValueError, match="Diffusion has none: use flow=mlp"):
        ForwardLooking(tree, MLPFlow(env, policy))
    with pytest.raises(ValueError, match="every state may stop"):
        ImpliedByStop(tree, policy)
    with pytest.raises(ValueError, match="FlowLogZ needs state flows"):
        Objective(policy, backward, Alpha(), FlowLogZ())
    with pytest.raises(ValueError, match="decay must be positive"):
        Objective(
            policy, backward, Alpha(), FlowLogZ(), partial(sub_trajectory_balance, decay=0.0), MLPFlow(env, policy)
        )
