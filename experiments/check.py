"""``gfn-check env=…``: does an environment keep its contract?"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from omegaconf import OmegaConf

    from experiments.build import checked, make
    from gfn.check import check_environment

    used = OmegaConf.masked_copy(config, [*sorted(GROUPS), *SETTINGS])
    plain = checked(used, tuple(sorted(GROUPS)), SETTINGS)
    torch.set_num_threads(plain["threads"])
    torch.manual_seed(plain["seed"])
    env = make(plain["env"], {}, "env")
    policy = make(plain.get("policy"), {"env": env}, "policy")
    backward = make(plain.get("backward"), {"env": env, "policy": policy}, "backward")
    for clause in check_environment(env, policy, backward, n=plain["n"], seed=plain["seed"]):
        print(f"  ok  {clause}")
    print(f"{type(env).__name__} keeps its contract")


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, GROUPS)


if __name__ == "__main__":
    cli()
