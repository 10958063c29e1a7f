"""Single calls of a policy: how long one takes in NumPy, JAX and ONNX, and how long its file takes to load."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

from qcrl.algos import hyperparameters, outage_ppo
from qcrl.bench import count, hardware, print_table
from qcrl.constraints import Outage
from qcrl.envs.base import Description
from qcrl.envs.host.spaces import Actions
from qcrl.runs import checkpoints
from qcrl.runs.lane import make_lane
from qcrl.runs.policy import Policy


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=count, default=20_000, help="timed calls of each (default: 20000)")
    parser.add_argument("--sizes", type=count, nargs="+", default=[64, 64], help="of the layers (default: 64 64)")
    parser.add_argument("--lstm-size", type=int, default=0, help="of an LSTM behind them (default: 0, none)")


def run(args: argparse.Namespace) -> None:
    print(f"{hardware()}; 24 observed numbers, 2 actions within bounds, layers {args.sizes}, LSTM {args.lstm_size}\n")
    with TemporaryDirectory() as folder:
        path = untrained(Path(folder) / "policy.safetensors", tuple(args.sizes), args.lstm_size)
        rows = []
        for backend in ("numpy", "jax"):
            begun = time.perf_counter()
            policy = Policy.load(path, backend)
            loaded = time.perf_counter() - begun
            calls = args.calls if backend == "numpy" else args.calls // 10
            rows.append([backend, f"{1e3 * loaded:.1f}", *_quantiles(_loop(policy), calls)])
    print_table(["backend", "ms to load", "us a call, median", "p99", "p99.9"], rows)


def untrained(path: Path, sizes: tuple[int, ...], lstm_size: int = 0) -> Path:
    """A policy file as training writes it, of a network that has not learned anything."""
    bounds = (-2.0, -2.0), (2.0, 2.0)
    env = Description("bench", 24, 2, 1000, False, actions=Actions(False, (2,), "float32", 0, *bounds))
    algorithm = replace(outage_ppo.fast, hidden_sizes=sizes, lstm_size=lstm_size, out_of_phase=False)
    lane = make_lane(0, (Outage(15.0, 0.1),), Outage(15.0, 0.1))
    state = algorithm.policy_state(env, algorithm.init(env, jax.random.key(0), lane.constraints))
    info = {
        **lane.as_dict(),
        "algorithm": hyperparameters.to_json(algorithm),
        "environment": env.as_dict(),
        "forward": algorithm.deployment(env, lane.constraints),
    }
    checkpoints.write_tree(path, state, info)
    return path


def _loop(policy: Policy) -> Callable[[], None]:
    """One step of a loop as users write it."""
    rng, carry = np.random.default_rng(0), policy.initial()
    obs = rng.normal(size=(256, 24)).astype(np.float32)
    step = 0

    def call() -> None:
        nonlocal carry, step
        _, carry = policy(obs[step % 256], carry, reward=0.1, cost=0.0, rng=rng)
        step += 1

    return call


def _quantiles(call: Callable[[], None], calls: int) -> list[str]:
    for _ in range(100):
        call()
    taken = np.empty(calls)
    for index in range(calls):
        begun = time.perf_counter()
        call()
        taken[index] = time.perf_counter() - begun
    return [f"{1e6 * value:.1f}" for value in np.quantile(taken, [0.5, 0.99, 0.999])]
