"""A small run with policies, an evaluation and certificates, made once for the tests that read run folders."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from qcrl.constraints import Outage
from qcrl.evaluation.certificate import Certificate
from qcrl.training.loop import train

SMALL = {"num_envs": 4, "steps_per_env": 16, "chunk_length": 8, "hidden_sizes": (8,), "lstm_size": 0, "minibatches": 1}
LIMIT = 15.0


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two seeds and two probabilities of the two-path example, barely trained."""
    out = tmp_path_factory.mktemp("runs") / "two <paths>"
    constraints = [Outage(LIMIT, probability) for probability in (0.1, 0.2)]
    return train("qcpo", "TwoPathEnv-v0", constraints, steps=1280, seeds=2, preset="fast", out=out, **SMALL)


@pytest.fixture
def evaluated(trained, tmp_path):
    """A copy of it with results whose numbers are made up, except that they agree with each other."""
    import shutil

    from qcrl.runs.folder import load

    run = load(shutil.copytree(trained.path, tmp_path / "evaluated"))
    rng = np.random.default_rng(1)
    rows, lanes = [], []
    for lane in run.lanes:
        costs = 8 * rng.weibull(0.9, 50)
        rows += [(*lane.columns.values(), i, 1.0 + i / 100, cost) for i, cost in enumerate(costs.tolist())]
        lanes.append({"seed": lane.seed, **summary(lane.probability, lane.limit, costs)})
    pooled = []
    for probability in (0.1, 0.2):
        costs = np.array([row[5] for row in rows if row[1] == probability])
        pooled.append({"seeds": 2, **summary(probability, LIMIT, costs)})
    result = {"engine": "jax", "deterministic": False, "episodes": 50, "seed": 7, "environment": "TwoPathEnv-v0"}
    (run.path / "evaluation-jax.json").write_text(json.dumps({**result, "per_lane": lanes, "pooled": pooled}))
    lines = ["seed,probability,limit,episode,return,cost", *(",".join(map(str, row)) for row in rows)]
    (run.path / "evaluation-jax.csv").write_text("\n".join(lines) + "\n")
    certificate = Certificate(
        verdict="violated",
        policy="policies/seed0-p0.1-d15.safetensors",
        policy_sha256="0123456789abcdef" * 4,
        environment={"id": "TwoPathEnv-v0"},
        engine="jax",
        deterministic=False,
        limit=LIMIT,
        cost="cost",
        probability=0.1,
        trained_probability=0.1,
        confidence=0.95,
        certified_together=1,
        attempt=1,
        spent=0.0,
        error=0.05,
        expected=0.08,
        power=0.8,
        looks=[1340],
        spending=1.0,
        certify_at=[114],
        violate_at=[153],
        counts=[211],
        episodes=1340,
        outages=211,
        upper_bound=0.17488,
        lower_bound=0.14122,
        candidates=1,
        selection_episodes=0,
        calibration=[],
        parts=[],
        episode_seed=7,
        versions={},
        seed=0,
    )
    (run.path / "certificate-seed0-p0.1-d15.json").write_text(json.dumps(asdict(certificate.sealed())))
    return run


def summary(probability, limit, costs):
    outages = int((costs > limit).sum())
    return {
        "probability": probability,
        "limit": limit,
        "episodes": len(costs),
        "outages": outages,
        "outage": outages / len(costs),
        "outage_low": 0.05123,
        "outage_high": 0.31456,
        "mean_return": 1.24789,
        "std_return": 0.14431,
        "mean_cost": float(costs.mean()),
        "mean_cost_over": float(costs[costs > limit].mean()) if outages else None,
        "cost_quantile": float(np.quantile(costs, 1 - probability)),
        "cost_quantile_low": 11.0,
        "cost_quantile_high": 33.0,
        "cvar": float(np.sort(costs)[-5:].mean()),
        "weibull": {"shape": 0.9, "scale": 8.0, "outage": float(np.exp(-((limit / 8.0) ** 0.9)))},
        "gaussian": {"mean": 8.4, "std": 9.3, "outage": 0.2389},
    }
