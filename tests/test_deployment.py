"""Policies where they are used: in NumPy, without JAX, in batches, as ONNX, and told what they need."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import UserError
from qcrl.algos import hyperparameters
from qcrl.algos.find import build
from qcrl.cli.main import main
from qcrl.envs.base import Description
from qcrl.envs.host.products import Product
from qcrl.envs.host.spaces import Actions
from qcrl.runs.files import file_hash
from qcrl.runs.forward import build as build_forward
from qcrl.runs.policy import Policy
from test_policy import SMALL, save

pytest_plugins = ["trained"]

BOX = Actions(False, (2,), "float32", 0, (-2.0, None), (2.0, 1.0))
NUMBERS = Description("numbers", 4, 2, 50, False, actions=BOX)
CHOICES = Description("choices", 4, 3, 50, False, discrete=True, actions=Actions(True, start=-1))
LSTM = {"lstm_size": 8, "hidden_sizes": (8,), "skip": True}
KINDS = {
    "lstm, costs late": ("qcpo", "authors", NUMBERS, LSTM),
    "lstm, costs beside it": ("qcpo", "paper", CHOICES, {"lstm_size": 8}),
    "budget and time": ("outage_ppo", "fast", NUMBERS, {"out_of_phase": False}),
    "choices": ("cvar_pg", "fast", CHOICES, {}),
    "soft": ("wcsac", "fast", NUMBERS, {}),
}


def shaken(state):
    """With statistics and parameters that are all of some size, as training leaves them."""
    leaves, shape = jax.tree.flatten(state)
    rng = np.random.default_rng(5)
    moved = [
        x if x.dtype == bool else x + jnp.abs(jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype)) for x in leaves
    ]
    changed = jax.tree.unflatten(shape, moved)
    # What was asked for stays what it was.
    return changed._replace(constraints=state.constraints) if hasattr(state, "constraints") else changed


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files of all kinds of policies."""
    folder = tmp_path_factory.mktemp("policies")

    def file(kind):
        path = folder / f"{kind}.safetensors"
        if not path.exists():
            name, preset, env, changes = KINDS[kind]
            algorithm = build(name, preset)
            fields = hyperparameters.field_names(type(algorithm))
            small = {key: value for key, value in SMALL.items() if key in fields} | {"num_envs": 4} | changes
            if "replay_size" in fields:
                small |= {"replay_size": 1000, "block_length": 4, "steps_per_update": 4, "steps_per_env": 8}
            save(path, hyperparameters.replace(algorithm, small), env, shaken)
        return path

    return file


def play(policy, batch=None, steps=4):
    rng, carry, actions = np.random.default_rng(3), policy.initial(batch=batch), []
    sizes = () if batch is None else (batch,)
    for _ in range(steps):
        obs, reward = rng.normal(size=(*sizes, 4)), rng.normal(size=sizes)
        action, carry = policy(obs, carry, reward, rng.uniform(0, 9, size=sizes), deterministic=True)
        actions.append(np.array(action))
    return np.array(actions), carry


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_acts_as_jax_does_alone_and_in_batches(saved, kind):
    jax_policy, numpy_policy = (Policy.load(saved(kind), backend) for backend in ("jax", "numpy"))
    actions, carry = play(jax_policy)
    same, own = play(numpy_policy)
    np.testing.assert_allclose(same, actions, atol=1e-5)
    np.testing.assert_allclose(own.action, carry.action, atol=1e-5)
    np.testing.assert_allclose(own.spent, carry.spent, atol=1e-5)
    assert (
        len({tuple(each) for each in np.round(own.action, 4)[None]} | {tuple(np.round(a, 4).ravel()) for a in same}) > 1
    )
    many, _ = play(numpy_policy, batch=3)
    np.testing.assert_allclose(many, play(jax_policy, batch=3)[0], atol=1e-5)


