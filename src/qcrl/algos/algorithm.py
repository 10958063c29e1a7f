"""What an algorithm is: a frozen dataclass of hyper-parameters with pure functions that start, act and learn.

To add one, derive from `Algorithm`, or from a core such as `PPO`, in a file of its own: `init` and `learn` make it.
All that algorithms share is here: the state around theirs, the freezing of a lane that breaks, what is reported.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.constraints import REPORTED_PROBABILITY, Constraint, Outage, any_over, keys
from qcrl.envs.base import Described, Environment, choices_of, images_of
from qcrl.errors import UserError
from qcrl.kinds import Json, Settings, Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.quantiles import empirical_quantile
from qcrl.sampling import device
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Episodes, Experience, Metrics, State, Window, all_finite, choose

NO_MEMORY = Memory((), ())


@dataclass(frozen=True)
class Algorithm:
    """Every field can be overridden by name, with dataclasses.replace or on the command line."""

    name: ClassVar[str] = ""
    """What `qcrl train` and `qcrl.train` call it; only algorithms that come with qcrl need one."""
    label: ClassVar[str] = ""
    """What figures call it; the class's name unless given."""
    trains_under: ClassVar[type[Constraint]] = Outage
    """The kind of constraint that it trains under. Given an outage constraint, others take over its limit."""
    also_under: ClassVar[tuple[type[Constraint], ...]] = ()
    """Other kinds that it can train under."""
    several: ClassVar[bool] = False
    """Whether it can train under several constraints that hold together."""
    draws_limits: ClassVar[bool] = False
    """Whether limit and probability of a constraint may be ranges, of which every episode draws its own."""
    discrete_actions: ClassVar[bool] = True
    """Whether it can choose among discrete actions."""
    sees_images: ClassVar[bool] = False
    """Whether it looks at images as such."""
    outages_in_window: ClassVar[int] = 2
    """How many allowed outages the recent episodes that it is judged by must hold at least."""
    presets: ClassVar[dict[str, "Algorithm"]] = {}
    """Named settings, as instances."""
    lengths: ClassVar[dict[str, int]] = {}
    """Environment steps of a training under a preset, where no other length is asked for."""

    num_envs: int = 12
    """Environments stepped side by side."""
    steps_per_env: int = 1000
    """Steps taken in each environment per iteration, which is one row of the metrics."""
    learning_rate: float = 1e-4
    """Adam's learning rate."""
    out_of_phase: bool = False
    """Environments of fixed length begin at different times, so that short iterations see every phase of an episode."""
    window: int = 100
    """Most recent episodes that metrics are taken over."""
    candidates: int = 1
    """Of so many policies of the last quarter of a training the best is kept, by fresh episodes; with 1 the last."""
    matmul_precision: Literal["float32", "tensorfloat32", "bfloat16"] = "tensorfloat32"
    """Type in which an accelerator multiplies matrices; a CPU computes in float32."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for own in ("name", "label", "presets", "lengths"):  # a child is not what its parent is called
            if own not in vars(cls):
                setattr(cls, own, "" if own in ("name", "label") else {})

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                choices = ", ".join(map(str, get_args(hint)))
                raise UserError(f"{name} is {getattr(self, name)!r}, but must be one of {choices}")
        self.require("be at least 1", lambda x: x >= 1, "num_envs", "steps_per_env", "window", "candidates")
        self.require("be greater than 0", lambda x: x > 0, "learning_rate")
        self.require("be below 2147483648", lambda x: x < 2**31, "steps_per_iteration")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                if (what := out_of_range(each)) and each != field.default:
                    raise UserError(f"{field.name} is {value}, but must {what}")
        sizes = getattr(self, "hidden_sizes", (1,))
        if not sizes or min(sizes) < 1:
            raise UserError(f"hidden_sizes is {sizes}, but must be at least one size, each from 1 on")

    def require(self, what: str, holds: Callable[[Any], bool], *names: str) -> None:
        """Raise where one of these fields does not hold."""
        for name in names:
            if not holds(getattr(self, name)):
                raise UserError(f"{name} is {getattr(self, name)}, but must {what}")

    # What an algorithm has to bring.

    def init(self, env: Described, key: Array, constraints: Sequence[Constraint]) -> State:
        """The state before the first iteration; `start` puts the shared parts around the algorithm's own."""
        raise NotImplementedError

    def actor(self, env: Described, state: State) -> Tree:
        """What `sample` needs of the state."""
        raise NotImplementedError

    def sample(
        self, env: Described, actor: Tree, inputs: Inputs, memory: Memory, noise: Float[Array, "*batch action"]
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The action that standard normal `noise` leads to, unbounded as environments clip it, and the next memory."""
        raise NotImplementedError

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        """Learn from a block that the policy of `state` has sampled. Limits are in `state.constraints`.

        `state.window` has the recent episodes: those of this block among them, where an iteration is one block.
        """
        raise NotImplementedError

    # What it may bring.

    def multiplier(self, learner: Tree) -> Float[Array, ""]:
        """The weight of the first constraint, for reports."""
        return jnp.zeros(())

    def multipliers(self, learner: Tree) -> tuple[Float[Array, ""], ...]:
        """The weights of all constraints, for reports."""
        return (self.multiplier(learner),)

    def report(self, env: Described, state: State) -> tuple[State, Scalars]:
        """What else to report at the end of an iteration."""
        return state, {}

    def policy_state(self, env: Described, state: State) -> Tree:
        """What is kept of the state for acting: `act` gets it back."""
        return self.actor(env, state)

    def initial_memory(self, env: Described) -> Memory:
        """What a policy remembers before an episode's first step."""
        return NO_MEMORY

    def act(
        self, env: Described, policy: Tree, inputs: Inputs, memory: Memory, key: Array, deterministic: bool = False
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """A trained policy's action, and the memory for its next step."""
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, inputs.previous_action.shape))
        return self.sample(env, policy, inputs, memory, noise)

    def critic(self, env: Described, policy: Tree, inputs: Inputs, memory: Memory) -> Tree:
        """What is expected of the cost to go; None where the algorithm has no view of it."""
        return None

    @property
    def needs(self) -> tuple[str, ...]:
        """What a trained policy must be told of the step before: reward, cost, both or nothing."""
        return "reward", "cost"

    def forward(self, env: Described, constraints: Sequence[Constraint]) -> Json | None:
        """How a policy acts, in words that `runs.forward` can follow without JAX; None where only JAX can."""
        return None

    def deployment(self, env: Described, constraints: Sequence[Constraint]) -> Json | None:
        """What `forward` says, unless a child acts otherwise than the class that says it."""
        order = type(self).__mro__
        home = lambda name: next((i for i, kind in enumerate(order) if name in vars(kind)), len(order))
        acting = ("sample", "act", "actor", "policy_state", "initial_memory", "see", "squash", "network")
        return self.forward(env, constraints) if home("forward") <= min(map(home, acting)) else None

    def check(self, env: Described) -> None:
        """Raise where this environment cannot be trained on."""
        if (env.discrete or choices_of(env)) and not self.discrete_actions:
            raise UserError(
                f"{type(self).__name__} cannot be trained on {env.id}, which has discrete actions, only on actions "
                "that are numbers; use outage_ppo, qcpo, ppo_lag or cvar_pg"
            )
        if images_of(env) and not self.sees_images:
            raise UserError(
                f"{type(self).__name__} cannot be trained on {env.id}, which has images among its observations; "
                "use outage_ppo, qcpo or ppo_lag"
            )
        if self.staggers(env):
            groups, rest = divmod(env.horizon, self.steps_per_env)
            if rest or self.num_envs % groups:
                raise UserError(
                    f"steps_per_env is {self.steps_per_env} and num_envs {self.num_envs}, but with out_of_phase the "
                    f"first must divide the {env.horizon} steps of an episode, and that many parts the second"
                )

    def staggers(self, env: Described) -> bool:
        """Whether environments begin their episodes at different times; those of any length do so by themselves."""
        return self.out_of_phase and env.fixed_length and self.steps_per_env < env.horizon

    def with_envs(self, count: int, given: Settings) -> Self:
        """With as many environments as there are, and about as many steps as before in a batch; `given` stays."""
        changes: Settings = {"num_envs": count}
        if "steps_per_env" not in given:
            unit = self.block_unit
            changes["steps_per_env"] = unit * max(1, round(self.steps_per_iteration / count / unit))
        return dataclasses.replace(self, **changes)

    def fewest_episodes(self, constraint: Constraint) -> int:
        """How many recent episodes it takes to steer by a constraint whose numbers are drawn."""
        return 0

    def bytes_kept(self, env: Described) -> int:
        """Bytes of a store of experience, such as a replay, per lane."""
        return 0

    # What all share.

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.steps_per_env

    @property
    def block_length(self) -> int:
        """Steps of each environment between two calls of `learn`."""
        return self.steps_per_env

    @property
    def block_unit(self) -> int:
        """Steps that `steps_per_env` must be a multiple of."""
        return 1

    def memory_interval(self, env: Described) -> int:
        """Steps of each environment after which what the policy remembers is kept."""
        return env.horizon if env.fixed_length and self.steps_per_env % env.horizon == 0 else self.block_length

    @property
    def short_products(self) -> bool:
        """Products run in bfloat16."""
        return self.matmul_precision == "bfloat16" and jax.default_backend() != "cpu"

    def precision(self) -> AbstractContextManager[object]:
        """While entered, products run as precisely as asked for."""
        return jax.default_matmul_precision("float32" if self.matmul_precision == "float32" else "tensorfloat32")

    def start(
        self,
        env: Described,
        learner: Tree,
        key: Array,
        env_key: Array,
        constraints: Sequence[Constraint],
        store: Tree = (),
    ) -> State:
        """The state before the first iteration, around what the algorithm itself begins with."""
        as_array = lambda x: jnp.asarray(x, jnp.float32)
        constraints = tuple(jax.tree.map(as_array, constraint) for constraint in constraints)
        share = constraints[0].middle.share
        return State(
            learner,
            store,
            device.begin(env, env_key, self.num_envs, self.initial_memory(env)),
            Window.init(self.window, len(env.costs), getattr(env, "draws", False)),
            key,
            iteration=jnp.full((), -device.iterations_ahead(self, env), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
            constraints=constraints,
            probability=as_array(REPORTED_PROBABILITY if share is None else share),
            learning_rate=jnp.full((), self.learning_rate, jnp.float32),
            alive=jnp.ones((), bool),
        )

    def iterate(self, env: Environment, state: State) -> tuple[State, Metrics]:
        """One iteration on the device. A state that would not be finite afterwards stays as it was."""
        return device.iterate(self, env, state)

    def finish(
        self, env: Described, before: State, now: State, episodes: Episodes, scalars: Scalars
    ) -> tuple[State, Metrics]:
        """The end of an iteration: a lane that turned non-finite is frozen as it was before."""
        now, further = self.report(env, now)
        scalars = scalars | further
        alive = before.alive & all_finite((now.learner, scalars))
        after = now._replace(iteration=before.iteration + 1)
        # What is stored is left out: to keep the old one as well would take twice the memory.
        after = choose(alive, after._replace(store=()), before._replace(store=()))
        after = after._replace(store=now.store, alive=alive)
        episodes = episodes._replace(finished=episodes.finished & alive)
        return after, Metrics(self.summary(env, after) | scalars, episodes)

    def summary(self, env: Described, state: State) -> Scalars:
        """Return and costs over the most recent episodes; NaN before the first has finished."""
        constraint, valid = state.constraints[0], state.window.recent(self.window)
        costs = state.costs_of(env, constraint)
        limit, drawn = constraint.limit, {}
        if constraint.ranged:
            now = constraint.ask((state.window.asked[:, 0], state.window.asked[:, 1]))
            allowed = jnp.broadcast_to(jnp.asarray(now.share), costs.shape)
            limit, drawn = now.limit, {"outage_allowed": jnp.mean(allowed, where=valid)}
        return {
            "iteration": state.iteration,
            "env_steps": state.env_steps,
            "episode_return": jnp.mean(state.window.return_, where=valid),
            "episode_cost": jnp.mean(costs, where=valid),
            "cost_quantile": empirical_quantile(costs, valid, 1 - state.probability),
            "outage": jnp.mean(costs > limit, where=valid),
            "multiplier": self.multiplier(state.learner),
            "alive": state.alive,
            **drawn,
            **self._of_each_cost(env, state, valid),
            **self._of_each_constraint(env, state, valid),
        }

    def _of_each_cost(self, env: Described, state: State, valid: Bool[Array, " window"]) -> Scalars:
        """Where there are several costs: what recent episodes cost of each."""
        if len(env.costs) == 1:
            return {}
        means = jnp.mean(state.window.cost, axis=0, where=valid[:, None])
        return {f"episode_cost_{name}": mean for name, mean in zip(env.costs, means)}

    def _of_each_constraint(self, env: Described, state: State, valid: Bool[Array, " window"]) -> Scalars:
        """Where several constraints hold together: what each bounds, its multiplier, and outages of any kind."""
        if len(state.constraints) == 1:
            return {}
        found: Scalars = {}
        costs = {constraint.cost: state.costs_of(env, constraint) for constraint in state.constraints}
        weights = self.multipliers(state.learner)
        for key, constraint, weight in zip(keys(state.constraints), state.constraints, weights):
            found |= {key: constraint.track(costs[constraint.cost], valid), f"multiplier_{key}": weight}
        over = any_over(state.constraints, costs)
        return found if over is None else found | {"outage_any": jnp.mean(over, where=valid)}


def out_of_range(value: object) -> str:
    """What a number must be to have a place in single precision; nothing where it has. Infinity has none."""
    if isinstance(value, int) and abs(value) >= 2**31:
        return "be below 2147483648 in size"
    if isinstance(value, float) and value != 0 and not 1e-37 <= abs(value) <= 1e38:
        return "be finite, and 0 or between 1e-37 and 1e38 in size"
    return ""


def raw_key(key: Array) -> Array:
    """A random key as the words it consists of, which checkpoints can hold."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
