"""Searchers that sample all the time, and one trainer that learns all the time."""

from gfn.distributed.asynchronous import Asynchronous
from gfn.distributed.engine import Engine, InProcess
from gfn.distributed.hub import Hub, Interrupted, SearchError
from gfn.distributed.ledger import Ledger
from gfn.distributed.ray_engine import Ray
from gfn.distributed.searcher import Searcher

__all__ = ["Asynchronous", "Engine", "Hub", "InProcess", "Interrupted", "Ledger", "Ray", "SearchError", "Searcher"]