ASKED = {
    "two budgets": (qcrl.Outage(15.0, 0.1, cost="a") & qcrl.Outage(0.0, 0.2, cost="b"), {}),
    "a range of limits": (qcrl.Outage((0.0, 20.0), 0.1, cost="a"), {"limit": 12.0}),
    "the low end of a range from 0": (qcrl.Outage((0.0, 20.0), 0.1, cost="a"), {"limit": 0.0}),
    "both ranges": (qcrl.Outage((5.0, 20.0), (0.05, 0.3), cost="b"), {"limit": 6.0, "probability": 0.1}),
}


@pytest.mark.parametrize("scale", ["auto", 10.0])
@pytest.mark.parametrize("kind", ASKED)
def test_budgets_and_limits_that_are_asked_for_are_seen_without_jax(tmp_path, kind, scale):
    constraint, asked = ASKED[kind]
    changes = SMALL | {"num_envs": 4, "out_of_phase": False, "cost_scale": scale, "normalise_budget": scale != "auto"}
    changes |= {"budget_parts": (2.0, 1.0, 0.5) if scale == "auto" else (1.0,)}
    algorithm = hyperparameters.replace(build("outage_ppo", "fast"), changes)
    env = replace(NUMBERS, costs=("a", "b"))
    save(tmp_path / "policy.safetensors", algorithm, env, shaken, constraint)
    jax_policy, numpy_policy = (Policy.load(tmp_path / "policy.safetensors", each) for each in ("jax", "numpy"))
    seen = []
    for batch in (None, 3):
        sizes = () if batch is None else (batch,)
        carries = [policy.initial(batch=batch, **asked) for policy in (jax_policy, numpy_policy)]
        for step in range(3):
            known = np.full((*sizes, 4), 0.1 * step), carries[0], 0.0, {"a": np.full(sizes, 4.0), "b": np.ones(sizes)}
            one, carries[0] = jax_policy(*known, deterministic=True)
            two, carries[1] = numpy_policy(known[0], carries[1], *known[2:], deterministic=True)
            np.testing.assert_allclose(two, one, atol=1e-5)
            seen.append(two)
    pytest.importorskip("onnxruntime")
    from qcrl.runs import onnx_export

    assert onnx_export.compare(numpy_policy, onnx_export.build(numpy_policy).SerializeToString()) < 1e-5
    if asked:
        other, _ = numpy_policy(np.zeros(4), numpy_policy.initial(**asked | {"limit": 19.0}), deterministic=True)
        assert np.abs(other - seen[0]).max() > 1e-4


@pytest.mark.parametrize("kind", ["lstm, costs beside it", "choices"])
def test_choices_are_drawn_as_often_as_their_probability_says(saved, kind):
    policy = Policy.load(saved(kind), "numpy")
    obs = np.tile(np.linspace(-1, 1, 4), (4000, 1))
    action, carry = policy(obs, policy.initial(batch=4000), rng=1)
    logits = policy.forward(policy.known(obs[0], policy.initial()), policy.initial().memory)[0].logits
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert set(action) <= {-1, 0, 1}
    np.testing.assert_allclose(carry.action.mean(axis=0), expected, atol=4 * 0.5 / 4000**0.5)


def test_numbers_are_drawn_with_the_trained_spread(saved):
    policy = Policy.load(saved("budget and time"), "numpy")
    obs = np.zeros((4000, 4))
    _, carry = policy(obs, policy.initial(batch=4000), rng=1)
    np.testing.assert_allclose(carry.action.std(axis=0), policy.forward.std, rtol=0.06)


