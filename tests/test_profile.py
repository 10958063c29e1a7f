"""Where an iteration's time goes: what is counted, and to which stage it belongs."""

import jax
import jax.numpy as jnp

from qcrl.bench.profile import STAGES, products, scopes, stages


def program(x):
    with jax.named_scope("rollout"):
        x = jax.lax.scan(lambda x, _: (jnp.tanh(x @ x), None), x, length=7)[0]
    with jax.named_scope("update"):
        return jnp.sum(jax.vmap(jnp.dot)(x, x))


def test_products_are_counted_as_often_as_they_run():
    traced = jax.make_jaxpr(program)(jnp.ones((5, 5))).jaxpr
    assert products(traced) == 7 * 2 * 5**3 + 2 * 5 * 5


def test_time_belongs_to_the_stage_in_whose_scope_it_was_spent():
    x = jnp.ones((200, 200)) / 200
    compiled = jax.jit(jax.vmap(program)).lower(x[None]).compile()
    stage_of = scopes(compiled.as_text())
    assert {"rollout", "update"} <= set(stage_of.values()) <= {*STAGES, "other"}
    # A busy core may hold up any single run; the shortest of five is the work itself.
    runs = [stages(compiled, x[None], stage_of) for _ in range(5)]
    assert min(spent["rollout"] for spent in runs) > min(spent["update"] for spent in runs) >= 0
    assert all(spent["advantages"] == 0 for spent in runs)
