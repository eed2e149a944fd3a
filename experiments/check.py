"""``gfn-check env=…``: does an environment keep its contract?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUPS = frozenset({"env", "policy", "backward"})
SETTINGS = {"n": int, "seed": int, "threads": int}


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="check")
def main(config: DictConfig) -> None:
    """Build the environment and go through every clause of the contract; exit code 1 at the first broken one."""
    import torch

    from experiments.build import make
    from gfn.check import check_environment

    plain = required(config)
    torch.set_num_threads(plain["threads"])
    torch.manual_seed(plain["seed"])
    env = make(plain["env"], {}, "env")
    policy = make(plain.get("policy"), {"env": env}, "policy")
    backward = make(plain.get("backward"), {"env": env, "policy": policy}, "backward")
    for clause in check_environment(env, policy, backward, n=plain["n"], seed=plain["seed"]):
        print(f"  ok  {clause}")
    print(f"{type(env).__name__} keeps its contract")


def required(config: DictConfig) -> dict[str, Any]:
    """What a check needs of a config, checked itself; what an environment sets for training is left out.

    Raises:
        ConfigError: with every problem.
    """
    from omegaconf import OmegaConf

    from experiments.build import checked

    ignored = {"sampler", "trainer", "evaluator"}
    used = OmegaConf.masked_copy(config, [str(key) for key in config if key not in ignored])
    return checked(used, tuple(sorted(GROUPS)), SETTINGS)


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, GROUPS)


if __name__ == "__main__":
    cli()
