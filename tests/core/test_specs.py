"""Specs are values: they compare, hash, print and copy, and nothing else is taken in their place."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest

from support import name
from vpgcnn import (
    SO2,
    Full,
    GroupConv2d,
    GumbelSoftmax,
    Harmonic,
    Hue,
    LiftConv2d,
    RankedSoftmax,
    ReparametrizedWindow,
    SampledWindow,
    Shared,
    Siren,
    Table,
    Variational,
    Window,
)
from vpgcnn.kernels import SirenKernel, TableKernel
from vpgcnn.levels import SharedLevel, VariationalLevel

PAIRS = [
    (SO2(8), SO2(4)),
    (Hue(3), Hue(6)),
    (Window(0.4), Window(0.5)),
    (Window(), ReparametrizedWindow()),
    (Window(), SampledWindow()),
    (RankedSoftmax(noise="permuted"), RankedSoftmax()),
    (GumbelSoftmax(final=0.1), GumbelSoftmax()),
    (Full(), Shared()),
    (Shared(Window(0.4)), Shared(Window(0.5))),
    (Shared(regularised=True), Shared()),
    (Variational(), Shared()),
    (Variational(SampledWindow(), condition="output"), Variational(SampledWindow(), condition="input")),
    (Variational(encoder_width=3), Variational()),
    (Variational(detach_features=False), Variational()),
    (Variational(explore=0.5), Variational()),
    (Table(), Table(separable=True)),
    (Siren(omega=4), Siren(omega=5)),
    (Siren(hidden=8), Siren()),
    (Harmonic(detail=1), Harmonic()),
    (Harmonic(order=1), Harmonic()),
]


@pytest.mark.parametrize(("spec", "other"), PAIRS, ids=name)
def test_specs_are_values(spec, other) -> None:
    same = copy.deepcopy(spec)
    assert spec == same
    assert hash(spec) == hash(same)
    assert spec != other
    assert len({spec, same, other}) == 2
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert eval(repr(spec)) == spec  # the repr is the call that makes it
    with pytest.raises(FrozenInstanceError):
        spec.anything = 1


def test_specs_are_changed_by_replace() -> None:
    level = Variational(Window(initial=0.5), condition="output")
    wider = replace(level, family=replace(level.family, initial=0.9))
    assert wider == Variational(Window(initial=0.9), condition="output")
    assert level.family.initial == 0.5
    assert replace(Siren(hidden=8), omega=3.0) == Siren(8, 3.0)
    with pytest.raises(ValueError, match="condition must be"):
        replace(level, condition="all")


def test_a_spec_may_be_used_for_many_layers() -> None:
    level, kernel = Variational(encoder_width=2), Siren(hidden=4)
    one, two = (GroupConv2d(2, 2, 3, SO2(4), level=level, kernel=kernel) for _ in range(2))
    assert isinstance(one.level, VariationalLevel)
    assert isinstance(one.kernel, SirenKernel)
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group": Hue}, r"group must be a value such as Hue\(3\), got <class 'vpgcnn.groups.Hue'>"),
        ({"group": "hue"}, r"group must be a value such as Hue\(3\), got 'hue'"),
        ({"level": Variational}, r"level must be a value such as Variational\(\), got <class"),
        (
            {"level": partial(Variational, condition="output")},
            r"level must be a value such as Variational\(\), got func",
        ),
        ({"level": lambda group, channels: None}, r"level must be a value such as Variational\(\), got <function"),
        ({"level": "full"}, r"level must be a value such as Variational\(\), got 'full'"),
        ({"level": Window()}, r"level must be a value such as Variational\(\), got Window"),
        ({"level": Variational().build(Hue(3), 4)}, r"level must be a value such as Variational\(\), got VariationalL"),
        ({"kernel": Table}, r"kernel must be a value such as Siren\(omega=4\), got <class"),
        ({"kernel": TableKernel}, r"kernel must be a value such as Siren\(omega=4\), got <class"),
        ({"kernel": partial(SirenKernel, omega=4)}, r"kernel must be a value such as Siren\(omega=4\), got func"),
    ],
)
@pytest.mark.parametrize("layer", [LiftConv2d, GroupConv2d])
def test_a_class_or_a_factory_is_no_value(layer, wrong: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        layer(3, 4, 3, **{"group": Hue(3), **wrong})


@pytest.mark.parametrize("level", [Shared, Variational])
@pytest.mark.parametrize("family", [Window, "window", None])
def test_a_family_is_a_value_too(level, family) -> None:
    with pytest.raises(TypeError, match=r"family must be a value such as Window\(\), got"):
        level(family)


def test_the_modules_know_their_specs() -> None:
    conv = GroupConv2d(4, 4, 3, Hue(3), level=Shared(SampledWindow(0.7)))
    assert isinstance(conv.level, SharedLevel)
    assert conv.level.family == SampledWindow(0.7)
    assert "SampledWindow(initial=0.7" in repr(conv)
