"""Observations that are images: where they lie, what the CNN computes, and that policies learn from them."""

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from scipy.signal import correlate

import qcrl
from host_envs import BrightPixel
from qcrl import Outage, UserError
from qcrl.cli.main import main
from qcrl.envs.host.environment import open_host
from qcrl.envs.host.spaces import find_images
from qcrl.nets.images import Image, convolve, filters, is_image
from qcrl.runs.policy import Policy

FREE = Outage(100, 0.1)
QUICK = {"num_envs": 8, "steps_per_env": 64, "minibatches": 4, "epochs": 4, "learning_rate": 2e-3, "progress": False}


def bytes_of(*shape):
    return Box(0, 255, shape, np.uint8)


def test_images_are_found_where_they_lie():
    space = Dict({"a": Box(-1, 1, (3,)), "b": bytes_of(9, 8, 3), "c": Tuple([Discrete(4), bytes_of(4, 20, 20)])})
    assert find_images(space) == (Image(3, (9, 8, 3)), Image(3 + 216 + 4, (4, 20, 20)))
    assert not is_image((128,), np.dtype(np.uint8))
    assert not is_image((5, 5, 3), np.dtype(np.uint8))
    assert not is_image((20, 20, 3), np.dtype(np.float32))
    assert is_image((20, 20), np.dtype(np.uint8))


@pytest.mark.parametrize(
    ("shape", "order"),
    [((20, 30), "hw"), ((20, 30, 3), "hwc"), ((3, 20, 30), "chw"), ((4, 20, 30, 3), "fhwc"), ((4, 3, 20, 30), "fchw")],
)
def test_every_layout_gives_the_same_pixels(shape, order):
    values = np.arange(np.prod(shape)).reshape(shape)
    expected = np.einsum(f"{order}->hw{'f' * ('f' in order)}{'c' * ('c' in order)}", values).reshape(20, 30, -1)
    image = Image(2, shape)
    row = np.concatenate([[-1, -1], values.ravel(), [-1]])
    np.testing.assert_array_equal(image.pixels(np.stack([row, row]))[1], expected)


@pytest.mark.parametrize(("height", "width", "block"), [(12, 12, 2), (13, 9, 2), (41, 36, 4)])
def test_a_layer_is_a_convolution_with_strides(height, width, block):
    rng = np.random.default_rng(0)
    picture, kernel = rng.normal(size=(height, width, 3)), rng.normal(size=(block**2 * 3, 4 * 5))
    found = convolve(picture, kernel, block, np)
    padded = np.pad(picture, [(0, -height % block), (0, -width % block), (0, 0)])
    for output, weights in enumerate(filters(kernel, block)):
        whole = correlate(padded, np.moveaxis(weights, 0, -1), mode="valid")[..., 0]
        np.testing.assert_allclose(found[..., output], whole[::block, ::block], rtol=1e-5, atol=1e-5)


def test_a_policy_learns_from_an_image_alone(tmp_path):
    run = qcrl.train("outage_ppo", BrightPixel, FREE, 8192, out=tmp_path / "run", **QUICK)
    result = qcrl.evaluate(run, env=BrightPixel, episodes=50)
    assert result.pooled[0].mean_return > 7.2  # of 8; without looking 4
    jax_policy, numpy_policy = run.policy(), run.policy(backend="numpy")
    rng, carry, own = np.random.default_rng(0), jax_policy.initial(batch=20), numpy_policy.initial(batch=20)
    seen = (rng.random((20, 12, 12, 1)) < 0.05).astype(np.uint8) * 200
    one, _ = jax_policy(seen, carry, deterministic=True)
    two, own = numpy_policy(seen.reshape(20, -1), own, deterministic=True)
    np.testing.assert_array_equal(one, two)
    assert len(set(two.tolist())) == 2


def test_images_beside_numbers_are_learned_from_resumed_certified_and_exported(tmp_path, capsys):
    make = partial(BrightPixel, beside=True, shape=(3, 12, 12))
    qcrl.train("outage_ppo", make, FREE, 8192, out=tmp_path / "run", **QUICK)
    run = qcrl.train("outage_ppo", make, FREE, 9216, out=tmp_path / "run", resume=True, **QUICK)
    assert run.metrics["iteration"][-1] == 18
    assert run.metrics["episode_return"][-1] > 6.5  # of 8; with one of them alone 6
    certificate = qcrl.certify(run, env=make)
    assert certificate.verdict == "certified"
    rng, policy = np.random.default_rng(0), run.policy(backend="numpy")
    obs = np.concatenate([rng.normal(size=(9, 2)), rng.integers(0, 255, (9, 432))], axis=1)
    heads = [
        np.asarray(p._act(p.known(obs, p.initial(batch=9)), p.initial(batch=9).memory, rng, True)[0])
        for p in (policy, run.policy())
    ]
    np.testing.assert_allclose(*heads, atol=1e-5)
    pytest.importorskip("onnxruntime")
    assert main(["export", str(run.path), "--out", str(tmp_path / "a.onnx")]) == 0
    assert Policy.load(next((run.path / "policies").glob("*.safetensors"))).env.images == (Image(2, (3, 12, 12)),)


@pytest.mark.parametrize("algorithm", ["cvar_pg", "wcsac"])
def test_algorithms_that_cannot_see_say_so(tmp_path, algorithm):
    with pytest.raises(UserError, match=r"images among its observations; use outage_ppo|discrete actions"):
        qcrl.train(algorithm, BrightPixel, FREE, 100, out=tmp_path / "run", progress=False)
    assert "144 observed numbers, images among them" in str(open_host(BrightPixel))
