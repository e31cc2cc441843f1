"""The truth about 43 traffic signs: which of them a rotation or a mirror turns into another sign, and why.

A sign is *bound* under a move if the moved sign shows the drawing of another class, and *free* if no class shows it;
whether a driver would accept the moved sign does not matter. The table follows from the drawings on the signs. It was
written before any network was trained on them.

    >>> SIGNS[38].name, SIGNS[38].nearest_angle, SIGNS[38].rotation_reach
    ('keep right', 90, 0.25)
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SIGNS", "Sign"]


@dataclass(frozen=True)
class Sign:
    """What a rotation and what a mirror make of a traffic sign.

    Args:
        name: A short name; unique.
        rotation_reason: Why the sign is free or bound under rotation. For a free sign: what the rotated sign shows, and
            no class does.
        mirror_reason: The same for the left-right mirror.
        rotation_twins: The classes that a rotation makes of it, each with the angle in degrees, counter-clockwise in
            (−180, 180]. Empty if the sign is free.
        mirror_twin: The class that the mirror makes of it; None if the sign is free.
    """

    name: str
    rotation_reason: str
    mirror_reason: str
    rotation_twins: tuple[tuple[int, int], ...] = ()
    mirror_twin: int | None = None

    @property
    def nearest_angle(self) -> int | None:
        """The smallest rotation that makes another class of the sign, in degrees; None if it is free."""
        return min((abs(angle) for _, angle in self.rotation_twins), default=None)

    @property
    def rotation_reach(self) -> float:
        """The share of all rotations that keep the class: up to half way to the nearest twin, in both directions."""
        return 1.0 if self.nearest_angle is None else self.nearest_angle / 360

    @property
    def mirror_reach(self) -> float:
        """The share of the two elements (identity and mirror) that keep the class."""
        return 1.0 if self.mirror_twin is None else 0.5


_SYMMETRIC = "the drawing is symmetric"
_FALLING = "its bar then falls from left to right; those of all classes rise"

SIGNS = (
    Sign("speed limit 20", "upside down it reads 02", "it reads like 05: the digits change places"),
    Sign("speed limit 30", "upside down the 0 comes first", "the 0 comes first"),
    Sign("speed limit 50", "upside down it reads 05", "it reads like 02: the digits change places"),
    Sign("speed limit 60", "upside down it reads 09; there is no 90 either", "the 0 comes first"),
    Sign("speed limit 70", "upside down the 0 comes first", "the 0 comes first"),
    Sign("speed limit 80", "upside down it reads 08", "it reads 08"),
    Sign("end of speed limit 80", "upside down it reads 08, with the same bar", f"it reads 08; {_FALLING}"),
    Sign("speed limit 100", "upside down it reads 001", "it reads 001"),
    Sign("speed limit 120", "upside down it reads 021", "it reads like 051"),
    Sign("no overtaking", "the cars lean or lie on their roofs", "the red car is then on the right"),
    Sign("no overtaking by lorries", "lorry and car lean or lie on their roofs", "the red lorry is then on the right"),
    Sign("right of way", "the arrow leans; upright in a triangle on its tip it is no class", _SYMMETRIC),
    Sign("priority road", "a quarter turn changes nothing, and no other class is a yellow square", _SYMMETRIC),
    Sign("yield", "a half turn makes it an empty warning sign; every warning sign has a symbol", _SYMMETRIC),
    Sign("stop", "the only octagon", "the only octagon"),
    Sign("no vehicles", "an empty ring: no rotation changes it", _SYMMETRIC),
    Sign("no lorries", "the lorry leans or lies on its roof", "the lorry faces left; beside that of class 10 is a car"),
    Sign("no entry", "a white bar on red in any direction: no other class has one", _SYMMETRIC),
    Sign("general caution", "the exclamation mark leans", _SYMMETRIC),
    Sign("curve to the left", "rotated, a left bend stays a left bend; class 20 bends right",
         "a left bend becomes a right bend", mirror_twin=20),
    Sign("curve to the right", "rotated, a right bend stays a right bend; class 19 bends left",
         "a right bend becomes a left bend", mirror_twin=19),
    Sign("double curve", "the S leans, or its triangle stands on its tip",
         "it then bends right first; that sign is not in the benchmark"),
    Sign("bumpy road", "the bumps are then at the side or at the top", _SYMMETRIC),
    Sign("slippery road", "the car leans or lies on its roof", "the tracks swing to the other side"),
    Sign("road narrows on the right", "the road leans",
         "it then narrows on the left; that sign is not in the benchmark"),
    Sign("roadworks", "the worker leans", "the worker faces the other side"),
    Sign("traffic lights", "the row of lights leans, or green is at the top", _SYMMETRIC),
    Sign("pedestrians", "the pedestrian leans", "the pedestrian walks to the other side"),
    Sign("children", "the children lean", "the children run to the other side"),
    Sign("bicycles", "the bicycle leans", "the bicycle faces the other side"),
    Sign("ice or snow", "a third of a turn changes nothing; on its tip it is no class", _SYMMETRIC),
    Sign("wild animals", "the deer leans", "the deer leaps to the other side"),
    Sign("end of all limits", "a bar without a symbol in any direction: no other class has one",
         f"{_FALLING}, and it has no symbol"),
    Sign("turn right",
         "rotated, a right bend stays a right bend; a quarter turn of class 34 has its head where this has its tail",
         "a right bend becomes a left bend", mirror_twin=34),
    Sign("turn left",
         "rotated, a left bend stays a left bend; a quarter turn of class 33 has its head where this has its tail",
         "a left bend becomes a right bend", mirror_twin=33),
    Sign("ahead only", "one straight arrow: at 135° it points down, to the right or to the left", _SYMMETRIC,
         rotation_twins=((38, -135), (39, 135))),
    Sign("straight or right", "a quarter turn puts both heads where class 37 has them, but the tail to the right",
         "the branch is then on the left", mirror_twin=37),
    Sign("straight or left", "a quarter turn puts both heads where class 36 has them, but the tail to the left",
         "the branch is then on the right", mirror_twin=36),
    Sign("keep right", "one straight arrow: a quarter turn clockwise makes it point down to the left",
         "the arrow then points down to the left", ((39, -90), (35, 135)), 39),
    Sign("keep left", "one straight arrow: a quarter turn counter-clockwise makes it point down to the right",
         "the arrow then points down to the right", ((38, 90), (35, -135)), 38),
    Sign("roundabout", "a third of a turn changes nothing, and no other class has three arrows",
         "the arrows then run clockwise"),
    Sign("end of no overtaking", "the cars lean or lie on their roofs", _FALLING),
    Sign("end of no overtaking by lorries", "lorry and car lean or lie on their roofs", _FALLING),
)  # fmt: skip
"""The 43 signs of the German Traffic Sign Recognition Benchmark; the position is the class.

Each move is judged alone. Together, the mirror and a half turn also make a 20 look like a 50 and the reverse (classes 0
and 2, free under either move); windows on two circles cannot express this.
"""
