"""Files of arrays as they are read: whole, unchanged, and without JAX."""

import contextlib
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from qcrl.errors import UserError
from qcrl.kinds import Json


class Torn(Exception):
    """A file that was not written completely, or was changed since."""


def plain(path: Path) -> Path:
    """The path, unless a device or a pipe is there: to read it might never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a plain file")
    return path


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """For one process at a time; the others are refused."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(refusal) from None
    finally:
        os.close(descriptor)


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_info(path: Path) -> Json:
    """What was saved beside the arrays."""
    return _read(path, arrays=False)[0]["info"]


def read_arrays(path: Path) -> tuple[Json, dict[str, np.ndarray]]:
    """What was saved beside the arrays, and the arrays by name."""
    metadata, tensors = _read(path, arrays=True)
    if metadata["checksum"] != checksum(metadata["info"], tensors):
        raise Torn(f"{path} does not match its checksum")
    return metadata["info"], tensors


def checksum(info: Json, tensors: dict[str, np.ndarray]) -> str:
    """Of all that a file holds."""
    total = zlib.crc32(json.dumps(info, sort_keys=True).encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(np.uint8).data, zlib.crc32(name.encode(), total))
    return f"{total:08x}"


def _read(path: Path, arrays: bool) -> tuple[Json, dict[str, np.ndarray]]:
    try:
        with safe_open(plain(path), framework="numpy") as file:
            names = file.keys() if arrays else ()
            metadata = json.loads(file.metadata()["qcrl"])
            if not isinstance(metadata["info"], dict) or not isinstance(metadata["checksum"], str):
                raise ValueError("it does not say what it holds")
            return metadata, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Torn(f"{path} is not a complete file of qcrl: {error}") from error
