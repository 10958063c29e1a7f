"""What sampling needs of an algorithm: how its batches are shaped, how it acts, and that it learns."""

from contextlib import AbstractContextManager
from typing import Protocol

from jaxtyping import Array, Float

from qcrl.envs.base import Described
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.record import Episodes, Experience, Metrics, State

Scalars = dict[str, Float[Array, ""]]


class Acts(Protocol):
    """How a trained policy acts. All is pure, and the object itself is static."""

    def initial_memory(self, env: Described) -> Memory:
        """What a policy remembers before an episode's first step."""
        ...

    def act(
        self, env: Described, policy: Tree, inputs: Inputs, memory: Memory, key: Array, deterministic: bool
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The action of a policy, and what it then remembers."""
        ...


class Learner(Acts, Protocol):
    """How an algorithm samples and learns."""

    @property
    def num_envs(self) -> int: ...

    @property
    def steps_per_env(self) -> int: ...

    @property
    def block_length(self) -> int:
        """Steps of each environment between two calls of `learn`; `steps_per_env` where it is called once."""
        ...

    def memory_interval(self, env: Described) -> int:
        """Steps of each environment after which what the policy remembers is kept; divides `block_length`."""
        ...

    def staggers(self, env: Described) -> bool:
        """Whether environments of fixed length begin their episodes at different times."""
        ...

    def precision(self) -> AbstractContextManager[object]:
        """While entered, products run as precisely as asked for."""
        ...

    def actor(self, env: Described, state: State) -> Tree:
        """What `sample` needs of the state."""
        ...

    def sample(
        self, env: Described, actor: Tree, inputs: Inputs, memory: Memory, noise: Float[Array, "*batch action"]
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The actions that standard normal noise leads to, and what is then remembered."""
        ...

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        """Learn from a block that the policy of `state` has sampled."""
        ...

    def finish(
        self, env: Described, before: State, now: State, episodes: Episodes, scalars: Scalars
    ) -> tuple[State, Metrics]:
        """The end of an iteration that has led from `before` to `now`."""
        ...
