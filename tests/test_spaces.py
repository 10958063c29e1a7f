"""Action spaces of several parts, as products of distributions, and actions that may not be chosen."""

from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import qcrl
from host_envs import SMALL
from qcrl import UserError
from qcrl.envs.host import boundary
from qcrl.envs.host.environment import open_host
from qcrl.envs.host.spaces import describe_actions, read_actions
from qcrl.nets import distributions
from qcrl.runs import onnx_export

ONE_SIDED = spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 1.0], np.float32))
MIXED = spaces.Dict(
    {
        "gate": spaces.Discrete(3, start=-1),
        "motors": spaces.Tuple((spaces.Box(-2.0, 4.0, (2, 1)), spaces.MultiBinary(2))),
        "valve": ONE_SIDED,
    }
)
SPACES = {
    "several": spaces.MultiDiscrete([2, 3], start=[5, 0]),
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "switches": spaces.MultiBinary((2, 2)),
    "mixed": MIXED,
    "pair": spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,), np.float64))),
}


class Parts(gymnasium.Env):
    """Any action space; complains of actions that are not in it. Episodes are of five steps."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, action_space=MIXED):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return np.full(2, self.time / 5, np.float32), 1.0, False, self.time == 5, {"cost": 1.0}


class Masked(Parts):
    """Of two choices among three options only those may be taken that are counted by the time."""

    def __init__(self, method=False):
        super().__init__(spaces.MultiDiscrete([3, 3]))
        self.method = method
        if method:
            self.action_masks = self.allowed

    def allowed(self):
        return np.concatenate([np.arange(3) != self.time % 3, np.arange(3) == self.time % 3])

    def info(self):
        return {} if self.method else {"action_mask": self.allowed()}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self.info()

    def step(self, action):
        mask = self.allowed()
        assert mask[action[0]]
        assert mask[3 + action[1]]
        obs, reward, *ends, info = super().step(action)
        return obs, reward, *ends, info | self.info()


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_draw_is_an_action_of_the_space(space):
    actions, size = describe_actions(space, "env")
    assert read_actions(actions.as_dict()) == actions
    assert hash(actions) == hash(read_actions(actions.as_dict()))
    drawn = 3 * np.random.default_rng(0).normal(size=(50, size)).astype(np.float32)
    batch = actions.to_env(drawn)
    assert all(space.contains(each) for each in batch)
    assert all(space.contains(actions.to_env(row)) for row in drawn)


def test_the_parts_of_an_action_are_where_the_space_says():
    actions, size = describe_actions(MIXED, "env")
    assert (size, actions.numbers, actions.choices) == (11, 4, (3, 2, 2))
    action = actions.to_env(np.float32([-1.0, 0.5, -7.0, 7.0, 0, 0, 1, 1, 0, 0, 1]))
    assert action["gate"] == 1
    np.testing.assert_allclose(action["motors"][0], [[-2.0], [2.5]])
    np.testing.assert_array_equal(action["motors"][1], [0, 1])
    np.testing.assert_allclose(action["valve"], [0.0, 1.0])


def test_a_box_without_dimensions_is_an_array_within_a_dictionary_and_a_choice_a_number():
    space = spaces.Dict({"gate": spaces.Discrete(2), "speed": spaces.Box(0.0, 4.0, ())})
    actions, _ = describe_actions(space, "env")
    drawn = np.float32([[0.5, 0, 1], [-1.0, 1, 0]])
    for action, speed in zip((*actions.to_env(drawn), actions.to_env(drawn[0])), (3.0, 0.0, 3.0)):
        assert isinstance(action["speed"], np.ndarray)
        assert (action["speed"].shape, action["speed"].dtype, action["speed"]) == ((), np.float32, speed)
        assert isinstance(action["gate"], np.int64)


@pytest.mark.parametrize(
    "box", [ONE_SIDED, spaces.Box(-0.3, 0.7, (2,), np.float64), spaces.Box(-1, 2, (2,), np.float16)]
)
def test_a_box_is_mapped_alike_alone_and_as_a_part(box):
    drawn = 2 * np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    alone, part = (describe_actions(space, "env")[0].to_env(drawn) for space in (box, spaces.Tuple((box,))))
    assert alone.dtype == part[0][0].dtype == box.dtype
    np.testing.assert_array_equal(alone, [row for (row,) in part])


@pytest.mark.parametrize("choices", [(3,), (2, 2, 2), (2, 2, 3, 3, 2)])
def test_choices_of_one_size_are_looked_at_together(choices):
    """Side by side as each by itself."""
    rng, size = np.random.default_rng(0), sum(choices)
    head, noise = (jnp.asarray(rng.normal(size=(50, size)), jnp.float32) for _ in range(2))
    ends = np.cumsum(choices)[:-1]
    alone = [distributions.draw({}, *pair) for pair in zip(jnp.split(head, ends, -1), jnp.split(noise, ends, -1))]
    drawn = distributions.draw({}, head, noise, choices)
    np.testing.assert_array_equal(drawn, np.concatenate(alone, axis=-1))
    each = zip(jnp.split(head, ends, -1), alone)
    expected = sum(distributions.log_prob({}, *pair) for pair in each)
    np.testing.assert_allclose(distributions.log_prob({}, head, drawn, choices), expected, rtol=1e-5)
    entropies = [distributions.statistics({}, part)["entropy"] for part in jnp.split(head, ends, -1)]
    assert float(distributions.statistics({}, head, choices)["entropy"]) == pytest.approx(
        float(sum(entropies)), rel=1e-5
    )


def test_probabilities_of_parts_multiply():
    params = {"log_std": jnp.array([0.3])}
    head = jnp.array([0.2, 1.0, -1.0, 0.5, 0.1, 0.2])
    choices = (2, 3)
    total, entropy = 0.0, distributions.statistics(params, head, choices)["entropy"]
    for first in np.eye(2):
        for second in np.eye(3):
            action = jnp.concatenate([jnp.array([0.4]), first, second])
            alone = distributions.log_prob({}, head[1:3], jnp.asarray(first)) + distributions.log_prob(
                {}, head[3:], jnp.asarray(second)
            )
            number = distributions.gaussian_log_prob(action[:1], head[:1], params["log_std"])
            assert float(distributions.log_prob(params, head, action, choices)) == pytest.approx(float(alone + number))
            total += float(jnp.exp(alone))
    assert total == pytest.approx(1.0, abs=1e-5)
    parts = [distributions.statistics(*pair)["entropy"] for pair in ((params, head), ({}, head[1:3]), ({}, head[3:]))]
    assert float(entropy) == pytest.approx(float(sum(parts)), rel=1e-5)
    noise = jax.random.normal(jax.random.key(0), (4000, 6))
    drawn = distributions.draw(params, jnp.broadcast_to(head, (4000, 6)), noise, choices)
    np.testing.assert_allclose(drawn[:, 1:3].mean(axis=0), jax.nn.softmax(head[1:3]), atol=0.03)
    np.testing.assert_allclose(drawn[:, 3:].sum(axis=-1), 1.0)
    assert float(drawn[:, 0].std()) == pytest.approx(np.exp(0.3), rel=0.05)


def test_what_is_masked_is_never_drawn():
    head = distributions.forbid(jnp.array([9.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 1.0]))
    noise = jax.random.normal(jax.random.key(0), (2000, 3))
    share = distributions.draw({}, jnp.broadcast_to(head, (2000, 3)), noise).mean(axis=0)
    np.testing.assert_allclose(share, [0.0, 0.5, 0.5], atol=0.05)
    assert np.isfinite(distributions.statistics({}, head)["entropy"])


@pytest.mark.parametrize("make", [Parts, Masked], ids=["dictionary", "masked"])
def test_a_training_and_its_policies_keep_to_the_space(tmp_path, make):
    run = qcrl.train(
        "outage_ppo", make, qcrl.Outage(9.0, 0.1), 160, out=tmp_path / "run", progress=False, **SMALL | {"epochs": 1}
    )
    assert run.metrics["episode_return"][-1] == 5
    env, rng = make(), np.random.default_rng(0)
    chosen = {}
    for backend in ("jax", "numpy"):
        policy = run.policy(backend=backend)
        obs, info = env.reset(seed=0)
        carry, done, cost = policy.initial(), False, None
        while not done:
            mask = info.get("action_mask")
            action, carry = policy(obs, carry, cost=cost, rng=rng, mask=mask)
            chosen[backend] = policy(obs, policy.initial(), deterministic=True, mask=mask)[1].action
            obs, _, _, done, info = env.step(action)
            cost = info["cost"]
    np.testing.assert_allclose(chosen["numpy"], chosen["jax"], atol=1e-5)
    assert onnx_export.compare(policy, onnx_export.build(policy).SerializeToString()) < 1e-5
    if make is Masked:
        with pytest.raises(UserError, match="needs one with 6 entries"):
            policy(obs, policy.initial())
        with pytest.raises(UserError, match="allows nothing"):
            policy(obs, policy.initial(), mask=np.array([1, 1, 1, 0, 0, 0]))


class Wrapped(gymnasium.Wrapper):
    def action_masks(self):
        return np.array([1, 0, 0, 0, 0, 1])


def test_masks_of_a_wrapper_are_found_before_those_within():
    host = open_host(lambda: Wrapped(Parts(spaces.MultiDiscrete([3, 3]))))
    assert host.masks == 6
    within = replace(host, make=lambda: Wrapped(Masked(method=True)))
    for each in (host, within):
        np.testing.assert_array_equal(each.fleet(1).reset([0])[0, 2:], [1, 0, 0, 0, 0, 1])


def test_masks_are_looked_for_where_there_are_choices_and_however_environments_are_tied_together():
    class Tied(Parts):
        def __init__(self):
            super().__init__(spaces.Box(-1, 1, (2,)))
            self.env = gymnasium.Wrapper(self)
            self.action_masks = lambda: 1 / 0

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": np.ones(2)}

    assert open_host(Tied).masks == 0
    assert [type(each) for each in boundary.layers(Tied())] == [Tied]
    tied = Wrapped(Tied())
    assert boundary.layers(tied) == [tied, tied.env]


def test_a_mask_must_come_with_reset_as_well_and_leave_a_choice():
    class Late(Parts):
        def step(self, action):
            *values, info = super().step(action)
            return *values, info | {"action_mask": np.ones(3)}

    with pytest.raises(UserError, match="an action mask with a step, but none with reset"):
        open_host(lambda: Late(spaces.Discrete(3)))

    class Stuck(Masked):
        def step(self, action):
            *values, info = super().step(action)
            return *values, info | {"action_mask": np.array([1, 1, 1, 0, 0, 0])}

    fleet = replace(open_host(Masked), make=Stuck).fleet(1)
    fleet.reset([0])
    with pytest.raises(UserError, match="step 1: the action mask allows nothing"):
        fleet.step(np.array([[1, 0]]))


def test_masks_are_found_and_must_stay():
    assert (open_host(Masked).masks, open_host(Masked).observation_size) == (6, 8)
    assert open_host(lambda: Masked(method=True)).masks == 6
    assert (open_host(Parts).masks, open_host(Parts).observation_size) == (0, 2)

    class Forgetful(Masked):
        def step(self, action):
            *values, info = super().step(action)
            return *values, {"cost": info["cost"]}

    fleet = replace(open_host(Masked), make=Forgetful).fleet(1)
    fleet.reset([0])
    with pytest.raises(UserError, match="the action mask is missing, but must have 6 entries"):
        fleet.step(np.array([[1, 0]]))


def test_a_space_that_cannot_be_trained_is_named():
    with pytest.raises(UserError, match=r"Text.*Dict and Tuple of them can be trained"):
        describe_actions(spaces.Dict({"a": spaces.Text(3)}), "env")
    with pytest.raises(UserError, match="discrete actions"):
        qcrl.train("wcsac", Parts, qcrl.Outage(9.0, 0.1), 160)
    vector = gymnasium.vector.SyncVectorEnv([Parts] * 2)
    with pytest.raises(UserError, match="takes dictionaries or tuples"):
        open_host(vector)


class Named(Parts):
    """Its masks are a dictionary in another order than its actions, with nothing for the numbers."""

    def __init__(self, mask=None):
        choices = {"gear": spaces.Discrete(3), "way": spaces.Discrete(3)}
        super().__init__(spaces.Dict({"speed": spaces.Box(0.0, 1.0)} | choices))
        self.mask = mask or {"way": np.array([0, 1, 1]), "speed": None, "gear": np.array([1, 1, 0])}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": self.mask}

    def step(self, action):
        assert action["gear"] != 2
        assert action["way"] != 0
        *values, info = super().step(action)
        return *values, info | {"action_mask": self.mask}


def test_masks_by_name_go_by_their_keys_in_training_and_after_it(tmp_path):
    run = qcrl.train("outage_ppo", Named, qcrl.Outage(9.0, 0.1), 80, out=tmp_path / "run", progress=False, **SMALL)
    policy, obs, rng = run.policy(backend="numpy"), np.zeros(2), np.random.default_rng(0)
    mask = Named().mask
    drawn = [policy(obs, policy.initial(), rng=rng, mask=mask)[0] for _ in range(50)]
    assert {int(action["gear"]) for action in drawn} == {0, 1}
    assert {int(action["way"]) for action in drawn} == {1, 2}
    batch = {key: None if each is None else np.tile(each, (50, 1)) for key, each in mask.items()}
    actions, _ = policy(np.zeros((50, 2)), policy.initial(batch=50), rng=rng, mask=batch)
    assert {int(action["way"]) for action in actions} == {1, 2}
    with pytest.raises(UserError, match="has 'path', but the actions have gear, speed, way"):
        policy(obs, policy.initial(), mask={"path": mask["way"]})


def test_a_mask_with_an_unknown_name_is_an_error():
    with pytest.raises(UserError, match="has 'path', but the actions have gear, speed, way"):
        open_host(lambda: Named({"path": np.ones(3), "gear": np.ones(3)}))
