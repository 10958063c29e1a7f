"""Where an iteration's time goes: by stage, from the profiler's events, and how near its products come to the peak."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from qcrl.algos.algorithm import Algorithm
from qcrl.constraints import Constraint
from qcrl.envs import make
from qcrl.kinds import Tree
from qcrl.runs.lane import Lane
from qcrl.sampling.program import trace
from qcrl.sampling.record import Metrics, State
from qcrl.training.sinks.tables import Tables

STAGES = ("resets", "rollout", "advantages", "update")
"""The named scopes of an iteration; all else is `other`: statistics, the multiplier, what is reported."""
CONTAINERS = re.compile(r"(while|call|conditional|ThunkExecutor|Threadpool|end: )")
"""Events that only contain others."""
Advance = Callable[[State], tuple[State, Metrics]]


def print_profile(algorithm: Algorithm, env_id: str, constraint: Constraint, seeds: int) -> None:
    """Print the shares of one iteration's stages, and the rate of its products."""
    env = make(env_id)
    init = jax.vmap(lambda seed: algorithm.init(env, jax.random.key(seed), [constraint]))
    state = jax.jit(lambda seeds: jax.tree.map(jnp.copy, init(seeds)))(jnp.arange(seeds))
    lowered = jax.jit(jax.vmap(lambda lane: algorithm.iterate(env, lane))).lower(state)
    # In a CUDA graph the profiler cannot tell what a kernel belongs to.
    apart: dict[str, str | bool] | None = (
        {"xla_gpu_enable_command_buffer": ""} if jax.default_backend() == "gpu" else None
    )
    advance = lowered.compile(compiler_options=apart)
    jax.block_until_ready(advance(state))
    begun = time.perf_counter()
    _, metrics = jax.block_until_ready(advance(state))
    seconds = time.perf_counter() - begun
    spent = stages(advance, state, scopes(advance.as_text() or ""))
    total = sum(spent.values())
    print(f"\nWhere an iteration of {seconds:.3f} s goes, seeds in one program: {seeds}")
    for name in (*STAGES, "other"):
        if spent[name]:
            print(f"  {name:10} {spent[name] / total:6.1%}")
    lanes = [Lane(seed, (constraint,), constraint.share or 0.1) for seed in range(seeds)]
    print(f"  logging    {logging_seconds(lanes, metrics):.4f} s on the host, while the device goes on")
    work = seeds * products(trace(algorithm, env, jax.tree.map(lambda x: x[0], state)))
    rate, peak = work / seconds, peak_rate(algorithm)
    print(
        f"Products: {work / 1e12:.3g} TFLOP, {rate / 1e12:.3g} TFLOP/s over the whole iteration, {rate / peak:.1%} of "
        f"the {peak / 1e12:.3g} that one large product reaches here"
    )


def scopes(program: str) -> dict[str, str]:
    """The stage of every instruction of a compiled program, by its name."""
    found = {}
    for name, op_name in re.findall(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?op_name="([^"]*)"', program, re.M):
        parts = re.split(r"[/()]", op_name)
        found[_plain(name)] = next((stage for stage in STAGES if stage in parts), "other")
    return found


def stages(advance: Advance, state: State, stage_of: dict[str, str]) -> dict[str, float]:
    """Nanoseconds that instructions of every stage ran in one iteration."""
    spent: dict[str, float] = dict.fromkeys((*STAGES, "other"), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(advance(state))
        for name, duration in _events(next(Path(folder).rglob("*.xplane.pb"))):
            if not CONTAINERS.match(name):
                spent[stage_of.get(_plain(name), "other")] += duration
    return spent


def _events(path: Path) -> Iterator[tuple[str, float]]:
    """Instructions that ran, and how long: those of a GPU's streams, or those of the threads of a CPU."""
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    on_gpu = [plane for plane in planes if "GPU" in plane.name]
    for plane in on_gpu or planes:
        for line in plane.lines:
            if line.name.startswith("Stream" if on_gpu else "tf_XLA"):
                for event in line.events:
                    yield str(dict(event.stats).get("hlo_op", event.name)) if on_gpu else event.name, event.duration_ns


def _plain(name: str) -> str:
    return re.sub(r"[.\-]", "_", name)


def products(jaxpr: Jaxpr) -> float:
    """Floating-point operations of all matrix products of a traced program."""
    total = 0.0
    for step in jaxpr.eqns:
        if step.primitive.name == "dot_general":
            (contracted, _), _ = step.params["dimension_numbers"]
            both: Tree = [*step.invars[:1], *step.outvars]
            left, out = (np.array(each.aval.shape) for each in both)
            total += 2.0 * np.prod(out) * np.prod(left[list(contracted)])
        inner = sum(products(each) for each in _inner(step.params))
        total += step.params.get("length", 1) * inner if step.primitive.name == "scan" else inner
    return total


def _inner(params: dict[str, Tree]) -> Iterator[Jaxpr]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            inner: Tree = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def peak_rate(algorithm: Algorithm, size: int | None = None) -> float:
    """Floating-point operations a second of one large product, in the type that the algorithm's run in."""
    size = size or (2048 if jax.default_backend() == "cpu" else 8192)
    kind = jnp.bfloat16 if algorithm.short_products else jnp.float32
    with algorithm.precision():
        multiply = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((size, size), kind)).compile()
    x = jnp.ones((size, size), kind)
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        jax.block_until_ready(multiply(x))
        taken.append(time.perf_counter() - begun)
    return 2.0 * size**3 / min(taken)


def logging_seconds(lanes: list[Lane], metrics: Metrics) -> float:
    """Seconds that it takes to fetch and write what an iteration reports."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Tables(Path(folder), lanes, metrics.scalars, {}, 1)) as tables,
    ):
        begun = time.perf_counter()
        scalars, episodes = jax.device_get(metrics)
        tables.log(scalars, episodes, 1.0)
        return time.perf_counter() - begun
