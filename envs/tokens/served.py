"""The engine whose completions come from a vLLM server, for language models that are trained by adapters."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs.tokens.adapters import Adapters
from envs.tokens.connections import LostError
from envs.tokens.environment import Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.requests import Requests, temperature_of
from envs.tokens.server import Server
from gfn.distributed import Hub, Searcher, SearchError
from gfn.distributed.hub import Weights
from gfn.exploration import Exploration, NoExploration
from gfn.training import never

INSTEAD = "or use sampler/engine=ray, whose searchers sample as this process does"
GREETING = 30.0  # seconds a server has to say what it serves


class Served:
    """Groups of completions from a vLLM server, some at once, while the trainer works.

    After every update the adapters are saved and loaded by the server, as ``policy-v…``; those of versions that no
    request uses any more are removed. Prompts are those of other engines, but a server draws by numbers of its own, and
    batches as requests come: no two runs are equal bit for bit.

    ``behaviour_log_prob`` is what the server says, whose number type and kernels differ from the trainer's, so that
    the ratio of the policy to it is not 1 even for fresh completions. Importance weights want it so, since that is
    the distribution drawn from; losses of trajectory balance score anew and never see it. Rewards are computed in this
    process, on a copy of the environment.

    Args:
        model: name of the base model on the server.
        directory: folder for adapters, of this run alone, which the server sees under the same path.
        url: of the server.
        requests: groups that are asked for at once.
        time_limit: seconds for one group, or for loading adapters.
        timeout: seconds without any group after which training stops.
        stop: asked while the trainer waits for a batch, as by :class:`gfn.distributed.Ray`.

    Raises:
        ValueError: if a number is out of range, or the address is none.
    """

    def __init__(
        self,
        model: str,
        directory: str | Path,
        url: str = "http://localhost:8000",
        requests: int = 8,
        time_limit: float = 600.0,
        timeout: float = 1800.0,
        stop: Callable[[], bool] = never,
    ) -> None:
        if requests < 1 or time_limit <= 0 or timeout <= 0:
            raise ValueError(
                f"Served: needs requests >= 1, time_limit > 0 and timeout > 0, got {requests=} {time_limit=} {timeout=}"
            )
        self.model, self.directory, self.url = model, Path(directory).expanduser().resolve(), url
        self.requests, self.time_limit, self.timeout, self.stop = requests, time_limit, timeout, stop
        Server(url)  # refuses what is no address
        self._running: Requests | None = None

    def start(self, hub: Hub, searcher: Searcher[Any]) -> None:
        env, policy = searcher.env, searcher.policy
        if not isinstance(env, Tokens) or not isinstance(policy, LanguageModel):
            raise SearchError(
                f"Served: vLLM serves completions by a language model, got {type(env).__name__} and "
                f"{type(policy).__name__}; use env=problems, {INSTEAD}"
            )
        if not hasattr(policy.model, "peft_config"):
            raise SearchError(
                f"Served: only adapters can be sent to vLLM, and this model trains all of its weights; set "
                f"policy.lora_rank above 0, {INSTEAD}"
            )
        temperature_of(policy, searcher.exploration, 0)
        server = Server(self.url)
        self._require(server, env, policy, searcher.exploration)
        adapters = Adapters(server, policy.model, self.directory, self.time_limit)
        running = Requests(hub, searcher, copy.deepcopy(env).to("cpu"), policy, adapters, self.requests)
        self._running, self._finish = running, weakref.finalize(self, running.close)
        running.start()

    def _require(self, server: Server, env: Tokens, policy: LanguageModel, exploration: Exploration) -> None:
        """Refuse a server that is not there, serves another model, or tells other probabilities than are needed.

        Raises:
            SearchError: naming what to start it with.
        """
        try:
            cards = server.models(min(GREETING, self.time_limit))
        except LostError as error:
            raise SearchError(
                f"{error}; start a server with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora`, "
                "and tell where it is by sampler.engine.url"
            ) from error
        bases = {name: card for name, card in cards.items() if not card.adapter}
        if self.model not in bases:
            raise SearchError(
                f"Served: {self.url} serves {', '.join(sorted(bases)) or 'nothing'}, and not {self.model}; start it "
                "with the model that is trained, and give the name it has there by sampler.engine.model"
            )
        longest, context = max(map(len, env.task.prompts)) + env.max_steps, bases[self.model].context
        if context is not None and context < longest:
            raise SearchError(
                f"Served: prompts and completions have up to {longest} tokens, and the server takes {context}; start "
                f"it with --max-model-len {longest}"
            )
        plain = isinstance(exploration, NoExploration) and policy.temperature == 1 and env.min_tokens == 0
        if not plain and not server.tells_what_is_drawn_from(self.model, env.task.prompts[0], self.time_limit):
            raise SearchError(
                f"Served: {self.url} tells log-probabilities of the network alone, without temperature and "
                "env.min_tokens; start it with --logprobs-mode processed_logprobs"
            )

    def publish(self, version: int) -> Weights:
        return self._now.published(version)

    def gather(self, n: int) -> None:
        self._now.gather(n, self.timeout, self.stop)

    def settings(self) -> dict[str, float]:
        """Shares of time for which the trainer waited and requests were idle, and how often the server failed."""
        now = self._now
        return {
            "waited": now.waited,
            "idle": now.idle,
            "requests_retried": float(now.adapters.server.retried),
            "requests_lost": float(now.lost),
            "adapters_reloaded": float(now.adapters.reloaded),
        }

    def close(self) -> None:
        if self._running is not None:
            self._finish()
            self._running = None

    @property
    def _now(self) -> Requests:
        if self._running is None:
            raise SearchError("the requests have been closed; call the sampler, which starts them again")
        return self._running
