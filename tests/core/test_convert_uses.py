"""What users do with a converted network: threads, checkpoints, replicas, copies, files, programs.

Each for a ResNet, and for an EfficientNet-Lite0, whose convolutions are depthwise, 1×1 and of a subclass.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from support import InvertedBlock, ResidualBlock, lite0, resnet, vary_theta
from vpgcnn import Elbo, Hue, Rotations, Variational, Window
from vpgcnn.conversion import Converted, MixedConv2d, convert
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.features import Prediction
from vpgcnn.groups import Group

MODELS = {"resnet": resnet, "lite0": lite0}
GROUPS = [Hue(3), Rotations(4)]
CASES = [
    pytest.param(make, group, id=f"{name}-{type(group).__name__}") for name, make in MODELS.items() for group in GROUPS
]
HUES = [pytest.param(make, Hue(3), id=name) for name, make in MODELS.items()]
Make = Callable[[], nn.Sequential]


def images(count: int = 4) -> Tensor:
    brightness = torch.linspace(0.2, 1, count).view(-1, 1, 1, 1)
    return brightness * torch.rand(count, 3, 18, 18, generator=torch.Generator().manual_seed(count))


def trained(make: Make, group: Group, **options: Any) -> Converted:
    """As if it had been trained: mixing kernels that are not 0, a window for each image, statistics."""
    torch.manual_seed(0)
    plain = make()
    with torch.no_grad():
        for _ in range(3):
            plain.train()(images(8))
    level = Variational(Window(initial=0.6), explore=0.0)
    options = options if "mix" in options else {"budget": 1.0, **options}
    net = convert(plain.eval(), group, level=level, example=images(), **options)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    vary_theta(net, 0.1)
    assert net.cost.mixed
    return net.eval()


def assert_same(one: Prediction, two: Prediction, atol: float = 1e-5) -> None:
    assert torch.allclose(one.logits, two.logits, atol=atol)
    assert list(one.trace) == list(two.trace)
    for first, second in zip(one.theta.values(), two.theta.values(), strict=True):
        assert torch.allclose(first, second, atol=atol)
        assert float(first.detach().std()) > 1e-4  # images differ


def step(net: nn.Module, pixels: Tensor) -> tuple[Prediction, list[Tensor]]:
    """A prediction in training, and the gradient of every parameter."""
    net.zero_grad()
    answer = net.train()(pixels)
    Elbo.of(answer, torch.arange(len(pixels)) % 4).total(0.3).backward()
    found = {name: parameter.grad for name, parameter in net.named_parameters()}
    assert [name for name, grad in found.items() if grad is None] == []
    return answer, [grad for grad in found.values() if grad is not None]


@contextmanager
def switching() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(*jobs: Callable[[], None]) -> None:
    """Run all at once; raise what any of them raises."""
    wrong: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        start.wait()
        try:
            job()
        except BaseException as error:
            wrong.append(error)

    with switching():
        threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize(("make", "group"), CASES)
def test_two_threads_use_one_network(make: Make, group: Group) -> None:
    """With batches of other sizes, and with and without gradients."""
    net = trained(make, group)
    batches = {count: images(count) for count in (2, 5)}
    with torch.no_grad():
        expected = {count: net(batch) for count, batch in batches.items()}

    def use(count: int) -> Callable[[], None]:
        def job() -> None:
            for number in range(8):
                with torch.set_grad_enabled(number % 2 == 0):
                    assert_same(net(batches[count]), expected[count])

        return job

    in_threads(use(2), use(5))


class Checkpointed(nn.Module):
    """Recomputes a block in the backward pass."""

    def __init__(self, block: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("which", ["first", "last", "all"])
@pytest.mark.parametrize(("make", "group"), CASES)
def test_activation_checkpoints_change_nothing(make: Make, group: Group, which: str, reentrant: bool) -> None:
    """Blocks before and after the level, and the one with it: predictions and every gradient."""
    net = trained(make, group).double()
    twin = copy.deepcopy(net)
    blocks = [name for name, part in net.network.named_children() if isinstance(part, ResidualBlock | InvertedBlock)]
    for name in {"first": blocks[:1], "last": blocks[-1:], "all": blocks}[which]:
        twin.network[int(name)] = Checkpointed(twin.network[int(name)], reentrant)
    one, grads = step(net, images().double())
    two, others = step(twin, images().double())
    assert_same(one, two, 1e-9)
    for first, second in zip(grads, others, strict=True):
        assert torch.allclose(first, second, atol=1e-7, rtol=1e-5)


def replicas(net: nn.Module, count: int) -> list[Any]:
    """As `torch.nn.parallel.replicate`, on one device: shallow copies of all modules, with copies of parameters."""
    modules = list(net.modules())
    number = {module: index for index, module in enumerate(modules)}
    found = []
    for _ in range(count):
        copies = [module._replicate_for_data_parallel() for module in modules]  # type: ignore[operator]
        for module, twin in zip(modules, copies, strict=True):
            twin._former_parameters = {}
            for key, child in module._modules.items():
                if child is not None:
                    setattr(twin, key, copies[number[child]])
            for key, parameter in module._parameters.items():
                twin._parameters[key] = None
                if parameter is not None:
                    del twin._parameters[key]
                    setattr(twin, key, parameter * 1)  # no parameter any more, with a gradient to the original
                    twin._former_parameters[key] = getattr(twin, key)
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    twin._buffers[key] = buffer.clone()
        found.append(copies[0])
    return found


@pytest.mark.parametrize("until", [False, True])
@pytest.mark.parametrize(("make", "group"), CASES)
def test_replicas_share_a_batch(make: Make, group: Group, until: bool) -> None:
    """As under `DataParallel`: each has a part of the batch, in a thread of its own, and gradients add up."""
    net = trained(make, group, **({"until": "4", "mix": "pointwise"} if until else {}))
    pixels, labels = images(5), torch.tensor([0, 1, 2, 3, 0])
    answer = net(pixels)
    Elbo.of(answer, labels).total(0.3).backward()
    grads = {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}
    net.zero_grad()
    parts = ((0, slice(0, 2)), (1, slice(2, 5)))
    copies, found = replicas(net, 2), dict[int, Prediction]()

    def use(number: int, part: slice) -> Callable[[], None]:
        return lambda: found.update({number: copies[number](pixels[part])})

    in_threads(*(use(number, part) for number, part in parts))
    losses = [Elbo.of(found[n], labels[p]).total(0.3) * len(labels[p]) / 5 for n, p in parts]
    (losses[0] + losses[1]).backward()
    assert torch.allclose(torch.cat([found[0].logits, found[1].logits]), answer.logits, atol=1e-5)
    assert torch.allclose(torch.cat([found[0].kl, found[1].kl]), answer.kl, atol=1e-5)
    assert grads
    for name, parameter in net.named_parameters():
        if name in grads:
            assert parameter.grad is not None, name
            assert torch.allclose(parameter.grad, grads[name], atol=1e-5, rtol=1e-4), name
    with torch.no_grad():  # views that are left out
        assert_same(replicas(net, 1)[0](pixels), net(pixels))


@pytest.mark.parametrize(("make", "group"), CASES)
def test_a_copy_is_trained_by_itself(make: Make, group: Group) -> None:
    net = trained(make, group)
    with torch.no_grad():
        expected = net(images())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        assert_same(twin(images()), expected, 0)
    step(twin, images())
    torch.optim.SGD(twin.parameters(), 0.1).step()
    with torch.no_grad():
        assert not torch.allclose(twin.eval()(images()).logits, expected.logits, atol=1e-3)
        assert_same(net(images()), expected, 0)
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize(("make", "group"), CASES)
def test_saved_and_loaded_without_pickle(tmp_path: Path, make: Make, group: Group) -> None:
    """As safetensors, and as torch writes tensors: into a network that was converted the same way."""
    net = trained(make, group)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "net.safetensors")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    states = (
        safetensors.torch.load_file(tmp_path / "net.safetensors"),
        torch.load(tmp_path / "net.pt", weights_only=True),
    )
    torch.manual_seed(1)
    level = Variational(Window(initial=0.6), explore=0.0)
    for state in states:
        other = convert(make().eval(), group, level=level, budget=1.0, example=images())
        with torch.no_grad():
            assert not torch.allclose(other.eval()(images()).logits, net(images()).logits, atol=1e-3)
            other.load_state_dict(state)
            assert_same(other(images()), net(images()), 0)


@pytest.mark.parametrize(("make", "group"), CASES)
def test_compiled_it_answers_and_learns_the_same(make: Make, group: Group) -> None:
    net = trained(make, group).double()
    twin = copy.deepcopy(net)
    compiled = torch.compile(nn.Sequential(nn.Identity(), twin), backend="aot_eager")
    with torch.no_grad():
        assert_same(compiled.eval()(images().double()), net(images().double()), 1e-10)
    (one, grads), (two, others) = step(net, images().double()), step(compiled, images().double())
    assert_same(one, two, 1e-10)
    for first, second in zip(grads, others, strict=True):
        assert torch.allclose(first, second, atol=1e-9)


@pytest.mark.parametrize(("make", "group"), HUES)
def test_as_a_program_it_answers_the_same(make: Make, group: Group) -> None:
    """`torch.export` and ONNX, for other batch sizes than that of the example."""
    net = trained(make, group)
    with torch.no_grad():
        answer = net(images(5))
    expected = answer.logits, torch.cat(list(answer.theta.values()), dim=1)
    program = exported(Deployed(net, images(1)), channels=3, size=18)
    with torch.no_grad():
        for one, two in zip(program.module()(images(5)), expected, strict=True):
            assert torch.allclose(one, two, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = onnx_bytes(program, {})
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for one, two in zip(session.run(None, {"images": images(5).numpy()}), expected, strict=True):
        assert torch.allclose(torch.from_numpy(one), two, atol=1e-5)
