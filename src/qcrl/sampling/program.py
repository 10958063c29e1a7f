"""The program that iterates all lanes of a group, wherever their environments run. Nothing above asks where that is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from numbers import Integral, Real
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from qcrl.envs.base import Described, Environment
from qcrl.envs.host.environment import HostEnv
from qcrl.errors import UserError, check_name
from qcrl.kinds import Tree
from qcrl.sampling import device, memory
from qcrl.sampling.host import HostSampler, Watch
from qcrl.sampling.learner import Learner, Scalars
from qcrl.sampling.record import Metrics, State

LANES = PartitionSpec("lanes")
"""The leading axis of every array of the state, over the local devices."""
Say = Callable[[str], None]


class Program(NamedTuple):
    """One iteration of all lanes, compiled."""

    advance: Callable[[State], tuple[State, Metrics]]
    scalars: Scalars
    """What it will report, by name."""
    waits: bool = False
    """`advance` returns when all is done; else the device works on, and what came before can be written meanwhile."""


class Workers(NamedTuple):
    """How environments that run in Python are stepped."""

    processes: int = 0
    """How many; 0 steps them in this one."""
    timeout: float = 60.0
    """Seconds after which one that does not answer ends the training."""
    on_error: str = "stop"
    """What follows where an environment breaks: stop, or restart."""


def check_workers(workers: Workers) -> None:
    """Raise where environments could not be stepped so, before one is."""
    count, timeout, _ = workers
    if not (isinstance(count, Integral) and isinstance(timeout, Real) and count >= 0 and timeout > 0):
        raise UserError(f"workers is {count!r} and step_timeout {timeout!r}, but must be from 0 on, and above 0")
    check_name("reaction to errors", workers.on_error, ("stop", "restart"))


def check_environments(learner: Learner, env: Described, lanes: int, workers: Workers) -> None:
    """Raise where there cannot be as many environments as the lanes need."""
    if isinstance(env, HostEnv):
        env.check_count(lanes * learner.num_envs, workers.processes)
    elif workers.processes:
        raise UserError(f"workers is {workers.processes}, but {env.id} is stepped on the device; leave workers out")


def mesh(env: Described, lanes: int) -> Mesh:
    """The local devices that lanes are spread over: as many as share them evenly, or one where Python steps."""
    found = jax.local_devices()
    lanes = 1 if isinstance(env, HostEnv) else lanes
    count = next(count for count in range(len(found), 0, -1) if lanes % count == 0)
    return Mesh(np.array(found[:count]), ("lanes",))


def kept_at_once(env: Described) -> int:
    """How many copies of a store of experience there are: while Python steps, that of the iteration before is kept."""
    return 2 if isinstance(env, HostEnv) else 1


def place(env: Described, state: State, lanes: int) -> State:
    """The state of all lanes on the devices that they are spread over."""
    devices = mesh(env, lanes)
    return state if devices.size == 1 else jax.device_put(state, NamedSharding(devices, LANES))


@contextmanager
def open_program(
    learner: Learner,
    env: Described,
    seeds: Sequence[int],
    state: State,
    first: int = 0,
    workers: Workers = Workers(),  # noqa: B008
    say: Say = lambda text: None,
    watch: Watch = Watch(),  # noqa: B008
) -> Iterator[Program]:
    """Compiled for lanes of these seeds in this state, `first` of whose iterations are done."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    if isinstance(env, HostEnv):
        count = len(seeds) * learner.num_envs
        restart = workers.on_error == "restart"
        with closing(env.fleet(count, workers.processes, workers.timeout, say, restart)) as fleet:
            sampler = HostSampler(learner, env, fleet, seeds, first, watch, fleet.restarts if restart else None)
            yield Program(sampler.iterate, sampler.compile(shapes), waits=True)
        return
    devices = mesh(env, len(seeds))
    iterate = on_devices(learner, env, devices)  # type: ignore[arg-type]
    traced = jax.jit(iterate, donate_argnums=0).trace(state)
    memory.require_memory(memory.peak(traced.jaxpr.jaxpr), "values of one iteration", devices.size)
    yield Program(traced.lower().compile(), traced.out_info[1].scalars)


def on_devices(learner: Learner, env: Environment, devices: Mesh) -> Callable[[State], tuple[State, Metrics]]:
    """One iteration of all lanes. Each device iterates its share of them, and none waits for another."""
    iterate = jax.vmap(lambda lane: device.iterate(learner, env, lane))
    if devices.size == 1:
        return iterate
    return jax.shard_map(iterate, mesh=devices, in_specs=LANES, out_specs=LANES, check_vma=False)


def trace(learner: Learner, env: Described, lane: State) -> Tree:
    """The steps of one lane's iteration, untouched by a compiler; None where Python takes some of them."""
    if isinstance(env, HostEnv):
        return None
    return jax.make_jaxpr(lambda lane: device.iterate(learner, env, lane))(lane).jaxpr  # type: ignore[arg-type]
