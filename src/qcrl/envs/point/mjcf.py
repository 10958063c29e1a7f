"""MuJoCo models of the tasks: Safety Gym's Point robot and its objects as an MJCF string.

A model has the right number of everything, at the origin; an episode moves things to their places.
"""

from qcrl.envs.point import robot
from qcrl.envs.point.outcome import SENSORS
from qcrl.envs.point.tasks import Task

GREMLIN_DENSITY = 0.001
GREMLIN_LIFT = 0.1
"""How far above a gremlin's start its target stands, so that the box hovers clear of the floor."""

_ARROW_SIZE = f"{robot.ARROW_HALF} {robot.ARROW_HALF} {robot.ARROW_HALF}"
_FORCE_RANGE = f"-{robot.FORCE_LIMIT} {robot.FORCE_LIMIT}"
_ROBOT = f"""
    <body name="robot" pos="0 0 {robot.RADIUS}">
      <joint name="x" type="slide" axis="1 0 0" damping="{robot.SLIDE_DAMPING}"/>
      <joint name="y" type="slide" axis="0 1 0" damping="{robot.SLIDE_DAMPING}"/>
      <joint name="heading" type="hinge" axis="0 0 1" damping="{robot.HINGE_DAMPING}"/>
      <geom name="robot_sphere" type="sphere" size="{robot.RADIUS}" friction="1 0.01 0.01" rgba="0 .45 .7 1"/>
      <geom name="robot_arrow" type="box" pos="{robot.ARROW_OFFSET} 0 0" size="{_ARROW_SIZE}" rgba="0 .3 .5 1"/>
      <site name="robot" size="0.01" rgba="0 0 0 0"/>
    </body>"""


def mjcf(task: Task) -> str:
    """The task as MJCF. The robot has the first three joints; sensors stand in the order of `SENSORS`."""
    # A site at the very origin of its body would be bound to it for good: MuJoCo then ignores site_pos.
    hazards = [
        f'<site name="hazard{i}" type="cylinder" pos="1 1 0.01" size="{task.hazard_size} 0.005" rgba=".84 .37 0 .5"/>'
        for i in range(task.hazards)
    ]
    goal = [f'<site name="goal" type="cylinder" pos="1 1 0.01" size="{task.goal_size} 0.005" rgba="0 .62 .45 .6"/>']
    buttons = [
        f'<body name="button{i}" pos="0 0 {task.button_size}"><geom name="button{i}" type="sphere"'
        f' size="{task.button_size}"/></body>'
        for i in range(task.buttons)
    ]
    box = " ".join([str(task.gremlin_size)] * 3)
    gremlins = [
        f'<body name="gremlin{i}" pos="0 0 {task.gremlin_size}"><freejoint/>'
        f'<geom name="gremlin{i}" type="box" size="{box}" density="{GREMLIN_DENSITY}" rgba=".8 .47 .65 1"/>'
        "</body>"
        f'<body name="target{i}" mocap="true" pos="0 0 {task.gremlin_size + GREMLIN_LIFT}"/>'
        for i in range(task.gremlins)
    ]
    # Without relpose a weld keeps the bodies' offset at the start, and the box would stay on the floor.
    welds = [
        f'<weld body1="target{i}" body2="gremlin{i}" solref="0.02 1.5" relpose="0 0 0 1 0 0 0"/>'
        for i in range(task.gremlins)
    ]
    objects = "\n    ".join([*(goal if task.goal == "goal" else []), *hazards, *buttons, *gremlins])
    # The sphere just touches the floor and cannot leave it: that contact bears no force and is left out.
    return f"""<mujoco model="{task.id}">
  <option timestep="{robot.TIMESTEP}" integrator="Euler" cone="pyramidal" solver="Newton" gravity="0 0 -{robot.GRAVITY}"
    magnetic="0 -{robot.MAGNETIC_FIELD} 0"/>
  <default>
    <geom condim="6" density="1" friction="1 0.005 0.0001" solref="0.02 1" solimp="0.9 0.95 0.001 0.5 2"/>
  </default>
  <visual>
    <global offwidth="1024" offheight="1024"/>
    <headlight ambient=".4 .4 .4" diffuse=".5 .5 .5" specular="0 0 0"/>
  </visual>
  <worldbody>
    <geom name="floor" type="plane" size="{2 * task.extent} {2 * task.extent} 0.1" rgba=".95 .95 .95 1"/>
    <camera name="top" pos="0 0 {4 * task.extent}" fovy="35"/>{_ROBOT}
    {objects}
  </worldbody>
  <contact><exclude body1="world" body2="robot"/></contact>
  <equality>{"".join(welds)}</equality>
  <actuator>
    <motor name="drive" site="robot" gear="{robot.GEAR} 0 0 0 0 0" ctrlrange="-1 1" forcerange="{_FORCE_RANGE}"/>
    <velocity name="turn" joint="heading" gear="{robot.GEAR}" kv="1" ctrlrange="-1 1" forcerange="{_FORCE_RANGE}"/>
  </actuator>
  <sensor>{"".join(f'<{sensor} site="robot"/>' for sensor in SENSORS)}</sensor>
</mujoco>"""
