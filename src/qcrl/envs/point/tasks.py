"""The paper's four tasks, written down once as data. Both engines read this file and nothing else about a task."""

from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
ENERGY = "energy"
"""Mean square of the clipped action, a cost that every task has."""


@dataclass(frozen=True)
class Task:
    """Objects, placement, sensing and rules of one task for the Point robot. Lengths are metres."""

    id: str
    description: str
    goal: Literal["goal", "button"]
    """Reach a goal area that moves on success, or press the goal button, which then changes."""
    extent: float
    """Half the side of the square in which objects are placed. There are no walls."""
    hazards: int = 0
    buttons: int = 0
    gremlins: int = 0
    fixed_hazards: tuple[Point, ...] = ()
    """Positions of all hazards, where the task fixes them; random otherwise."""
    fixed_buttons: tuple[Point, ...] = ()
    lidar_reach: float = 3.0
    lidar_bins: int = 16

    robot_keepout: float = 0.4
    goal_size: float = 0.3
    goal_keepout: float = 0.305
    hazard_size: float = 0.3
    hazard_keepout: float = 0.305
    button_size: float = 0.1
    button_keepout: float = 0.2
    gremlin_size: float = 0.1
    gremlin_travel: float = 0.35
    gremlin_keepout: float = 0.4
    button_delay: int = 10
    """Steps after a press during which buttons cost nothing and the button lidar is dark."""
    goal_reward: float = 1.0
    horizon: int = 1000

    @property
    def lidars(self) -> tuple[str, ...]:
        """Which lidars the robot carries, in the (alphabetical) order of the observation."""
        present = {"buttons": self.buttons, "goal": 1, "gremlins": self.gremlins, "hazards": self.hazards}
        return tuple(name for name, count in present.items() if count)

    @property
    def cost_kinds(self) -> tuple[str, ...]:
        """The kinds of object that cost."""
        return tuple(kind for kind in ("hazards", "buttons", "gremlins") if getattr(self, kind))

    @property
    def costs(self) -> tuple[str, ...]:
        """All that a step can be charged for: 1 for any of the objects, 1 for each kind, and the motors' energy."""
        return ("cost", *self.cost_kinds, ENERGY)

    @property
    def observation_size(self) -> int:
        return 12 + self.lidar_bins * len(self.lidars)

    @property
    def placement(self) -> tuple[tuple[str, int, float, tuple[Point, ...]], ...]:
        """Objects in the order in which they are placed: (kind, count, keepout, fixed positions)."""
        return (
            ("robot", 1, self.robot_keepout, ()),
            ("goal", int(self.goal == "goal"), self.goal_keepout, ()),
            ("buttons", self.buttons, self.button_keepout, self.fixed_buttons),
            ("hazards", self.hazards, self.hazard_keepout, self.fixed_hazards),
            ("gremlins", self.gremlins, self.gremlin_keepout, ()),
        )


TASKS: dict[str, Task] = {
    task.id: task
    for task in (
        Task(
            id="SimpleButtonEnv-v0",
            description="Press two buttons in turn; three fixed hazards lie near the straight way.",
            goal="button",
            extent=1.5,
            hazards=3,
            buttons=2,
            fixed_hazards=((0.0, 0.0), (-1.0, 1.0), (0.5, -0.5)),
            fixed_buttons=((-1.0, -1.0), (1.0, 1.0)),
        ),
        Task(
            id="DynamicEnv-v0",
            description="Reach a goal that jumps on success, around three randomly placed hazards.",
            goal="goal",
            extent=1.5,
            hazards=3,
        ),
        Task(
            id="GremlinEnv-v0",
            description="Reach a goal that jumps on success, around five hazards and three circling gremlins.",
            goal="goal",
            extent=2.0,
            hazards=5,
            gremlins=3,
            lidar_reach=5.0,
        ),
        Task(
            id="DynamicButtonEnv-v0",
            description="Press the lit one of six randomly placed buttons without touching the others.",
            goal="button",
            extent=1.5,
            buttons=6,
        ),
    )
}
