"""Playing: policies walked through whole, fresh episodes, a fixed number of them, wherever the environment runs."""

from collections.abc import Sequence
from contextlib import closing

from qcrl.envs.base import Described, Environment
from qcrl.envs.host.environment import HostEnv, is_vector
from qcrl.errors import UserError
from qcrl.sampling.play.device import play_on_device
from qcrl.sampling.play.host import Crew, play_on_host
from qcrl.sampling.play.mujoco import play_in_mujoco
from qcrl.sampling.play.seeds import Played, Progress, Seed, Totals

ENGINES = ("jax", "mujoco")


def engine_of(env: Described, engine: str = "jax") -> str:
    """The engine that runs it: the one asked for, or where it runs in Python, "host"."""
    if engine not in (*ENGINES, "host"):
        raise UserError(f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}")
    if isinstance(env, HostEnv) and engine == "mujoco":
        raise UserError(f"{env.id} runs in Python as it is, not on the engine mujoco; leave the engine out")
    return "host" if isinstance(env, HostEnv) else engine


def can_play(env: Described) -> bool:
    """Whether there can be whole, fresh episodes: not in a vector environment, which begins them by itself."""
    return not (isinstance(env, HostEnv) and is_vector(env.only))


def play(
    jobs: Sequence[tuple[Played, Seed]],
    env: Described,
    episodes: int,
    engine: str = "jax",
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    processes: int | None = None,
    first: int = 0,
    batch: int | None = None,
    crew: Crew | None = None,
) -> list[Totals]:
    """Exactly `episodes` of every policy, each with a seed of its own, from number `first` on, to their end.

    batch: episodes that one compiled program runs, where one serves several calls.
    crew: what steps an environment in Python; without one, `processes` that end with the call.
    """
    match engine_of(env, engine):
        case "mujoco":
            return play_in_mujoco(jobs, env, episodes, deterministic, progress, processes, first)
        case "host":
            host: HostEnv = env  # type: ignore[assignment]
            numbers = range(first, first + episodes)
            with closing(Crew(processes or 0)) as hired:
                given = deterministic, progress, crew or hired
                return [play_on_host(policy, host, numbers, seed, *given) for policy, seed in jobs]
        case _:
            own: Environment = env  # type: ignore[assignment]
            return play_on_device(jobs, own, episodes, deterministic, progress, first=first, batch=batch)
