"""Between a host environment's spaces and the learner's arrays: observations are flattened, actions are mapped."""

import json
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from qcrl.envs.host import products
from qcrl.envs.host.actions import Actions
from qcrl.envs.host.products import Product
from qcrl.envs.host.values import shown
from qcrl.errors import UserError
from qcrl.kinds import GymSpace, Json, Tree
from qcrl.nets.images import Image, is_image


def read_actions(description: Json) -> Actions | Product:
    """What `as_dict` described."""
    return Product(**description) if "tree" in description else Actions.from_dict(description)


def describe_actions(space: GymSpace, env_id: str) -> tuple[Actions | Product, int]:
    """The mapping for an action space, and the size of the policy's actions."""
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete):
        return Actions(True, start=int(space.start)), int(space.n)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and space.low.size:
        low, high = _bounds(space.low), _bounds(space.high)
        return Actions(False, tuple(space.shape), str(space.dtype), 0, low, high), space.low.size
    if (tree := products.describe(space)) is not None:
        product = Product(json.dumps(tree))
        return product, product.size
    raise UserError(
        f"the action space of {env_id} is {space}, but only Box of floating-point numbers, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict and Tuple of them can be trained; wrap it with gymnasium.wrappers.TransformAction"
    )


def random_actions(
    actions: Actions | Product, size: int, rng: np.random.Generator, masks: Float[np.ndarray, "env option"]
) -> np.ndarray:
    """One for each row of masks, which may be empty."""
    noise = rng.standard_normal((len(masks), size), np.float32)
    if masks.shape[1]:
        noise[:, size - masks.shape[1] :][masks == 0] = -np.inf
    return actions.to_env(noise)


def check_observations(space: GymSpace, env_id: str) -> int:
    """The size of flattened observations."""
    from gymnasium.spaces import flatdim

    if not _is_flat(space):
        raise UserError(
            f"the observation space of {env_id} is {space}, but only Box, Discrete, MultiDiscrete, MultiBinary, and "
            "Dict or Tuple of them can be trained; wrap the environment with gymnasium.wrappers.TransformObservation"
        )
    return flatdim(space)


def find_images(space: GymSpace, start: int = 0) -> tuple[Image, ...]:
    """Where images lie in flattened observations: arrays of bytes that are large enough."""
    from gymnasium.spaces import Box, Dict, Tuple, flatdim

    if isinstance(space, Box):
        return (Image(start, tuple(space.shape)),) if is_image(space.shape, space.dtype) else ()
    found: tuple[Image, ...] = ()
    if isinstance(space, Dict | Tuple):
        for part in space.values() if isinstance(space, Dict) else space:
            found += find_images(part, start)
            start += flatdim(part)
    return found


def _is_flat(space: GymSpace) -> bool:
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

    if isinstance(space, Dict | Tuple):
        return all(map(_is_flat, space.values() if isinstance(space, Dict) else space))
    return isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete)


def flatten(space: GymSpace, obs: Tree) -> Float[np.ndarray, " obs"]:
    """One observation as the policy sees it: numbers in a row, discrete values one-hot, dictionaries in key order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return _numbers(space, obs)
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or not set(space.spaces) <= set(obs):
            raise UserError(f"the observation is {shown(obs)}, but must have the keys {', '.join(space.spaces)}")
        return _row([flatten(part, obs[key]) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise UserError(f"the observation is {shown(obs)}, but must have {len(space.spaces)} parts")
        return _row([flatten(part, each) for part, each in zip(space.spaces, obs)])
    if not space.contains(obs):
        raise UserError(f"the observation is {shown(obs)}, which is not in {space}")
    return np.asarray(spaces.flatten(space, obs), np.float32)


def _numbers(space: GymSpace, obs: Tree) -> Float[np.ndarray, " obs"]:
    try:
        array = np.asarray(obs)
        if array.dtype.kind not in "biuf":
            raise ValueError
    except Exception:  # also of objects that fail when asked to be an array
        raise UserError(f"the observation is {shown(obs)}, but must be numbers of shape {space.shape}") from None
    if array.shape != space.shape:
        raise UserError(f"the observation has the shape {array.shape}, but its space says {space.shape}")
    with np.errstate(over="ignore"):
        single = array.astype(np.float32, copy=False).ravel()
    if not np.isfinite(single).all():
        raise UserError(f"the observation has {single[~np.isfinite(single)][0]} in it, but must be finite; mend it")
    return single


def _row(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _bounds(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(float(x) if np.isfinite(x) else None for x in values.ravel())