def test_an_episode_of_a_batch_begins_anew(saved):
    policy = Policy.load(saved("lstm, costs late"), "numpy")
    for backend in ("numpy", "jax"):
        policy = Policy.load(saved("lstm, costs late"), backend)
        _, carry = play(policy, batch=3)
        carry = policy.restart(carry, [False, True, False])
        obs = np.ones((3, 4))
        action, after = policy(obs, carry, np.ones(3), np.full(3, 5.0), deterministic=True)
        fresh, _ = policy(np.ones(4), policy.initial(), deterministic=True)
        np.testing.assert_allclose(action[1], fresh, atol=1e-5)
        assert np.abs(action[0] - fresh).max() > 1e-3
        np.testing.assert_allclose(after.time, [5, 1, 5])
        assert after.spent[1] == 0


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_what_a_policy_looks_at_it_must_be_told(saved, backend):
    policy = Policy.load(saved("budget and time"), backend)
    assert policy.needs == ("cost",)
    _, carry = policy(np.zeros(4), policy.initial())
    with pytest.raises(UserError, match="the cost of the step before was not given"):
        policy(np.zeros(4), carry)
    policy(np.zeros(4), carry, cost=1.0)
    with pytest.raises(UserError, match="not finite"):
        policy(np.zeros(4), carry, cost=np.nan)
    with pytest.raises(UserError, match="the observation is not finite"):
        policy([0.0, np.inf, 0.0, 0.0], carry, cost=1.0)
    blind = Policy.load(saved("choices"), backend)
    _, carry = blind(np.zeros(4), blind.initial())
    blind(np.zeros(4), carry)


WITHOUT_JAX = """
import sys, time
for name in ("jax", "jaxlib", "optax", "scipy"):
    sys.modules[name] = None
import numpy as np, qcrl
Policy = qcrl.Policy
begun = time.perf_counter()
policy = Policy.load(sys.argv[1])
taken = time.perf_counter() - begun
assert taken < 0.05, taken
action, carry = policy(np.zeros(4), policy.initial(), deterministic=True)
print(policy.backend, *action)
try:
    Policy.load(sys.argv[1], backend="jaxx")
except qcrl.UserError as error:
    assert "did you mean jax" in str(error), error
"""


def test_a_policy_runs_where_there_is_no_jax(saved):
    path = saved("lstm, costs late")
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, path], capture_output=True, text=True, check=True)
    backend, *action = done.stdout.split()
    assert backend == "numpy"
    expected, _ = Policy.load(path, "jax")(np.zeros(4), Policy.load(path, "jax").initial(), deterministic=True)
    np.testing.assert_allclose(np.float32(action), expected, atol=1e-5)


def test_who_acts_otherwise_is_not_described():
    parent = type(build("ppo_lag", "fast"))

    class Bold(parent):
        def sample(self, env, actor, inputs, memory, noise):
            return 2 * noise, memory

    constraint = [qcrl.Mean(1.0)]
    assert replace(build("ppo_lag", "fast")).deployment(NUMBERS, constraint) is not None
    assert Bold(lstm_size=0, cost_input="none").deployment(NUMBERS, constraint) is None


