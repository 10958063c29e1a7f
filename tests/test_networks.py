"""The network step by step against the scanned sequence, the LSTM's own backward pass, and observation statistics."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl.nets import lstm
from qcrl.nets.network import Inputs, Network, Normaliser, cast_kernels, only_heads

TIME, ENVS, OBS, ACTIONS = 9, 3, 4, 2


def network(**changes):
    return Network(
        **dict(hidden_sizes=(8, 6), lstm_size=6, skip=True, cost_input="lstm", observation_clip=10.0) | changes
    )


def random_inputs(key):
    keys = jax.random.split(key, 6)
    shapes = [(TIME, ENVS, *size) for size in ((OBS,), (ACTIONS,), (), (1,), (1,), ())]
    return Inputs(*(jax.random.normal(k, shape) for k, shape in zip(keys, shapes)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(skip=False, cost_input="observation"),
        dict(lstm_size=0, cost_input="none"),
        dict(cost_input="observation", late_cost=True),
        dict(lstm_size=0, cost_input="observation", late_cost=True),
    ],
)
def test_steps_equal_the_sequence_also_across_resets(changes):
    net = network(**changes)
    params, normaliser = net.init(jax.random.key(0), OBS, ACTIONS, 5)
    inputs = random_inputs(jax.random.key(1))
    first = jnp.zeros((TIME, ENVS), bool).at[4, 1].set(True).at[0, 2].set(True)
    rng = np.random.default_rng(2)
    start = jax.tree.map(lambda x: jnp.float32(rng.normal(size=x.shape)), net.initial_memory(ENVS))
    outputs, memories = jax.jit(net.sequence)(params, normaliser, inputs, first, start)

    step, memory = jax.jit(net.step), start
    for t in range(TIME):
        memory = lstm.forget(memory, first[t])
        now = jax.tree.map(lambda x, t=t: x[t], inputs)
        output, memory = step(params, normaliser, now, memory)
        np.testing.assert_allclose(output, outputs[t], atol=1e-6)
        for stepped, scanned in zip(jax.tree.leaves(memory), jax.tree.leaves(memories)):
            np.testing.assert_allclose(stepped, scanned[t], atol=1e-6)
    few, _ = net.step(
        only_heads(params, 2), normaliser, jax.tree.map(lambda x: x[0], inputs), lstm.forget(start, first[0])
    )
    np.testing.assert_allclose(few, outputs[0, :, :2], atol=1e-6)


@pytest.mark.parametrize("cost_input", ["lstm", "observation"])
def test_a_late_cost_is_seen_one_step_late(cost_input):
    prompt = network(cost_input=cost_input)
    late = network(cost_input=cost_input, late_cost=True)
    params, normaliser = prompt.init(jax.random.key(0), OBS, ACTIONS, 5)
    inputs = random_inputs(jax.random.key(1))
    first = jnp.zeros((TIME, ENVS), bool).at[0].set(True).at[4, 1].set(True)
    cost = jnp.where(first[..., None], 0.0, inputs.previous_cost)  # as every rollout has it
    shifted = jnp.where(first[..., None], 0.0, jnp.concatenate([jnp.zeros((1, ENVS, 1)), cost[:-1]]))
    run = lambda net, cost: net.sequence(
        params, normaliser, inputs._replace(previous_cost=cost), first, net.initial_memory(ENVS)
    )[0]
    np.testing.assert_array_equal(run(late, cost), run(prompt, shifted))
    assert not np.allclose(run(late, cost), run(prompt, cost))


def test_an_episode_does_not_see_the_one_before():
    net = network()
    params, normaliser = net.init(jax.random.key(0), OBS, ACTIONS, 5)
    inputs = random_inputs(jax.random.key(1))
    first = jnp.zeros((TIME, ENVS), bool).at[5].set(True)
    run = jax.jit(lambda inputs: net.sequence(params, normaliser, inputs, first, net.initial_memory(ENVS))[0])
    changed = inputs._replace(obs=inputs.obs.at[:5].add(1.0))
    np.testing.assert_array_equal(run(inputs)[5:], run(changed)[5:])
    assert not np.allclose(run(inputs)[:5], run(changed)[:5])


def plain_lstm(kernel, bias, x, first, memory):
    """The textbook equations, for autodiff to differentiate."""
    outputs = []
    for t in range(len(x)):
        hidden, cell = (jnp.where(first[t][:, None], 0.0, m) for m in memory)
        i, f, g, o = jnp.split(jnp.concatenate([x[t], hidden], axis=-1) @ kernel + bias, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        memory = (jax.nn.sigmoid(o) * jnp.tanh(cell), cell)
        outputs.append(memory[0])
    return jnp.stack(outputs)


def test_backward_pass_is_autodiffs():
    size = 5
    keys = jax.random.split(jax.random.key(0), 5)
    params = {
        "kernel": jax.random.normal(keys[0], (OBS + size, 4 * size)),
        "bias": jax.random.normal(keys[1], (4 * size,)),
    }
    x, start = jax.random.normal(keys[2], (TIME, ENVS, OBS)), lstm.Memory(*jax.random.normal(keys[3], (2, ENVS, size)))
    first = jnp.zeros((TIME, ENVS), bool).at[3, 0].set(True).at[6, 2].set(True)
    weights = jax.random.normal(keys[4], (TIME, ENVS, size))
    ours = lambda p, x: jnp.sum(weights * lstm.sequence(p, x, first, start).hidden)
    plain = lambda p, x: jnp.sum(weights * plain_lstm(p["kernel"], p["bias"], x, first, start))
    for a, b in zip(*(jax.tree.leaves(jax.jit(jax.grad(f, argnums=(0, 1)))(params, x)) for f in (ours, plain))):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_statistics_in_batches_equal_those_of_everything():
    data = np.random.default_rng(0).normal(3.0, 2.0, size=(60, 2)).astype(np.float32)
    normaliser = Normaliser.init(2)
    for batch in (data[:10], data[10:25].reshape(3, 5, 2), data[25:]):
        normaliser = normaliser.update(jnp.asarray(batch))
    np.testing.assert_allclose(normaliser.mean, data.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.variance, data.var(axis=0), rtol=1e-4)
    expected = (data - data.mean(axis=0)) / data.std(axis=0)
    np.testing.assert_allclose(normaliser(jnp.asarray(data), 10.0), expected, rtol=1e-3, atol=1e-4)
    assert np.abs(normaliser(jnp.full((1, 2), 1e6), 10.0)).max() == 10.0


def test_products_can_run_in_bfloat16():
    net = network()
    params, normaliser = net.init(jax.random.key(0), OBS, ACTIONS, 5)
    inputs, first, start = random_inputs(jax.random.key(1)), jnp.zeros((TIME, ENVS), bool), net.initial_memory(ENVS)

    @partial(jax.jit, static_argnums=1)
    def loss_and_gradient(params, dtype):
        loss = lambda params: jnp.mean(
            net.sequence(cast_kernels(params, dtype), normaliser, inputs, first, start)[0] ** 2
        )
        return jax.value_and_grad(loss)(params)

    exact, coarse = (loss_and_gradient(params, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    assert exact[0] != coarse[0]
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(coarse)):
        assert b.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.03 * float(jnp.max(jnp.abs(a))))
