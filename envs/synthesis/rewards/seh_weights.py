"""Reading a list of arrays from a pickle without running anything that is written in it."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 1 << 26  # bytes after decompression; the published file has 2.8 million


def read_arrays(path: Path, sha256: str | None) -> list[NDArray[np.float32]]:
    """The float32 arrays of a gzipped pickle that holds one list of them.

    Only the three names by which numpy pickles an array are understood, and they stand for code of
    this module; a pickle that asks for anything else is refused.

    Args:
        path: of the file.
        sha256: of its bytes, in hexadecimal; None takes any file.

    Raises:
        FileNotFoundError: if there is no file.
        ValueError: if the checksum differs, or the file is anything but such a pickle.
    """
    digest = checksum(path)
    if sha256 is not None and digest != sha256.lower():
        raise ValueError(f"expected a file with SHA-256 {sha256}, got {digest}; if you trust it, give sha256={digest}")
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes after decompression")
        arrays = _ArrayReader(io.BytesIO(content)).load()
        if not isinstance(arrays, list) or not all(isinstance(array, _Array) for array in arrays):
            raise ValueError("it holds something else")
        return [array.value() for array in arrays]
    except (
        pickle.UnpicklingError,
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
        RecursionError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"expected a gzipped pickle of one list of float32 arrays: {error}") from error


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Array:
    """Stands for a numpy array while it is read."""

    def __init__(self) -> None:
        self._value: NDArray[np.float32] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Float32) or not isinstance(content, bytes) or not all(type(n) is int for n in shape):
            raise ValueError("an array is not made of plain float32 numbers")
        if any(n < 0 for n in shape) or math.prod(shape) * 4 != len(content):
            raise ValueError(f"an array of shape {list(shape)} has {len(content)} bytes")
        order = "F" if by_columns else "C"
        self._value = np.frombuffer(content, dtype="<f4").reshape(shape, order=order).copy("C")

    def value(self) -> NDArray[np.float32]:
        """What was read."""
        if self._value is None:
            raise ValueError("an array has no content")
        return self._value


class _Float32:
    """Stands for numpy's float32, little-endian, which is all that is read."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code != "f4":
            raise ValueError(f"an array has the type {code!r}")

    def __setstate__(self, state: Any) -> None:
        if state[1] != "<":
            raise ValueError(f"an array has the byte order {state[1]!r}")


class _ArrayType:
    """Stands for the class numpy.ndarray, which is named and never called."""


def _new_array(kind: Any, *_: Any) -> _Array:
    if kind is not _ArrayType:
        raise ValueError("an array is of no known class")
    return _Array()


class _ArrayReader(pickle.Unpickler):
    """An unpickler that knows nothing but the parts of an array."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = {
            "numpy.core.multiarray._reconstruct": _new_array,
            "numpy._core.multiarray._reconstruct": _new_array,
            "numpy.ndarray": _ArrayType,
            "numpy.dtype": _Float32,
        }
        wanted = f"{module_name}.{global_name}"
        if wanted not in known:
            raise pickle.UnpicklingError(f"it asks for {wanted}, which no array needs")
        return known[wanted]
