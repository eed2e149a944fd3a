"""What a synthesis policy samples if its training cuts corners, computed exactly.

    python -m experiments.reports.shortcuts out=report reactions=2,3

lists every molecule and labelled edge of a small library and writes ``shortcuts.md`` and ``shortcuts.png``.

Trajectory balance trained to zero loss gives every trajectory τ to a molecule x the probability
R(x) Π P_B / Z, where the product runs over whatever numbers the code uses as P_B along τ. So x is sampled in
proportion to R(x)·B(x) with B(x) = Σ_τ Π P_B over all labelled trajectories to x, which is R(x)/Z if B = 1
everywhere: if P_B is a distribution over the labelled edges into every state. Each shortcut is an assignment of
such numbers to edges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.errors import HydraException
from torch import Tensor

from envs.synthesis.environment import Synthesis
from experiments.build import checked, make
from experiments.reports import weights
from experiments.reports.arguments import composed, numbers, options
from experiments.reports.curves import COLOURS
from experiments.reports.weights import Listed
from gfn import exact
from gfn.environment import TooManyStatesError

SYNFLOWNET = "SynFlowNet (Cretu et al. 2024, arXiv:2405.01155)"
RGFN = "RGFN (Koziarski et al. 2024, arXiv:2406.08506)"
RXNFLOW = "RxnFlow (Seo et al. 2024, arXiv:2410.04542)"


@dataclass(frozen=True)
class Shortcut:
    """A way of training.

    Attributes:
        name: of the row and the bar.
        origin: who does so.
        weights: log of what stands for P_B on each edge, float64 ``[E]``.
    """

    name: str
    origin: str
    weights: Callable[[Listed], Tensor]

    @property
    def meaning(self) -> str:
        """What is done, in a sentence."""
        return (self.weights.__doc__ or "").strip()


SHORTCUTS = (
    Shortcut("labelled edges", "this package", weights.labelled_edges),
    Shortcut("(molecule, depth) as the end", f"terminal states of {RGFN}", weights.depth_in_the_end),
    Shortcut("1 / distinct parents", "counting in a multigraph as in a simple graph", weights.distinct_parents),
    Shortcut(
        "1 / templates with an edge",
        "the next, if its masks left the true ones alone",
        weights.used_templates,
    ),
    Shortcut("1 / templates that match", f"template-level uniform P_B of {SYNFLOWNET}", weights.matching_templates),
    Shortcut("first product only", f"released code of {SYNFLOWNET} and {RXNFLOW}", weights.first_product),
    Shortcut("last reaction dropped", f"released sampler of {SYNFLOWNET}", weights.last_dropped),
    Shortcut("routes as states", "a tree of routes with P_B = 1", weights.routes),
)


@dataclass(frozen=True)
class Result:
    """What zero loss leads to.

    Attributes:
        shortcut: the way of training.
        l1: Σ_x |p(x) − R(x)/Z|, from 0 to 2.
        missing: share of the molecules that are never sampled.
        l1_found: the same distance, with Z of those alone that are.
        low, high: range of B(x) over these.
    """

    shortcut: Shortcut
    l1: float
    missing: float
    l1_found: float
    low: float
    high: float


def measured(listed: Listed, shortcut: Shortcut) -> Result:
    """The distribution over molecules that a shortcut converges to, compared with the target."""
    graph = listed.graph
    log_b = exact.forward_sum(graph, shortcut.weights(listed), torch.zeros(1))[graph.terminal]
    p, found = (log_b + graph.log_reward).softmax(0), log_b.isfinite()
    among_found = graph.log_reward.masked_fill(~found, -torch.inf).softmax(0)
    b = log_b[found].exp()
    return Result(
        shortcut,
        l1=float((p - graph.log_target.exp()).abs().sum()),
        missing=float((~found).double().mean()),
        l1_found=float((p - among_found).abs().sum()),
        low=float(b.min()),
        high=float(b.max()),
    )


def listed_for(overrides: Sequence[str], reactions: int) -> Listed:
    """The library of ``experiment=synthesis/tiny``, changed by overrides, up to a number of reactions.

    Raises:
        ConfigError: if the config does not fit.
        TooManyStatesError: if there are too many molecules to list.
    """
    given = ["experiment=synthesis/tiny", *overrides, f"env.max_reactions={reactions}"]
    env: Synthesis = make(checked(composed(given))["env"], {}, "env")
    return Listed(env, exact.state_graph(env))


def table(libraries: Sequence[Listed], results: Sequence[Sequence[Result]]) -> str:
    """Markdown: a row for each shortcut and library."""
    sizes = "; ".join(f"{_molecules(listed)} and {len(listed.graph.source)} edges" for listed in libraries)
    lines = [
        "What trajectory balance converges to if trained to zero loss, exactly: p(x) ∝ R(x)·B(x) with B(x) = Σ_τ Π P_B",
        "over all labelled trajectories τ to a molecule x; B = 1 where P_B is a distribution over the edges into every",
        f"state. Here there are {sizes}.",
        "",
        "| training | reactions | L1 to R/Z | molecules missing | L1 among the others | B(x) | what it is | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in zip(*results, strict=True):
        for listed, result in zip(libraries, row, strict=True):
            cells = [
                result.shortcut.name,
                f"≤ {listed.env.max_reactions}",
                f"{result.l1:.4f}",
                f"{100 * result.missing:.1f} %",
                f"{result.l1_found:.4f}",
                f"{result.low:.3g} … {result.high:.3g}",
                result.shortcut.meaning,
                result.shortcut.origin,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _molecules(listed: Listed) -> str:
    return f"up to {listed.env.max_reactions} reactions: {len(listed.graph.terminal)} molecules"


def draw(libraries: Sequence[Listed], results: Sequence[Sequence[Result]], path: Path) -> None:
    """The distance of each shortcut from the target as a bar, libraries side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    height = 0.8 / len(libraries)
    figure, axis = plt.subplots(figsize=(8, 1.6 + 0.25 * len(SHORTCUTS) * len(libraries)), layout="constrained")
    for i, (listed, some) in enumerate(zip(libraries, results, strict=True)):
        places = [place + (i + 0.5) * height - 0.4 for place in range(len(some))]
        bars = axis.barh(places, [r.l1 for r in some], 0.9 * height, color=COLOURS[i], label=_molecules(listed))
        axis.bar_label(bars, fmt="%.3f", padding=3, fontsize="small")
    axis.set_yticks(range(len(SHORTCUTS)), [shortcut.name for shortcut in SHORTCUTS])
    axis.invert_yaxis()
    axis.set(xlabel="L1 distance of what is sampled from R(x)/Z (0: equal, 2: disjoint)", xlim=(0, 2.1))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper right")
    figure.suptitle("Trajectory balance trained to zero loss, exactly", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str]) -> int:
    """Write table and figure; exit code 2 with a message for options that do not fit."""
    try:
        given, overrides = options(arguments, {"out": ".", "reactions": "2"})
        libraries = [listed_for(overrides, n) for n in numbers(given["reactions"], "reactions", 2)]
    except (ValueError, HydraException, TooManyStatesError) as error:
        print(f"shortcuts: {error}", file=sys.stderr)
        return 2
    results = [[measured(listed, shortcut) for shortcut in SHORTCUTS] for listed in libraries]
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    draw(libraries, results, out / "shortcuts.png")
    text = table(libraries, results)
    (out / "shortcuts.md").write_text(text, encoding="utf-8")
    print(text, end="")
    print(f"written to {out / 'shortcuts.png'} and {out / 'shortcuts.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
