"""Requests by HTTP with answers in JSON, each bounded in time, and repeated where that may help."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from gfn.distributed import SearchError

TRIES = 6  # at a request to which the server answers with an error of its own
LONGEST_PAUSE = 5.0  # seconds between two of them


class ServerError(SearchError):
    """A server refuses a request, or its answer cannot be used.

    Attributes:
        status: of the answer; None if it was not that.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LostError(ServerError):
    """No answer in time, or no connection, or one error of the server's own after another: it may do so later."""


class Connections:
    """Connections to one address, a new one for each request; may be used from several threads.

    Requests that find nobody are repeated until their time is over, those that are answered with an error of the
    server's own (5xx) a few times, others not at all.

    Args:
        url: as in ``http://localhost:8000``.
        key: environment variable whose value, if it has one, is sent along as a bearer token.

    Attributes:
        retried: requests that were repeated.

    Raises:
        ValueError: if the address is none.
    """

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected an address as in http://localhost:8000, got {url!r}")
        self.url, self.key, self.retried = url.rstrip("/"), key, 0
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._open: set[socket.socket] = set()
        self._lock, self._closed = threading.Lock(), threading.Event()

    def close(self) -> None:
        """Break off all requests; those that come later are tried once."""
        self._closed.set()
        with self._lock:
            for wire in self._open:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None, limit: float, tries: int | None = None
    ) -> Any:
        """The answer to a request, within ``limit`` seconds.

        Raises:
            LostError: if there is none.
            ServerError: if it is an error.
        """
        deadline, place = time.monotonic() + limit, f"{method} {self.url}{path}"
        sent = None if body is None else json.dumps(body).encode()
        for attempt in count(1):
            status = None
            try:
                status, received = self._once(method, path, sent, deadline)
            except (OSError, HTTPException) as error:
                late = isinstance(error, TimeoutError) and time.monotonic() >= deadline
                problem = f"no answer within {limit:.3g} s" if late else f"{type(error).__name__}: {error}"
                most = tries or math.inf
            else:
                if status == 200:
                    return _read(received)
                problem, most = f"status {status}, {_message(received)}", tries or TRIES
                if status < 500:
                    raise ServerError(f"{place}: {problem}", status)
            pause = min(0.1 * 2 ** (attempt - 1), LONGEST_PAUSE)
            if attempt >= most or time.monotonic() + pause >= deadline or self._closed.wait(pause):
                raise LostError(f"{place}: {problem}{f', {attempt} times' if attempt > 1 else ''}", status)
            with self._lock:
                self.retried += 1
        raise AssertionError("the loop ends by itself")

    def _once(self, method: str, path: str, body: bytes | None, deadline: float) -> tuple[int, bytes]:
        """Status and content of one answer."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key):
            headers["Authorization"] = f"Bearer {key}"
        connection = self._kind(self._host, self._port, timeout=_left(deadline))
        try:
            connection.connect()
            wire: socket.socket = connection.sock
            with self._lock:
                self._open.add(wire)
            try:
                connection.request(method, self._prefix + path, body, headers)
                response = connection.getresponse()
                received = bytearray()
                while chunk := response.read1(1 << 16):
                    received += chunk
                    wire.settimeout(_left(deadline))  # which holds for one read each
                if response.length:
                    raise ConnectionError(f"the answer breaks off {response.length} bytes before its end")
                return response.status, bytes(received)
            finally:
                with self._lock:
                    self._open.discard(wire)
        finally:
            connection.close()


def _left(deadline: float) -> float:
    """Seconds to a deadline, which are some."""
    return max(deadline - time.monotonic(), 1e-3)


def _read(received: bytes) -> Any:
    """JSON, or text where it is none: some answers are."""
    try:
        return json.loads(received)
    except ValueError:
        return received.decode(errors="replace")


def _message(received: bytes) -> str:
    """What an answer says is wrong."""
    answer = _read(received)
    for key in ("error", "message", "detail"):
        answer = answer.get(key, answer) if isinstance(answer, dict) else answer
    return " ".join(str(answer).split())[:500] or "nothing said"
