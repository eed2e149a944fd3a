"""A server that answers as vLLM does, by a model of a few thousand weights and the adapters it was told to load.

Requests and answers are those of vLLM 0.33; it samples by reading every text anew, with nothing of ours. It can be
told to fail in many ways.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

Trouble = int | str | Callable[[Any], Any]  # a status, "hang", "cut" (no answer), or another answer


class FakeVLLM:
    """Serves at :attr:`url` from the moment it is made until it is closed.

    Attributes:
        adapters: those it has loaded, by name, with their folders.
        asked: every request, with its content.
        allows: whether adapters may be loaded at run time.
        processed: whether log-probabilities are those of the distribution drawn from.
        keys: what requests were authorised by.
    """

    def __init__(self, base: Any, name: str = "base", context: int = 64, eos: int = 2) -> None:
        self.base, self.name, self.context, self.eos = base.eval(), name, context, eos
        self.adapters: dict[str, str] = {}
        self.asked: list[tuple[str, Any]] = []
        self.allows, self.processed, self.keys = True, True, set[str | None]()
        self._models: dict[str, Any] = {}
        self._troubles: list[tuple[str, Trouble]] = []
        self._lock, self._released = threading.Lock(), threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def trouble(self, path: str, *what: Trouble) -> None:
        """Meet the next requests to a path with these, one each."""
        self._troubles += [(path, one) for one in what]

    def restart(self) -> None:
        """Forget all adapters."""
        with self._lock:
            self.adapters.clear()

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in list(self.asked))

    def close(self) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: Any) -> tuple[int, Any] | None:
        """Status and content; None to say nothing and leave."""
        self.asked.append((path, body))
        place = next((i for i, (at, _) in enumerate(self._troubles) if at == path), None)
        trouble = None if place is None else self._troubles.pop(place)[1]
        if trouble == "hang":
            self._released.wait(60)
        if isinstance(trouble, int):
            return trouble, {"error": {"message": "out of order", "type": "Trouble", "code": trouble}}
        with self._lock:
            status, said = self._right(path, body)
        if trouble == "cut":
            return None
        return (status, trouble(copy.deepcopy(said))) if callable(trouble) else (status, said)

    def _right(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            base = {"id": self.name, "root": "/models/base", "parent": None, "max_model_len": self.context}
            rest = [{"id": name, "root": root, "parent": self.name} for name, root in self.adapters.items()]
            return 200, {"object": "list", "data": [base, *rest]}
        if path == "/v1/load_lora_adapter" and self.allows:
            return self._load(body["lora_name"], body["lora_path"])
        if path == "/v1/unload_lora_adapter" and self.allows:
            if self.adapters.pop(body["lora_name"], None) is None:
                return _error(404, "The lora adapter cannot be found.")
            return 200, "Success"
        if path == "/v1/completions":
            if body["model"] not in (self.name, *self.adapters):
                return _error(404, f"The model `{body['model']}` does not exist.")
            return 200, self._complete(body)
        return 404, {"detail": "Not Found"}

    def _load(self, name: str, path: str) -> tuple[int, Any]:
        if name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(path) / "adapter_config.json").exists():
            return _error(404, f"Loading lora {name} failed: No adapter found for {path}")
        self._models[name] = PeftModel.from_pretrained(copy.deepcopy(self.base), path).eval()
        self.adapters[name] = path
        return 200, "Success"

    @torch.no_grad()
    def _complete(self, body: Any) -> Any:
        model = self.base if body["model"] == self.name else self._models[body["model"]]
        choices = [_Choice(body["seed"] + i) for i in range(body.get("n", 1))]
        ends = set(body.get("stop_token_ids", ())) | (set() if body["ignore_eos"] else {self.eos})
        while alive := [c for c in choices if not c.ids or (c.ids[-1] not in ends and len(c.ids) < body["max_tokens"])]:
            raw = model(input_ids=torch.tensor([body["prompt"] + c.ids for c in alive])).logits[:, -1].double()
            logits = raw.clone()
            if len(alive[0].ids) < body.get("min_tokens", 0):
                logits[:, [*ends, self.eos]] = -torch.inf
            logits /= body["temperature"]
            scores = (logits if self.processed else raw).log_softmax(-1).clamp_min(-9999.0)
            for c, chances, row in zip(alive, logits.softmax(-1), scores, strict=True):
                c.ids.append(int(torch.multinomial(chances, 1, generator=c.generator)))
                c.told.append(float(row[c.ids[-1]]))
                c.top.append(_top(row, c.ids[-1], body))
        return {"choices": [c.said(i, ends, body) for i, c in enumerate(choices)]}


class _Choice:
    """A completion that is being written."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.ids, self.told, self.top = list[int](), list[float](), list[dict[str, float]]()

    def said(self, index: int, ends: set[int], body: Any) -> Any:
        stopped = self.ids[-1] in ends
        return {
            "index": index,
            "text": "",
            "token_ids": self.ids if body.get("return_token_ids") else None,
            "logprobs": {"token_logprobs": self.told, "top_logprobs": self.top},
            "finish_reason": "stop" if stopped else "length",
            "stop_reason": self.ids[-1] if stopped else None,
        }


def _top(scores: Tensor, sampled: int, body: Any) -> dict[str, float]:
    wanted = body.get("logprob_token_ids") or scores.topk(body["logprobs"]).indices.tolist()
    return {f"token_id:{token}": float(scores[token]) for token in [sampled, *wanted]}


def _error(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "Error", "code": status}}


def _handler(server: FakeVLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _reply(self, body: Any) -> None:
            server.keys.add(self.headers["Authorization"])
            reply = server.answer(self.path, body)
            if reply is None:
                return
            status, said = reply
            sent = (said if isinstance(said, str) else json.dumps(said)).encode()
            with suppress(OSError):  # nobody waits for it any more
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
