"""State flows of syntheses, for balances that need them."""

from __future__ import annotations

from torch import Tensor, nn

from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.policy import MoleculeEncoder, StateEncoder, SynthesisPolicy
from gfn.flows import Flow


class SynthesisFlow(Flow[Syntheses]):
    """log F(s) from the network of molecules of a forward policy, or from one of its own.

    Args:
        policy: the forward policy, whose network is shared if ``network`` is None.
        network: from graphs of molecules to vectors (:mod:`envs.synthesis.encoders`).
    """

    def __init__(self, env: Synthesis, policy: SynthesisPolicy, network: nn.Module | None = None):
        super().__init__()
        self.encoder = policy.encoder if network is None else StateEncoder(env, MoleculeEncoder(env, network))
        self.head = nn.Linear(self.encoder.molecules.width, 1)

    def forward(self, states: Syntheses) -> Tensor:
        vectors, which = self.encoder(states)
        return self.head(vectors).squeeze(1)[which]
