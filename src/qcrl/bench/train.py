"""Training speed: environment steps per second of whole iterations, for each preset; PyTorch's if it is installed."""

import argparse
import dataclasses
import importlib.util
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import algorithms, build, find
from qcrl.algos.sac import SAC
from qcrl.bench import add_changes, changes, count, hardware, print_row, print_table
from qcrl.bench.profile import print_profile
from qcrl.constraints import Outage
from qcrl.envs import ENVIRONMENT_IDS, make
from qcrl.sampling import compilation_cache
from qcrl.training.checks import trained_under

FULL_LENGTH = 5_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algo", choices=list(algorithms()), default="qcpo", help="(default: qcpo)")
    parser.add_argument("--env", choices=ENVIRONMENT_IDS, default="DynamicEnv-v0", help="(default: DynamicEnv-v0)")
    parser.add_argument("--presets", nargs="+", default=["paper", "fast"], help="(default: paper fast)")
    counts = "(default: 1 on a CPU, 10 on an accelerator, with a replay also 40)"
    parser.add_argument("--seeds", type=count, nargs="+", help=f"how many are trained in one program {counts}")
    parser.add_argument("--iterations", type=count, default=3, help="timed iterations per preset (default: 3)")
    add_changes(parser)
    parser.add_argument(
        "--profile", action="store_true", help="also say where an iteration's time goes, and how near the peak it comes"
    )
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")


def run(args: argparse.Namespace) -> None:
    compilation_cache.use_cache()
    on_cpu = jax.default_backend() == "cpu"
    replays = issubclass(find(args.algo), SAC)
    counts = args.seeds or ([1] if on_cpu else [10, 40] if replays else [10])
    chosen = {name: hyperparameters.replace(build(args.algo, name), changes(args)) for name in args.presets}
    print(f"{hardware()}; {args.algo} on {args.env}; the median of {args.iterations} iterations\n")
    header = [
        "preset",
        "seeds in one program",
        "s per iteration",
        "steps/s, all seeds",
        "s for 5M steps of each",
        "compiled in s",
        "peak memory so far",
    ]
    print_table(header, [])
    speeds: dict[str, float] = {}
    for name, seeds in itertools.product(chosen, counts):
        algorithm = chosen[name]
        if isinstance(algorithm, SAC) and on_cpu:  # shorter iterations of the same work, which else take minutes
            algorithm = dataclasses.replace(algorithm, steps_per_env=5 * algorithm.block_length, start_steps=0)
        seconds, compiling = iteration_seconds(algorithm, args.env, seeds, args.iterations)
        speed = seeds * algorithm.steps_per_iteration / seconds
        speeds.setdefault(name, speed)
        full = seconds * FULL_LENGTH / algorithm.steps_per_iteration
        print_row([name, seeds, f"{seconds:.3f}", f"{speed:,.0f}", f"{full:,.0f}", f"{compiling:.0f}", _peak_memory()])
        if args.profile:
            print_profile(algorithm, args.env, trained_under(algorithm, Outage(15.0, 0.1)), seeds)
    if {"paper", "fast"} <= speeds.keys():
        print(f"\nfast / paper: {speeds['fast'] / speeds['paper']:.1f}")
    if args.no_torch or args.algo != "qcpo" or "paper" not in args.presets or args.set or not on_cpu:
        return
    if not importlib.util.find_spec("torch"):
        print("\nPyTorch is not installed: not compared.")
        return
    compare_with_torch(chosen["paper"], args.env, args.iterations)


def iteration_seconds(algorithm: Algorithm, env_id: str, seeds: int, iterations: int) -> tuple[float, float]:
    """Seconds of one iteration of all seeds, rollout and update, and those of compiling it."""
    start = time.perf_counter()
    work = iteration(algorithm, env_id, seeds)
    compiling = time.perf_counter() - start
    return _median_seconds([work], iterations)[0], compiling


def iteration(algorithm: Algorithm, env_id: str, seeds: int) -> Callable[[], object]:
    """A function that does one iteration of all seeds, compiled."""
    env = make(env_id)
    constraint = trained_under(algorithm, Outage(15.0, 0.1))
    init = jax.vmap(lambda seed: algorithm.init(env, jax.random.key(seed), [constraint]))
    state = jax.jit(lambda seeds: jax.tree.map(jnp.copy, init(seeds)))(jnp.arange(seeds))
    iterate = jax.vmap(lambda state: algorithm.iterate(env, state))
    advance = jax.jit(iterate, donate_argnums=0).lower(state).compile()

    def work() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(advance(state))

    return work


def compare_with_torch(algorithm: Any, env_id: str, rounds: int) -> None:
    """Print the seconds of an update here and in PyTorch."""
    # Here the update is part of an iteration: one with all epochs less one with a single epoch, per epoch between them.
    epochs = algorithm.epochs
    ours = [iteration(dataclasses.replace(algorithm, epochs=passes), env_id, 1) for passes in (epochs, 1)]
    longer, shorter = _median_seconds(ours, rounds)
    from qcrl.bench.torch_update import torch_update  # only now, so that its threads are not in the way before

    theirs = [torch_update(algorithm, make(env_id), stepwise) for stepwise in (True, False)]
    stepwise, at_once = _median_seconds(theirs, rounds)
    here = (longer - shorter) * epochs / (epochs - 1)
    print(f"\nUpdate of the paper preset ({epochs} epochs over {algorithm.steps_per_iteration:,} steps): {here:.1f} s")
    for seconds, how in (
        (stepwise, "the memory emptied wherever an episode begins, as here"),
        (at_once, "nn.LSTM called once for whole chunks, within which no episode may begin"),
    ):
        print(f"in PyTorch, {how}: {seconds:.1f} s, {seconds / here:.2f} times as long")


def _median_seconds(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of each, timed in turns, after one that does not count: the first iteration may lack gradient steps."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(1 + rounds):
        for work, taken in zip(works, times):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in times]


def _peak_memory() -> str:
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"{peak / 2**30:.1f} GiB"
