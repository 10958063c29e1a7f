"""Names for what has no better type: trees of arrays, what JSON holds, and objects that other libraries make."""

from typing import Any

Tree = Any
"""A pytree of JAX, whose structure is its owner's."""
Json = dict[str, Any]
"""An object as JSON reads and writes it."""
Settings = dict[str, Any]
"""Values by name, of any type: hyper-parameters, options, keyword arguments."""
Number = Any
"""One number, an array of them, or a range of either, (lowest, highest)."""
GymEnv = Any
"""An environment with Gymnasium's methods, which need not be a gymnasium.Env."""
GymSpace = Any
"""One of Gymnasium's spaces, which are imported only where they are needed."""
