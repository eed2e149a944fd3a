"""What the console commands share: overrides as people type them, and errors as people read them."""

from __future__ import annotations

import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra.errors import MissingConfigException

COMPLETION = frozenset({"-sc", "--shell-completion"})  # what follows is for Hydra
PREFIXES = ("+", "~", "-", "hydra.")
ORDINARY = re.compile(r"(?!hydra\b)(\+|\+\+|~)?(?!hydra\b)[A-Za-z_][\w./@:-]*")  # keys of overrides of runs


def settable(argument: str, groups: frozenset[str]) -> str:
    """A ``key=value`` override in the form that also sets a key the config does not have yet.

    A misspelt key then reaches our own check, which knows all keys and tells every problem at once,
    and an environment of your own takes its options without a plus sign.
    """
    key, equals, _ = argument.partition("=")
    if not equals or argument.startswith(PREFIXES) or "/" in key or "@" in key or key in groups:
        return argument
    return "++" + argument


def quoted(argument: str) -> str:
    """The same override with its value in quotes where Hydra could not read it: a path with an umlaut, say."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = argument.partition("=")
    if not equals or argument.startswith("-") or value.startswith(("'", '"', "[", "{")):
        return argument
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        text = value.replace("'", "\\'")
        return f"{key}='{text}'"
    return argument


def stored_overrides(arguments: list[str]) -> list[str]:
    """The overrides that a named run directory was started with, to go on as it began.

    Raises:
        ValueError: if one is none of a run but an option of the command or of Hydra, which could call anything.
    """
    for argument in arguments:
        key, _, value = argument.partition("=")
        stored = Path(value) / "overrides.txt"
        if key == "run" and stored.is_file():
            lines = [line for line in stored.read_text(encoding="utf-8").splitlines() if line]
            for line in lines:
                name, _, chosen = line.partition("=")
                if not ORDINARY.fullmatch(name) or ("." not in name and ".." in chosen):  # a file outside configs/
                    raise ValueError(f"{stored}: {line!r} is no override that gfn-train writes there; remove the line")
            return lines
    return []


def run_command(main: Callable[[], None], groups: frozenset[str], resumes: bool = False) -> None:
    """Run a Hydra main; exit code 2 for a config that does not fit, 1 for a run that fails, no traceback for either.

    Args:
        main: the decorated main function.
        groups: names of config groups, whose choice is left to Hydra.
        resumes: put the overrides of an existing run directory before the given ones.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that Hydra leaves exceptions to us
    sys.path.append(os.getcwd())  # behind the installed packages: files here can be used, not shadow others
    given = sys.argv[1:]
    try:
        stored = stored_overrides(given) if resumes else []
    except (OSError, ValueError) as error:
        print(f"{_program()}: {error}", file=sys.stderr)
        sys.exit(1)
    if os.environ.get("RANK", "0") != "0":  # one process of several that torchrun started: the first keeps the files
        given = [*given, "hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none"]
    if not COMPLETION.intersection(given):
        sys.argv[1:] = [quoted(settable(argument, groups)) for argument in stored + given]
    try:
        main()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            traceback.print_exc()
            sys.exit(1)
        print(f"{_program()}: {_message(error)}", file=sys.stderr)
        sys.exit(code)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # All is written and the group is left; threads of gloo that outlive it abort an ordinary exit now and then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _program() -> str:
    return sys.argv[0].rsplit("/", 1)[-1]


def _unknown_option(error: MissingConfigException) -> str:
    """What there is to choose from in a group of the config, the nearest first."""
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or ())
    if not option or not options:
        return str(error).strip()
    near = difflib.get_close_matches(option, options, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{group}: there is no {option!r}{hint} (to choose from: {', '.join(options)})"


def _message(error: Exception) -> str:
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException):
        return _unknown_option(error)
    cause = error.__cause__
    text = "\n".join([str(error).strip(), *getattr(error, "__notes__", ())])
    if isinstance(error, OSError):
        return f"{text}; check that this path can be written, or choose another run directory (run=…)"
    return f"{text}\n{str(cause).strip()}" if cause is not None and type(error).__module__.startswith("hydra") else text


def _exit_code(error: Exception) -> int | None:
    """2 for a mistake in the config, 1 for a failure that explains itself, None for one that does not."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from experiments.schema import ConfigError

    if isinstance(error, (ConfigError, HydraException, OmegaConfBaseException)):
        return 2
    from experiments.lock import OccupiedError
    from experiments.runs import RunError
    from gfn.check import ContractError
    from gfn.checkpoint import CheckpointError
    from gfn.distributed import SearchError
    from gfn.distributions import NoActionError
    from gfn.environment import RewardError
    from gfn.sampling import EndlessTrajectoryError
    from gfn.training import NonFiniteError

    of_the_run = (RunError, OccupiedError, ContractError, CheckpointError, NonFiniteError, SearchError, OSError)
    of_the_environment = (RewardError, EndlessTrajectoryError, NoActionError)
    return 1 if isinstance(error, of_the_run + of_the_environment) else None
