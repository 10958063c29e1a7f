"""Trees of arrays in safetensors files, written so that a reader finds either a whole file or none."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from qcrl.errors import UserError
from qcrl.kinds import Json, Tree
from qcrl.runs import shapes
from qcrl.runs.files import Torn, checksum, read_arrays, read_info

__all__ = ["Torn", "load_checkpoint", "read_info", "read_tree", "save_checkpoint", "write_file", "write_tree"]
KEPT = 2
"""Checkpoints that stay; older ones are deleted."""


def sync(path: Path) -> None:
    """Force what was written to a file or folder onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file in one indivisible step that survives a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def to_numpy(tree: Tree) -> Tree:
    """All arrays of a tree in NumPy; random keys as the words they consist of."""
    return jax.device_get(jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree))


def write_tree(path: Path, tree: Tree, info: Json) -> None:
    """Save all arrays of a tree, named by their place in it, and a JSON-able `info` beside them."""
    leaves = jax.tree_util.tree_flatten_with_path(to_numpy(tree))[0]
    # In C order: safetensors writes others wrongly. Not copied where they are: a replay may be most of the memory.
    _write(path, {_name(place): np.asarray(leaf, order="C") for place, leaf in leaves}, info)


def adopt(source: Path, path: Path, further: Json) -> None:
    """Move a file to another place, with further info beside its arrays."""
    info, tensors = read_arrays(source)
    _write(path, tensors, info | further)
    if source != path:
        source.unlink()


def _write(path: Path, tensors: dict[str, np.ndarray], info: Json) -> None:
    metadata = {"info": info, "checksum": checksum(info, tensors)}
    write_file(path, save(tensors, {"qcrl": json.dumps(metadata)}))


def read_tree(path: Path, like: Tree) -> Tree:
    """The tree saved in `path`, in the structure of `like` (arrays or their shapes)."""
    _, tensors = read_arrays(path)

    def restore(place: Any, leaf: Any) -> Tree:
        tensor = tensors.get(_name(place))
        if _is_key(leaf) and tensor is not None:
            return jax.random.wrap_key_data(jax.numpy.asarray(tensor))
        if tensor is None or (tensor.shape, tensor.dtype) != (leaf.shape, leaf.dtype):
            raise Torn(f"{path} holds no {_name(place)} of shape {leaf.shape} and type {leaf.dtype}")
        return tensor

    return jax.tree_util.tree_map_with_path(restore, like)


def is_whole(path: Path, info: Json) -> bool:
    """Whether this file was saved with this info, and is as it was then; or was chosen in the place of such a one."""
    try:
        stored = read_arrays(path)[0]
    except Torn:
        return False
    if stored.pop("chosen_after", None) == info["iteration"]:
        stored |= {name: info[name] for name in ("iteration", "env_steps")}
    return bool(stored == json.loads(json.dumps(info)))


def save_checkpoint(folder: Path, iteration: int, state: Tree, info: Json) -> None:
    """Add a checkpoint and drop all but the newest few."""
    folder.mkdir(exist_ok=True)
    write_tree(folder / f"{iteration:09d}.safetensors", state, {"iteration": iteration, **info})
    for path in _newest_first(folder)[KEPT:]:
        path.unlink(missing_ok=True)


def load_checkpoint(
    folder: Path, like: Tree, say: Callable[[str], None] = lambda text: None
) -> tuple[Tree, Json] | None:
    """State and info of the newest complete checkpoint; torn ones are passed over. None where there is none at all."""
    reason = None
    for path in _newest_first(folder):
        try:
            tree, info = read_tree(path, like), read_info(path)
            shapes.check(info, shapes.Checkpoint, path, "it is passed over")
            return tree, info
        except (Torn, UserError) as torn:
            reason = torn
            say(f"warning: passed over a checkpoint ({torn})")
    if reason is not None:
        raise UserError(f"no checkpoint in {folder} can be read ({reason}); train again in another folder")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.safetensors"), reverse=True)


def _name(place: Any) -> str:
    return jax.tree_util.keystr(place, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
