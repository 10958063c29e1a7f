"""Problems with a story, used by the figures and the tests."""

import numpy as np

from qcrl.theory.cmdp import CMDP

MACHINE_HORIZON = 20
MACHINE_LIMIT = 2
COURIER_HORIZON = 20
COURIER_LIMIT = 3


def machine(discount: float = 1.0) -> CMDP:
    """A machine that is fine, worn or broken, run gently (action 0) or hard (action 1). A broken step costs 1.

    Running hard pays more and wears the machine; running it hard while it is worn pays most and breaks it. Over 20
    steps with a limit of 2 broken steps, always gentle returns 19.8 at an outage of .015, always hard 36.9 at .79.
    """
    return CMDP(
        transition=np.array(
            [
                [[0.95, 0.05, 0.0], [0.7, 0.3, 0.0]],
                [[0.6, 0.32, 0.08], [0.2, 0.4, 0.4]],
                [[0.6, 0.0, 0.4], [0.3, 0.0, 0.7]],
            ]
        ),
        reward=np.array([[1.0, 2.0], [1.0, 3.0], [0.0, 0.5]]),
        cost=np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        width=np.zeros((3, 2)),
        discount=discount,
    )


def spread_cmdp(rng: np.random.Generator, states: int = 4, actions: int = 3, discount: float = 0.9) -> CMDP:
    """Like `random_cmdp`, but actions differ in the spread of their cost more than in its mean."""
    width = rng.uniform(0.5, 3.0, size=(states, actions))
    return CMDP(
        transition=np.eye(states)[rng.integers(states, size=(states, actions))],
        reward=rng.random((states, actions)),
        cost=rng.uniform(1.5, 1.8, size=(states, actions)) - width / 2,
        width=width,
        discount=discount,
    )


def staged(width: float, discount: float = 0.9) -> CMDP:
    """Three stages with a choice of cost each, then nothing but the noise. Without noise there are 27 atoms at most."""
    states, actions = 4, 3
    transition = np.zeros((states, actions, states))
    transition[np.arange(3), :, np.arange(1, 4)] = 1
    transition[3, :, 3] = 1
    cost = np.zeros((states, actions))
    cost[:3] = [[0.0, 0.7, 1.6], [0.1, 0.9, 1.3], [0.0, 0.4, 2.0]]
    return CMDP(transition, np.zeros((states, actions)), cost, np.full((states, actions), width), discount)


def coin(discount: float = 0.5) -> CMDP:
    """One state whose two actions cost 0 and 1. At discount 1/2 an even coin's cumulative cost is uniform on [0, 2]."""
    return CMDP(np.ones((1, 2, 1)), np.zeros((1, 2)), np.array([[0.0, 1.0]]), np.zeros((1, 2)), discount)


def courier(discount: float = 1.0) -> CMDP:
    """A courier on a quiet road, on a watched one, or stopped, who drives slowly (action 0) or races (action 1).

    Being stopped costs 1 and earns nothing. A step later no state tells of it, so that only the account knows how many
    stops there were: over 20 steps with a limit of 3 stops it pays to see it.
    """
    stopped = np.array([[0.0, 0.15], [0.0, 0.4]])
    stays = 0.8
    transition = np.zeros((3, 2, 3))
    for road in range(2):
        transition[road, :, road] = stays * (1 - stopped[road])
        transition[road, :, 1 - road] = (1 - stays) * (1 - stopped[road])
        transition[road, :, 2] = stopped[road]
    transition[2] = [0.5, 0.5, 0.0]
    return CMDP(
        transition,
        reward=np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]),
        cost=np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        width=np.zeros((3, 2)),
        discount=discount,
    )