def test_an_unknown_forward_pass_is_a_user_error(saved):
    with pytest.raises(UserError, match="no forward pass 'quantum'"):
        build_forward({"kind": "quantum"}, {}, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_acts_as_numpy_does(saved, kind):
    onnxruntime = pytest.importorskip("onnxruntime")
    from qcrl.runs import onnx_export

    policy = Policy.load(saved(kind), "numpy")
    model = onnx_export.build(policy).SerializeToString()
    assert onnx_export.compare(policy, model) < 1e-5
    # One step in the units of the environment, with noise.
    session = onnxruntime.InferenceSession(model)
    noise = np.random.default_rng(0).normal(size=(2000, policy.env.action_size)).astype(np.float32)
    known = policy.known(np.zeros((2000, 4)), policy.initial(batch=2000))
    feed = onnx_export._feed(known, [each.name for each in session.get_inputs()]) | {"noise": noise}
    feed |= {
        each.name: np.zeros((2000, each.shape[1]), np.float32) for each in session.get_inputs() if each.name not in feed
    }
    action = session.run(["action"], feed)[0]
    drawn, _ = policy(np.zeros((2000, 4)), policy.initial(batch=2000), rng=2)
    assert action.shape == drawn.shape
    np.testing.assert_allclose(action.mean(axis=0), drawn.mean(axis=0), atol=0.15)
    np.testing.assert_allclose(action.std(axis=0), drawn.std(axis=0), atol=0.15)


def test_onnx_gives_the_parts_of_an_action(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from qcrl.runs import onnx_export

    steer = {"kind": "box", "shape": [2], "dtype": "float64", "low": [-2.0, None], "high": [3.0, None]}
    gear = {"kind": "choice", "counts": [3], "start": [1], "shape": None, "dtype": "int64"}
    lamps = {"kind": "choice", "counts": [2, 4], "start": [0, 5], "shape": [2, 1], "dtype": "int64"}
    actions = Product(json.dumps({"parts": {"gear": gear, "rest": {"parts": [steer, lamps]}}}))
    algorithm = hyperparameters.replace(build("qcpo", "fast"), SMALL | {"num_envs": 4})
    save(tmp_path / "p.safetensors", algorithm, replace(NUMBERS, action_size=11, actions=actions), shaken)
    policy = Policy.load(tmp_path / "p.safetensors", "numpy")
    model = onnx_export.build(policy).SerializeToString()
    assert onnx_export.compare(policy, model) < 1e-5
    session = onnxruntime.InferenceSession(model)
    parts = {each.name: each.shape for each in session.get_outputs() if each.name.startswith("action")}
    assert parts == {"action.gear": ["batch"], "action.rest.0": ["batch", 2], "action.rest.1": ["batch", 2, 1]}
    # Looked at by the export itself: an option counted from elsewhere is noticed.
    other = replace(policy.env, actions=Product(actions.tree.replace("[1]", "[2]")))
    policy.env = other
    assert onnx_export.compare(policy, model) > 0.1


def test_bad_costs_and_observations_are_one_sentence(saved):
    policy = Policy.load(saved("budget and time"), "numpy")
    many = policy.initial(batch=3)
    for obs, carry, cost, message in (
        (np.zeros(4), policy.initial(), -1.0, "never negative"),
        (np.zeros(4), policy.initial(), "much", "must be numbers, one of each"),
        ("abc", policy.initial(), 0.0, "must be an array of numbers"),
        (np.zeros((3, 4)), many, np.zeros(2), "must be numbers, 3 of each"),
    ):
        with pytest.raises(UserError, match=message):
            policy(obs, carry._replace(time=carry.time + 1), cost=cost)


def test_the_command_exports_the_certified_policy(evaluated, tmp_path, capsys):
    order = f"export {tmp_path}/run --format numpy --promised --out {tmp_path}/p.safetensors".split()
    evaluated.path.rename(tmp_path / "run")
    assert main(order) == 2
    assert "no such certified policy" in capsys.readouterr().err
    file, policy = tmp_path / "run/certificate-seed0-p0.1-d15.json", "policies/seed1-p0.2-d15.safetensors"
    certified = {"verdict": "certified", "policy": policy, "policy_sha256": file_hash(tmp_path / "run" / policy)}
    file.write_text(json.dumps(json.loads(file.read_text()) | certified))
    assert main([*order, "--probability", "0.4"]) == 2
    assert main(order) == 0
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "run" / policy).read_bytes()
    assert "not the policy that was certified" not in capsys.readouterr().out
    plain = [word for word in order if word != "--promised"]
    assert main([*plain[:-1], f"{tmp_path}/other.safetensors", "--probability", "0.1"]) == 0
    assert f"not the policy that was certified, {tmp_path}/run/{policy}: " in capsys.readouterr().out


def test_the_command_exports(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    run = qcrl.train("ppo_lag", "TwoPathEnv-v0", qcrl.Mean(15), 16, out=tmp_path / "run", progress=False, **SMALL)
    assert main(["export", str(run.path), "--out", str(tmp_path / "a.onnx")]) == 0
    assert "told of the step before: cost." in capsys.readouterr().out
    assert main(["export", str(run.path), "--out", str(tmp_path / "a.onnx")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(run.path), "--format", "numpy", "--out", str(tmp_path / "p.safetensors")]) == 0
    assert repr(Policy.load(tmp_path / "p.safetensors", "numpy")) == (
        "<PPO_Lag policy for TwoPathEnv-v0, seed 0, limit 15, probability 0.1, trained for 16 steps, backend numpy>"
    )
