"""The top-down renderer: the right colours at the right pixels."""

from typing import get_type_hints

import numpy as np
import pytest

from qcrl import UserError
from qcrl.envs.point.gallery import compose
from qcrl.envs.point.mujoco_engine import MujocoEngine
from qcrl.envs.point.pictures import BLUE, GREEN, MARGIN, VERMILLION, YELLOW, Scene, TwoPathScene, draw, open_camera
from qcrl.envs.point.tasks import TASKS

SIMPLE, GREMLIN = TASKS["SimpleButtonEnv-v0"], TASKS["GremlinEnv-v0"]
SCENE = Scene(
    task=SIMPLE,
    robot=np.array([-0.5, 0.5]),
    heading=0.0,
    goal=np.array([1.0, -1.0]),
    hazards=np.array([[0.5, 0.5]]),
    buttons=np.array([[-1.0, -1.0], [1.0, 1.0]]),
    goal_button=1,
    buttons_live=True,
    gremlins=np.array([[0.0, -0.6]]),
    gremlin_yaw=np.zeros(1),
    cost=False,
)


def pixel(frame: np.ndarray, x: float, y: float, extent: float = SIMPLE.extent) -> np.ndarray:
    """The colour at a place of the world; y points up."""
    size, half = len(frame), extent + MARGIN
    return frame[int(size * (half - y) / (2 * half)), int(size * (half + x) / (2 * half))].astype(int)


def near(colour: np.ndarray, expected: tuple[int, ...], tolerance: int = 25) -> bool:
    return bool(np.all(np.abs(colour - expected) <= tolerance))


@pytest.mark.parametrize("size", [200, 400])
def test_every_object_is_where_it_should_be(size):
    frame = draw(SCENE, size)
    assert frame.shape == (size, size, 3)
    assert frame.dtype == np.uint8
    assert near(pixel(frame, -0.48, 0.42), BLUE)
    assert near(pixel(frame, 1.0, 1.0), YELLOW)
    assert near(pixel(frame, 1.0, -1.0), GREEN)
    red, green, blue = pixel(frame, 0.5, 0.5)
    assert red > green > blue
    grey = pixel(frame, -1.0, -1.0)
    assert np.ptp(grey) < 30
    assert grey.max() < 200
    red, green, blue = pixel(frame, -0.07, -0.6)
    assert red > blue > green
    assert near(pixel(frame, -0.25, 0.25), (255, 255, 255))


def test_a_place_is_two_numbers():
    hints = get_type_hints(Scene)
    assert (hints["robot"].dim_str, hints["hazards"].dim_str) == ("2", "hazards 2")


def test_the_nose_turns_with_the_heading():
    for heading, (x, y) in ((0.0, (0.15, 0.0)), (np.pi / 2, (0.0, 0.15)), (np.pi, (-0.15, 0.0))):
        frame = draw(SCENE._replace(heading=heading))
        assert near(pixel(frame, -0.5 + x, 0.5 + y), BLUE)
        assert not near(pixel(frame, -0.5 - x, 0.5 - y), BLUE)


def test_a_cost_flashes_round_the_edge():
    assert near(draw(SCENE._replace(cost=True))[2, 200], VERMILLION)
    assert not near(draw(SCENE)[2, 200], VERMILLION)


def test_buttons_go_pale_while_they_are_off():
    live, off = draw(SCENE), draw(SCENE._replace(buttons_live=False))
    assert pixel(off, -1.0, -1.0).sum() > pixel(live, -1.0, -1.0).sum() + 100
    assert near(pixel(off, 1.0, 1.0), YELLOW)


def test_the_trail_is_drawn_and_fades_with_age():
    trail = [(-1.2 + 0.01 * i, 0.25) for i in range(100)]
    frame = draw(SCENE, trail=trail)
    old, new = pixel(frame, -1.15, 0.25), pixel(frame, -0.3, 0.25)
    assert new.sum() < old.sum() < 3 * 250
    assert np.all(pixel(draw(SCENE), -0.3, 0.25) > 235)


def test_a_robot_far_outside_is_shown_at_the_edge():
    frame = draw(SCENE._replace(robot=np.array([30.0, 0.0]))).astype(int)
    blue = np.argwhere(np.all(np.abs(frame - BLUE) < 25, axis=2))
    assert len(blue) > 50
    assert blue[:, 1].min() > 350


def test_two_paths_show_the_route_taken():
    before, first, second = (draw(TwoPathScene(route, 2 if route else 0, 4)).astype(int) for route in (0, 1, 2))
    middle = [np.argwhere(np.all(np.abs(frame - BLUE) < 25, axis=2)).mean(axis=0) for frame in (before, first, second)]
    assert middle[1][0] < middle[0][0] < middle[2][0]
    assert middle[0][1] < middle[1][1] == pytest.approx(middle[2][1], abs=1)


def test_pictures_share_no_paper():
    scene = TwoPathScene(1, 1, 4)
    first = draw(scene, 80)
    assert (draw(scene._replace(position=3), 80) != first).any()
    np.testing.assert_array_equal(draw(scene, 80), first)


def test_the_gallery_shows_all_four_tasks():
    picture = np.asarray(compose()).astype(int)
    quarters = np.array_split(picture, 4, axis=1)
    robots = [np.all(np.abs(quarter - BLUE) < 25, axis=2).sum() for quarter in quarters]
    assert min(robots) > 50


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_opengl_renderer_works_or_says_what_to_do():
    engine = MujocoEngine(GREMLIN)
    engine.reset(np.random.default_rng(0))
    complaint = ""
    try:
        frame = open_camera(engine, 200)()
    except UserError as error:
        complaint = str(error)
    if complaint:
        assert "renderer='top_down'" in complaint
    else:
        assert frame.shape == (200, 200, 3)
        assert frame.std() > 5
