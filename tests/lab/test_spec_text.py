"""Groups, levels and kernels as text: every value survives, and nothing but values is ever made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpgcnn.apps import cli
from vpgcnn.apps.commands.common import UsageError
from vpgcnn.apps.commands.train import _config, _default, _options
from vpgcnn.errors import UserError
from vpgcnn.groups import O2, SO2, Dihedral, Group, Hue, Luminance, Product, Rotations, Saturation
from vpgcnn.kernels import (
    Constrained,
    Harmonic,
    KernelSpec,
    Nonstationary,
    Projected,
    Relaxed,
    ResidualPathway,
    Siren,
    Table,
)
from vpgcnn.lab import specs
from vpgcnn.lab.config_io import from_json, to_json
from vpgcnn.lab.networks import MODELS, SE2Config
from vpgcnn.lab.specs import ALIASES, KINDS, names, parse, register, text
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.recipes import PRESETS, RECIPES, recipe
from vpgcnn.levels import (
    Family,
    Fixed,
    Full,
    GumbelSoftmax,
    LevelSpec,
    Mixture,
    RankedSoftmax,
    ReparametrizedWindow,
    SampledWindow,
    Shared,
    Variational,
    Window,
)
from vpgcnn.objective import Band, DualWeight, KlSchedule, Price

numbers = st.integers(1, 40)
shares = st.floats(0.05, 1.0, allow_nan=False)
rotations = st.one_of(*(st.builds(kind, numbers) for kind in (SO2, O2, Rotations, Dihedral)))
shades = st.one_of(st.builds(Saturation, numbers), st.builds(Luminance, numbers))
hues = st.one_of(st.builds(Hue, numbers), shades, st.builds(Product, st.builds(Hue, numbers), shades))
groups = st.one_of(rotations, hues, st.builds(Product, rotations, hues))
windows = st.one_of(*(st.builds(kind, shares) for kind in (Window, SampledWindow, ReparametrizedWindow)))
families = st.one_of(
    windows,
    st.builds(RankedSoftmax, noise=st.sampled_from(["ranked", "permuted", "exchangeable"])),
    st.builds(GumbelSoftmax, final=st.floats(0.05, 1.0)),
    st.builds(Mixture, numbers, st.booleans(), shares),
)
levels = st.one_of(
    st.just(Full()),
    st.builds(Fixed, shares),
    st.builds(Shared, families, st.booleans()),
    st.builds(
        Variational,
        st.one_of(st.builds(Window, shares), st.builds(SampledWindow, shares)),
        st.sampled_from([None, "input", "output"]),
        st.one_of(st.none(), numbers),
        st.booleans(),
    ),
)
basic = st.one_of(
    st.builds(Table, st.booleans()),
    st.builds(Siren, numbers, omega=st.floats(0.1, 50.0, allow_nan=False)),
    st.builds(Harmonic, st.floats(0.0, 5.0), order=numbers),
)
strengths = st.floats(0.0, 50.0)
kernels = st.one_of(
    basic,
    st.builds(Relaxed, numbers, st.one_of(st.none(), basic), st.booleans()),
    st.builds(ResidualPathway, st.one_of(st.none(), basic), strengths, free_decay=strengths),
    st.builds(Nonstationary, numbers, decay=strengths),
    st.builds(Constrained, basic, elastic=st.one_of(st.none(), shares)),
    st.builds(Projected, st.one_of(strengths, st.tuples(strengths, strengths))),
    st.builds(Projected, st.tuples(strengths, strengths), numbers, strengths),
)
STRATEGIES: dict[type[Any], st.SearchStrategy[Any]] = {
    Group: groups,
    LevelSpec: levels,
    KernelSpec: kernels,
    Family: families,
}


def test_every_registered_class_is_tried() -> None:
    """A class that is added to the registry needs a strategy above."""
    covered = {
        *(SO2, O2, Rotations, Dihedral, Hue, Saturation, Luminance, Product, Full, Fixed, Shared, Variational),
        *(Siren, Harmonic, Table, Relaxed, ResidualPathway, Projected, Nonstationary, Constrained),
        *(Window, SampledWindow, ReparametrizedWindow, RankedSoftmax, GumbelSoftmax, Mixture),
    }
    ours = {name for name, kind in specs._known.items() if kind.__module__.startswith("vpgcnn.")}  # not of other tests
    registered = {name for kind in KINDS for name in names(kind)} & ours
    assert registered == {kind.__name__ for kind in covered}


@given(st.data())
@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: KINDS[kind])
def test_text_is_the_call_that_makes_the_value(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(STRATEGIES[kind])
    written = text(value)
    assert parse(written, kind) == value
    assert type(parse(written, kind)) is type(value)
    assert eval(written, {each.__name__: each for each in specs._known.values()}) == value  # it is Python
    assert parse(f"  {written} ", kind) == value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (SO2(8), "SO2(8)"),
        (Product(SO2(4), Hue(3)), "Product(SO2(4), Hue(3))"),
        (Full(), "Full()"),
        (Variational(), "Variational()"),
        (Variational(Window(0.5), condition="output"), "Variational(Window(0.5), condition='output')"),
        (Variational(encoder_width=16), "Variational(encoder_width=16)"),
        (Shared(GumbelSoftmax(final=0.1)), "Shared(GumbelSoftmax(final=0.1))"),
        (Siren(omega=4), "Siren(omega=4)"),
        (Table(separable=True), "Table(separable=True)"),
        (ResidualPathway(free_decay=0.1), "ResidualPathway(free_decay=0.1)"),
        (Nonstationary(omega=4, decay=0.1), "Nonstationary(omega=4, decay=0.1)"),
        (Projected((1.0, 0.5)), "Projected((1.0, 0.5))"),
        (Relaxed(3, of=Siren(omega=4)), "Relaxed(3, of=Siren(omega=4))"),
        (SO2(), "SO2(8)"),
    ],
)
def test_arguments_at_their_default_are_left_out(value: object, written: str) -> None:
    assert text(value) == written


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        ("full", LevelSpec, Full()),
        ("shared", LevelSpec, Shared()),
        ("variational", LevelSpec, Variational()),
        ("Variational", LevelSpec, Variational()),
        ("none", Group, Rotations(1)),
        ("NONE", Group, Rotations(1)),
        ("Hue(m=3)", Group, Hue(3)),
        ("Variational(family=Window(initial=0.5))", LevelSpec, Variational(Window(0.5))),
        ("Variational(Window)", LevelSpec, Variational(Window())),
        ("Siren", KernelSpec, Siren()),
        ("Variational(Window(-0 + 1))", LevelSpec, None),
    ],
)
def test_shorthands_and_keywords(written: str, kind: type[Any], value: object) -> None:
    if value is None:  # numbers are numbers: nothing is computed
        with pytest.raises(UserError, match="cannot read"):
            parse(written, kind)
    else:
        assert parse(written, kind) == value


@pytest.mark.parametrize("alias", ALIASES)
def test_shorthands_are_names_of_no_class(alias: str) -> None:
    assert alias not in {name for kind in KINDS for name in names(kind)}


@pytest.mark.parametrize(
    ("written", "kind", "message"),
    [
        ("Variatonal()", LevelSpec, "unknown level 'Variatonal': did you mean Variational?"),
        ("S02(8)", Group, "did you mean SO2?"),
        ("Sirens(omega=4)", KernelSpec, "did you mean Siren?"),
        ("Variational(Windw(0.5))", LevelSpec, "did you mean Window?"),
        ("zzzzz", Group, "choose from O2, SO2, Dihedral, Hue, Saturation, Luminance, Product, Rotations"),
        ("Hue(3)", LevelSpec, "'Hue(3)' is not a level"),
        ("Full()", Group, "'Full()' is not a group: write one such as SO2(8)"),
        ("Window(0.5)", LevelSpec, "is not a level"),
        ("8", Group, "is not a group"),
        ("", Group, "is not a group"),
        ("SO2(", Group, "is not a group"),
        ("SO2(8) + 1", Group, "cannot read"),
        ("SO2(0)", Group, "got 0"),
        ("SO2('a')", Group, "'a'"),
        ("SO2(4, 5)", Group, "SO2"),
        ("SO2(count=8)", Group, "count"),
        ("Variational(Window(2.0))", LevelSpec, "2.0"),
        ("Variational(condition='both')", LevelSpec, "condition must be 'input' or 'output' or None, got 'both'"),
        ("Variational(SO2(8))", LevelSpec, "family must be a family such as Window(0.5), got SO2(n=8)"),
        ("Shared(Full())", LevelSpec, "family must be a family"),
        ("Variational(8)", LevelSpec, "family must be a family such as Window(0.5), got 8"),
        ("Variational(encoder_width=2.5)", LevelSpec, "encoder_width must be a whole number or None, got 2.5"),
        ("Variational(encoder_width='x')", LevelSpec, "encoder_width must be a whole number or None, got 'x'"),
        ("Variational(detach_features='no')", LevelSpec, "detach_features must be True or False, got 'no'"),
        ("Shared(regularised=3)", LevelSpec, "regularised must be True or False, got 3"),
        ("Shared(RankedSoftmax(eta='x'))", LevelSpec, "eta must be"),
        ("Siren(hidden=2.5)", KernelSpec, "hidden must be a whole number, got 2.5"),
        ("Siren(hidden=True)", KernelSpec, "hidden must be a whole number, got True"),
        ("Siren(omega='a')", KernelSpec, "omega must be a number, got 'a'"),
        ("Siren(omega=1e999)", KernelSpec, "omega must be a number, got inf"),
        ("Table(separable='x')", KernelSpec, "separable must be True or False, got 'x'"),
        ("Product(1, 2)", Group, "first must be a group such as SO2(8), got 1"),
        ("Product(SO2(8))", Group, "missing a required argument: 'second'"),
        ("Fixed('a')", LevelSpec, "theta must be a number, got 'a'"),
        ("Window([1])", Family, "initial must be a number, got [1]"),
        ("Product(SO2(4), SO2(4))", Group, "both act on the plane"),
    ],
)
def test_mistakes_are_named(written: str, kind: type[Any], message: str) -> None:
    with pytest.raises(UserError) as found:
        parse(written, kind)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {file}')",
        "open('{file}', 'w')",
        "(lambda: open('{file}', 'w'))()",
        "[open('{file}', 'w') for _ in (1,)]",
        "SO2(open('{file}', 'w'))",
        "SO2(n=__import__('os').system('touch {file}'))",
        "SO2(*[8])",
        "SO2(*open('{file}', 'w'))",
        "SO2(**{{'n': 8}})",
        "SO2(**__import__('os').environ)",
        "SO2.__init__(8)",
        "SO2(8).__class__",
        "SO2(8).grid()",
        "SO2(8)(open('{file}', 'w'))",
        "(SO2)(8)(8)",
        "SO2.__subclasses__()",
        "SO2(f'{{open(1)}}')",
        "x := SO2(8)",
        "SO2(x := 8)",
        "SO2(8) if open('{file}', 'w') else SO2(4)",
        "SO2(8); open('{file}', 'w')",
        "exec('1')",
        "SO2(int('8'))",
        "(" * 300 + "1" + ")" * 300,
        "SO2(" * 2000 + "8" + ")" * 2000,
        "SO2(8" + "0" * 5000 + ")",
        "SO2(8)\0",
        "-" * 900 + "1",
        "1+" * 450 + "1",
        "-" * 9000 + "1",
        "SO2(n=8, n=4)",
        "SO2(name=8)",
        "SO2(call=8)",
    ],
)
def test_text_is_never_executed(code: str, tmp_path: Path) -> None:
    file = tmp_path / "made"
    with pytest.raises(UserError):
        parse(code.format(file=file), Group)  # type: ignore[type-abstract]
    assert not file.exists()


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_sentence(written: str) -> None:
    for kind in KINDS:
        with contextlib.suppress(UserError):
            assert isinstance(parse(written, kind), kind)


# ---------------------------------------------------------------- classes of users


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "_known", dict(specs._known))


@pytest.mark.usefixtures("registry")
def test_a_registered_class_is_read_and_written() -> None:
    @register
    @dataclass(frozen=True)
    class Narrow(Family):
        share: float = 0.1

        def start(self, group: Group) -> Any: ...
        def activate(self, raw: Any, group: Group) -> Any: ...
        def distribution(self, *_: Any, **__: Any) -> Any: ...

    if Narrow.__abstractmethods__:  # whatever a family needs; here only its text counts
        Narrow.__abstractmethods__ = frozenset()
    value = Shared(Narrow(0.2))
    assert text(value) == "Shared(Narrow(0.2))"
    assert parse("Shared(Narrow(share=0.2))", LevelSpec) == value  # type: ignore[type-abstract]
    assert "Narrow" in names(Family)


@pytest.mark.usefixtures("registry")
def test_what_cannot_be_registered_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a dataclass"):
        register(int)

    @dataclass(frozen=True)
    class Full(LevelSpec):
        def build(self, group: Group, channels: int) -> Any: ...

    with pytest.raises(ValueError, match="the name Full is taken by"):
        register(Full)


# ---------------------------------------------------------------- files and the command line


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name: str, preset: str) -> None:
    config = recipe(name, preset)
    plain = json.loads(json.dumps(to_json(config)))
    assert from_json(TrainConfig, plain) == config
    assert isinstance(plain["model"]["group"], str)
    assert isinstance(plain["model"]["level"], str)
    assert plain["objective"]["name"] == config.objective.name


@pytest.mark.parametrize("name", MODELS)
def test_every_network_survives_json(name: str) -> None:
    config = TrainConfig(model=MODELS[name].config)
    assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config


@given(groups, levels, levels, kernels)
def test_any_network_survives_json(group: Group, level: LevelSpec, elsewhere: LevelSpec, kernel: KernelSpec) -> None:
    config = SE2Config(group=group, level=level, elsewhere=elsewhere, kernel=kernel)
    assert from_json(SE2Config, json.loads(json.dumps(to_json(config)))) == config


def words(*settings: str, name: str = "mnist67-180") -> TrainConfig:
    return _config(recipe(name), list(settings), "vpgcnn train")


def test_the_command_line_reads_values_as_text() -> None:
    before = recipe("mnist67-180")
    assert words() == before
    assert words("--model.level", "Variational(Window(0.5))").model == replace(
        before.model, level=Variational(Window(0.5))
    )
    assert words("--model.level", "full").model.level == Full()
    assert words("--model.level=Shared(SampledWindow(0.4))").model.level == Shared(SampledWindow(0.4))
    changed = words("--model.group", "Product(SO2(16), Hue(3))", "--model.kernel", "Siren(omega=8)")
    assert isinstance(changed.model, SE2Config)
    assert changed.model.group == Product(SO2(16), Hue(3))
    assert changed.model.kernel == Siren(omega=8)
    assert words("--model.elsewhere", "shared", "--model.where", "lift").model == replace(
        before.model, elsewhere=Shared(), where=("lift",)
    )


def test_another_objective_is_chosen_by_name_and_then_set() -> None:
    def read(*words: str) -> TrainConfig:
        options, rest = _options(["colormnist-lt", *words])
        return _config(_default(options, rest, Path("none")), rest, "vpgcnn train")

    assert read() == recipe("colormnist-lt")
    assert read("--objective.nats", "0.3").objective == Price(0.3)
    schedule = read("--objective", "schedule", "--objective.peak", "0.3").objective
    assert schedule == KlSchedule(peak=0.3)
    assert read("--objective", "dual", "--objective.tolerance", "0.1").objective == DualWeight(tolerance=0.1)
    assert read("--objective", "band", "--objective.high", "0.9", "--balance", "0").objective == Band(high=0.9)
    assert read("--balance", "0").balance == 0
    assert read("--lr", "0.5") == read("--optimiser.lr", "0.5")
    assert read("--lr", "0.5").optimiser.lr == 0.5
    assert read("--level-optimiser.kind", "sgd").level_optimiser.kind == "sgd"
    for name in ("price", "schedule", "dual", "band"):
        config = read("--objective", name)
        assert config.objective.name == name
        assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config


@given(groups, levels, kernels)
def test_the_command_line_reads_what_text_writes(group: Group, level: LevelSpec, kernel: KernelSpec) -> None:
    config = words("--model.group", text(group), "--model.level", text(level), "--model.kernel", text(kernel))
    assert isinstance(config.model, SE2Config)
    assert (config.model.group, config.model.level, config.model.kernel) == (group, level, kernel)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("--model.level", "Variatonal()", "did you mean Variational?"),
        ("--model.group", "__import__('os').system('true')", "unknown group"),
        ("--model.kernel", "SO2(8)", "is not a kernel"),
    ],
)
def test_the_command_line_refuses_in_a_sentence(setting: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        words(setting, value)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_help_shows_values_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "mnist67-180", "--help-all"])
    assert stopped.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--model.level LEVEL" in printed
    assert "--model.group GROUP" in printed
    assert "(default: 'SO2(8)')" in printed
    assert "(default: 'Siren(omega=4.0)')" in printed
    assert """'Variational(condition="output")'""" in printed  # quoted for the shell


def test_configurations_hold_no_class_that_text_cannot_write() -> None:
    """Every frozen value inside a recipe is either plain data or of a registered kind."""

    def check(value: object) -> None:
        if isinstance(value, tuple(KINDS)):
            assert type(value).__name__ in names(_base(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for part in dataclasses.fields(value):
                check(getattr(value, part.name))
        elif isinstance(value, tuple):
            for item in value:
                check(item)
        else:
            assert value is None or isinstance(value, str | int | float | bool | Path)

    for entry in RECIPES.values():
        check(entry.cpu)
        check(entry.paper)


def _base(value: object) -> type[Any]:
    return next(kind for kind in KINDS if isinstance(value, kind))
