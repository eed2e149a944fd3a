"""Reward, diversity, modes and scaffolds of molecules against trajectories, for any set of finished runs.

    python -m experiments.reports.molecules 'runs/synthesis_ftb_*/*' out=report

groups the runs by what differs in their configs besides the seed, as :mod:`experiments.reports.curves`
does, and writes ``molecules.png`` and ``molecules.md`` (the last evaluation of each run). What the metrics
are is told by :mod:`envs.synthesis.metrics`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.reports.curves import report

PANELS = {
    "eval/reward_mean": "mean reward",
    "eval/reward_top100": "mean of the 100 best of a sample",
    "eval/distance_mean": "mean Tanimoto distance in a sample",
    "eval/modes_r2_05": "modes in a sample (radius 2, similarity < 0.5)",
    "good_scaffolds": "scaffolds of modes found in training",
    "eval/kl_estimate": "KL estimate, nats",
}


def main(arguments: Sequence[str]) -> int:
    """Draw the runs that match the given patterns; exit code 1 with a message if there are none."""
    return report("molecules", arguments, PANELS, last=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
