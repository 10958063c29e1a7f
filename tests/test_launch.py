"""A step of the robot as one kernel: the same numbers as without it, and a kernel that a GPU can take."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl.envs.point import jax_engine, launch, motion


def asked_of_the_robot(env, count):
    """What the physics is given in the first step of some episodes."""
    given = {}

    def step(state, action):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax_engine, "move", lambda *args: given.update(args=args[1:]) or motion.move(*args))
            env.step(state, action)
        return given["args"]

    states, _ = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), count))
    return jax.vmap(step)(states, jnp.full((count, 2), 0.7))


def test_one_launch_gives_the_same(monkeypatch):
    env = qcrl.make("GremlinEnv-v0")
    args, function = jax.jit(lambda: asked_of_the_robot(env, 6))(), partial(motion._move, env.task)
    expected = jax.jit(jax.vmap(function))(*args)
    monkeypatch.setattr(launch, "_launch", partial(launch._launch, interpret=True))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    two_lanes = jax.tree.map(lambda x: x.reshape(2, 3), args)
    got = jax.jit(jax.vmap(jax.vmap(launch.in_one_launch(function))))(*two_lanes)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)  # the hinge servo amplifies rounding
    jax.tree.map(lambda x, y: close(x.reshape(6), y), got, expected)


@pytest.mark.parametrize("id", ["GremlinEnv-v0", "DynamicButtonEnv-v0"])
def test_a_gpu_can_take_the_kernel(id):
    env = qcrl.make(id)
    shapes = jax.eval_shape(lambda: asked_of_the_robot(env, 6))
    kernel = launch._launch(partial(motion._move, env.task))
    lowered = jax.jit(kernel).trace(*shapes).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("__gpu$xla.gpu.triton") == 1
