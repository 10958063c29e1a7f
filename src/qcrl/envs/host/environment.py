"""Environments that run in Python: a Gymnasium id, a factory, an instance or a vector environment. Finds the cost."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import HOST_PRESET
from qcrl.envs.host import boundary, costs, elsewhere
from qcrl.envs.host.actions import Actions
from qcrl.envs.host.costs import Costs, CostSource
from qcrl.envs.host.fleet import Fleet, Local
from qcrl.envs.host.products import Product
from qcrl.envs.host.restarting import Restarting
from qcrl.envs.host.seeds import REPEATS, SeededMaker, obeying
from qcrl.envs.host.spaces import check_observations, describe_actions, find_images, random_actions
from qcrl.envs.host.vector import Vector
from qcrl.envs.host.workers import Workers
from qcrl.errors import UserError
from qcrl.kinds import GymEnv, GymSpace
from qcrl.named import import_named, load, path_of, trust
from qcrl.nets.images import Image
from qcrl.output import console

FOREVER = 1e6
"""Seconds that stand for more: no operating system waits much longer at a time."""
ASSUMED_HORIZON = 1000
"""Where an environment states no time limit.

From it follows how many fresh episodes a verdict is based on, and what the limit is worth to WCSAC's critics, which
discount.
"""


@dataclass(frozen=True, eq=False)
class HostEnv:
    """What training and evaluation need to know about a host environment, and how to get more of it."""

    id: str
    make: Callable[[], GymEnv] | None
    """Makes one environment; None where only one object exists, `only`."""
    only: GymEnv
    observation_space: GymSpace
    observation_size: int
    action_size: int
    actions: Actions | Product
    source: CostSource
    found: bool
    """The cost was found, not given."""
    horizon: int
    timed: bool
    """The horizon is the environment's own time limit, not assumed."""
    masks: int = 0
    """How many options may be masked; that many observed numbers, the last ones, say which."""
    draws: bool = False
    """Every episode draws its limit and probability."""
    images: tuple[Image, ...] = ()
    """Those among the observations."""

    fixed_length = False
    suited_preset = HOST_PRESET
    description = "an environment that runs in Python"

    @property
    def costs(self) -> tuple[str, ...]:
        return self.source.names

    @property
    def cost_source(self) -> str | dict[str, str]:
        return self.source.as_given

    @property
    def discrete(self) -> bool:
        return self.actions.discrete

    @property
    def num_envs(self) -> int | None:
        """How many there are; None where there can be any number."""
        return None if self.make is not None else getattr(self.only, "num_envs", 1)

    def fleet(
        self,
        count: int,
        workers: int = 0,
        timeout: float = 60.0,
        say: Callable[[str], None] = lambda text: None,
        restart: bool = False,
    ) -> Fleet:
        """So many environments, in this process or in worker processes; with `restart` made anew where they break."""
        timeout = min(timeout, FOREVER)
        self.check_count(count, workers)
        if restart and self.make is None:
            raise UserError(f"{self.id} was given as an object, which cannot be made anew; give the function instead")
        if self.make is not None:
            if workers:
                return Workers(self.make, self.source, self.id, count, workers, timeout, say, self.masks, restart)
            if restart:
                return Restarting(self.make, count, self.source, self.id, say=say, masks=self.masks)
            made = [boundary.make(self.make, self.id) for _ in range(count)]
            return Local(made, self.source, self.id, say=say, masks=self.masks)
        if is_vector(self.only):
            return Vector(self.only, self.source, self.id, timeout)
        return _Kept([self.only], self.source, self.id, masks=self.masks)

    def drawing(self) -> HostEnv:
        """The same environment, whose episodes each draw a limit and a probability."""
        return replace(self, draws=True)

    def check_count(self, count: int, workers: int) -> None:
        """Whether there can be so many environments."""
        if self.make is None and (count != self.num_envs or workers):
            raise UserError(
                f"{count} environments in {workers} worker processes are needed, but {self.id} was given as an object "
                f"that holds {self.num_envs}; give the function that makes it instead"
            )

    def __str__(self) -> str:
        how = "found automatically" if self.found else "as given"
        pictures = ", images among them" if self.images else ""
        deaf = "; it ignores seeds, so its generators are given them" if isinstance(self.make, SeededMaker) else ""
        return (
            f"{self.id}: the cost is {self.source} ({how}); {self.actions}; {self.observation_size} observed numbers"
            f"{pictures}; episodes are taken to last {self.horizon:,} steps at most{deaf}"
        )


class _Kept(Local):
    """The user's own instance, which stays open."""

    def close(self) -> None:
        pass


def open_host(env: str | GymEnv, cost: Costs | CostSource = None) -> HostEnv:
    """The host environment that `env` means, tried for one step."""
    source = costs.parse(cost)
    if is_vector(env):
        return _open_vector(env, source)
    make: Callable[[], GymEnv] | None
    if isinstance(env, str):
        env_id, make = env, maker(env)
    elif not isinstance(env, type) and hasattr(env, "step"):
        env_id, make = _name(env), None
    elif callable(env):
        env_id, make = path_of(env), env
        trust(env_id.partition(":")[0])
    else:
        raise UserError(
            f"env is {env!r}, but must be an id, a function that makes an environment, or an environment; "
            "see `qcrl envs`"
        )
    only: GymEnv = env if make is None else boundary.make(make, env_id)
    if make is not None and is_vector(only):
        raise UserError(f"{env_id} makes a vector environment; give the vector environment, or make single ones")
    env_id = env_id or _name(only)
    with boundary.guarded(env_id):
        space, action_space = getattr(only, "observation_space", None), getattr(only, "action_space", None)
    actions, action_size = describe_actions(action_space, env_id)
    size = check_observations(space, env_id)
    found = source is None
    masks = find_masks(only, env_id)
    allowed = lambda row: random_actions(actions, action_size, np.random.default_rng(0), row[None, -masks:])[0]
    source = _try(only, source, env_id, allowed if masks else None, may_mask=options_of(actions, action_size) > 0)
    if make is not None:
        make, repeats = obeying(make, Local([only], source, env_id, masks=masks).envs[0])
        boundary.close(only, env_id)
        if repeats:  # said here, because trainings and certificates are worth nothing alike
            console().print(f"warning: {env_id}: {REPEATS}", highlight=False, markup=False, soft_wrap=True)
    kept = None if make else only
    limit = time_limit(only)
    seen = space, size + masks, action_size, actions
    return HostEnv(env_id, make, kept, *seen, source, found, *limit, masks, images=find_images(space))


