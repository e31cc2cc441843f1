"""What reviewers of 0.3 found outside the core, each once."""

from dataclasses import dataclass, field, replace

import pytest

from vpgcnn.apps.commands.train import _options
from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.lab import specs
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import NO_GROUP, RESNET_SMALL
from vpgcnn.levels import Full, Level, LevelSpec


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lr", "0.01", "--optimiser.lr", "0.02"], "--lr cannot be combined with --optimiser.lr"),
        (["--start", "a", "--start-from", "b"], "--start cannot be combined with --start-from"),
        (["--use", "file.py"], "--use goes before the command"),
    ],
)
def test_settings_that_mean_the_same_are_not_ignored(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        _options(["mnist67-180", *words])


def test_values_with_factories_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "_known", dict(specs._known))

    @specs.register
    @dataclass(frozen=True)
    class Named(LevelSpec):
        low: tuple[str, ...] = ()
        names: tuple[str, ...] = field(default_factory=tuple)

        def build(self, group: Group, channels: int) -> Level:
            return Full().build(group)

    value = Named(names=("a",))
    assert specs.text(value) == "Named(names=('a',))"


def test_a_level_without_a_group_is_refused() -> None:
    with pytest.raises(UserError, match="without a group there is nothing to choose"):
        build(replace(RESNET_SMALL, group=NO_GROUP), 3, 10)
