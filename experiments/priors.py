"""Policies of finished runs as the beginning of others."""

from __future__ import annotations

from pathlib import Path

from envs.diffusion.environment import Diffusion, Points
from envs.diffusion.guided import Guided
from experiments.runs import RunError, open_run
from experiments.schema import ConfigError
from gfn.checkpoint import CheckpointError
from gfn.policies import Policy


def tuned(env: Diffusion, run: Path, guidance: float = 0.0) -> Policy[Points]:
    """The policy of a finished run of a diffusion process, to be trained on.

    Args:
        env: what it is trained on: the run's own environment, but for the reward.
        run: directory of that run.
        guidance: with it, steps of images are at first moved along ∇ log R so much; see
            :class:`envs.diffusion.guided.Guided`.

    Raises:
        ValueError: if there is no such run with a sound checkpoint, or it does not fit.
    """
    try:
        _, parts, _ = open_run(run)
    except (RunError, CheckpointError, ConfigError) as error:
        raise ValueError(
            f"{error}; a prior of digits is trained by: gfn-train experiment=digits/prior run={run}"
        ) from error
    except (RuntimeError, KeyError) as error:
        raise ValueError(
            f"the checkpoint in {run} does not fit the network of its config.yaml: {' '.join(str(error).split())}"
        ) from error
    before = parts["env"]
    if not isinstance(before, Diffusion) or _form(before) != _form(env):
        kind = _form(before) if isinstance(before, Diffusion) else type(before).__name__
        raise ValueError(
            f"{run} was made for {kind}, and this is {_form(env)}: train a prior with this environment's data and steps"
        )
    return parts["policy"] if guidance == 0 else Guided(env, parts["policy"], guidance)


def _form(env: Diffusion) -> str:
    """What a policy must fit."""
    shape = env.target.shape
    what = f"places of {env.dim} numbers" if shape is None else f"images of {shape[0]} × {shape[1]} pixels"
    return f"{what} in {env.max_steps} steps with {env.n_labels} label{'s' * (env.n_labels > 1)}"