def options_of(actions: Actions | Product, size: int) -> int:
    """How many there are that might be masked."""
    return sum(actions.choices) or size * actions.discrete


def find_masks(env: GymEnv, env_id: str) -> int:
    """How many options may be masked: all, where the environment says which, else 0."""
    actions, size = describe_actions(env.action_space, env_id)
    options = options_of(actions, size)
    if not options:
        return 0
    info = boundary.Single(env, CostSource(), env_id).raw_reset(0)
    with boundary.guarded(env_id, "has an action mask at which was raised"):
        return 0 if boundary.read_mask(env, info, actions) is None else options


def time_limit(env: GymEnv) -> tuple[int, bool]:
    """Steps of the longest episode, and whether the environment says so."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return (limit, True) if isinstance(limit, int) and limit > 0 else (ASSUMED_HORIZON, False)


def is_vector(env: GymEnv) -> bool:
    return hasattr(env, "single_action_space") and hasattr(env, "num_envs")


def _open_vector(env: GymEnv, source: CostSource | None) -> HostEnv:
    env_id = _name(env)
    actions, action_size = describe_actions(env.single_action_space, env_id)
    size = check_observations(env.single_observation_space, env_id)
    if isinstance(actions, Product) and actions.nested:
        raise UserError(f"{env_id} takes dictionaries or tuples; give the function that makes one environment instead")
    trial = Vector(env, source, env_id)
    trial.reset([0] * env.num_envs)
    trial.step(_sample(env, env_id, seed=0))
    assert trial.source is not None
    space = env.single_observation_space
    seen = space, size, action_size, actions
    found = trial.source, source is None, *time_limit(env)
    return HostEnv(env_id, None, env, *seen, *found, images=find_images(space))


def _try(
    env: GymEnv,
    source: CostSource | None,
    env_id: str,
    allowed: Callable[[np.ndarray], np.ndarray] | None,
    may_mask: bool = True,
) -> CostSource:
    """Where the cost is, from one step with a random action; a cost that is not where it should be is an error now.

    `allowed` gives an action for an action mask.
    """
    trial = Local([env], source or CostSource(), env_id).envs[0]
    actions, info = describe_actions(env.action_space, env_id)[0], trial.raw_reset(0)
    trial.flat(trial.obs, info)
    if allowed is not None:
        mask = boundary.read_mask(env, info, actions)
        assert mask is not None
        action = allowed(mask)
    else:
        action = _sample(env, env_id, seed=0)
    if source is None:
        seen = trial.raw_step(action)
        source = costs.find(seen.info, seen.values, env_id)
        trial = Local([env], source, env_id).envs[0]
        trial.reset(0)
        action = _sample(env, env_id) if allowed is None else action
    trial.step(action)
    if may_mask and allowed is None:
        with boundary.guarded(env_id, "has an action mask at which was raised"):
            late = boundary.read_mask(env, trial.info, actions) is not None
        if late:
            raise UserError(f"{env_id} gives an action mask with a step, but none with reset; give it with both")
    return source


def _sample(env: GymEnv, env_id: str, seed: int | None = None) -> np.ndarray:
    """A random action; with a seed, the first of a row that is always the same."""
    with boundary.guarded(env_id, "has an action space that raised"):
        if seed is not None:
            env.action_space.seed(seed)
        return env.action_space.sample()


def maker(text: str) -> Callable[[], GymEnv]:
    """Gymnasium's id, with or without the module that registers it, module:function, or one in another Python."""
    if text.startswith(elsewhere.PREFIX):
        trust(text.rpartition(":")[0])
        return elsewhere.Maker(text)
    module, _, name = text.rpartition(":")
    if module.endswith(".py"):
        raise UserError(f"env is {text!r}, but a module goes by its name; did you mean {module[:-3]}:{name}?")
    if module and name.isidentifier():
        return load(text, "env")
    if module:
        import_named(module, "env", text)
    try:
        import gymnasium

        gymnasium.spec(name)
    except Exception as error:  # Gymnasium has several kinds of its own
        near = difflib.get_close_matches(text, [each for each in ENVIRONMENT_IDS if each.startswith(text)], 1, 0)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"there is no environment {text!r} ({' '.join(str(error).split())}); {hint}the known ones are "
            f"{', '.join(ENVIRONMENT_IDS)}, and Gymnasium's ids, and module:function"
        ) from None
    return _GymMaker(text)


@dataclass(frozen=True)
class _GymMaker:
    id: str

    def __call__(self, render_mode: str | None = None) -> GymEnv:
        import gymnasium

        if render_mode is None:  # not every environment takes one
            return gymnasium.make(self.id)
        return gymnasium.make(self.id, render_mode=render_mode)


def _name(env: GymEnv) -> str:
    """A name that is no id: what was trained on was an object, and only its owner can bring it back."""
    spec = getattr(env, "spec", None)
    return f"{spec.id if spec is not None else type(getattr(env, 'unwrapped', env)).__name__}-custom"
