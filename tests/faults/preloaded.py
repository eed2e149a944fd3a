"""What processes with faults need, imported once."""

from __future__ import annotations

import hydra.core.hydra_config
import matplotlib
import omegaconf
import torch.utils.tensorboard

import envs.hypergrid
import experiments.build
import experiments.figures
import experiments.runs
import experiments.train
import tests.trainers

matplotlib.use("Agg")
torch.set_num_threads(1)
LOADED = (hydra, omegaconf, envs, experiments, tests)
