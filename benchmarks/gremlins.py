"""How long contacts with a gremlin last, and how far they move the robot, on both engines.

python benchmarks/gremlins.py
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from qcrl import make
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.mujoco_engine import MujocoEngine
from qcrl.envs.point.tasks import TASKS

TRIALS, STEPS = 70, 320
FAR = np.array([[x, x] for x in (20.0, 30.0, 40.0, 50.0, 60.0)])
DRIVES = {0.05: 0.6, 0.1: 0.7, 0.2: 0.9, 0.5: 1.2, 1.0: 1.5}
"""Forward command, and the distance that it starts from."""


def trial(kind: str | float, rng: np.random.Generator) -> tuple[Layout, np.ndarray]:
    """A robot near a circling gremlin, and its actions: idle, at random, or driving at the circle's centre."""
    direction, yaw = rng.uniform(-math.pi, math.pi, 2)
    if isinstance(kind, float):
        distance, heading = DRIVES[kind], direction + math.pi + rng.uniform(-0.4, 0.4)
        actions = np.tile([kind, 0.0], (STEPS, 1))
    else:
        distance, heading = 0.55 * math.sqrt(rng.uniform()), rng.uniform(-math.pi, math.pi)
        actions = {"idle": 0.0, "gentle": 0.2, "random": 1.0}[kind] * np.tanh(rng.normal(size=(STEPS, 2)))
    layout = Layout(
        robot=distance * np.array([math.cos(direction), math.sin(direction)]),
        heading=np.array(heading),
        goal=np.array([-20.0, -20.0]),
        buttons=np.zeros((0, 2)),
        hazards=FAR,
        gremlins=np.array([[0.0, 0.0], *FAR[:2]]),
        gremlin_yaw=np.array([yaw, 0.0, 0.0]),
        goal_button=np.array(0),
    )
    return layout, actions


def in_mujoco(layout: Layout, actions: np.ndarray) -> tuple[float, float]:
    """Steps in contact, and the distance between the robot's first and last place."""
    engine = MujocoEngine(TASKS["GremlinEnv-v0"])
    engine.reset(np.random.default_rng(0), layout)
    contact = sum(engine.step(action).sources["gremlins"] for action in actions)
    return contact, math.dist(engine.data.qpos[:2], layout.robot)


def in_jax(layouts: Layout, actions: np.ndarray) -> np.ndarray:
    env = make("GremlinEnv-v0")
    successors = env.reset(jax.random.key(0))[0].successors

    def play(layout: Layout, actions: jax.Array) -> jax.Array:
        def step(state, action):
            state, _ = env.step(state, action)
            return state, state.charged["gremlins"]

        state, contact = jax.lax.scan(step, env.start(layout, successors)[0], actions)
        return jnp.stack([jnp.sum(contact), jnp.linalg.norm(state.pose[:2] - layout.robot)])

    return np.asarray(jax.jit(jax.vmap(play))(layouts, actions))


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    print("| robot | contact steps: JAX | MuJoCo | moved: JAX | MuJoCo | standard errors of the differences |")
    print("|---|---|---|---|---|---|")
    for kind in ("idle", "gentle", "random", *DRIVES):
        layouts, actions = zip(*(trial(kind, rng) for _ in range(TRIALS)))
        theirs = np.array([in_mujoco(*pair) for pair in zip(layouts, actions)])
        stacked = jax.tree.map(lambda *x: jnp.stack(jnp.array(x, jnp.float32)), *layouts)
        ours = in_jax(stacked._replace(goal_button=jnp.zeros(TRIALS, jnp.int32)), jnp.array(actions, jnp.float32))
        (a, b), (c, d) = ours.mean(0), theirs.mean(0)
        error = (ours - theirs).std(0) / math.sqrt(TRIALS)
        name = f"drives at {kind}" if isinstance(kind, float) else kind
        print(f"| {name} | {a:.1f} | {c:.1f} | {b:.2f} | {d:.2f} | {error[0]:.1f}, {error[1]:.2f} |", flush=True)
