"""Convolution in the Fourier basis against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from vpgcnn import SO2, GroupConv2d, GroupFeature
from vpgcnn._ops import spectral


def tensors(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(5, 12), st.integers(5, 12), st.integers(1, 5),
    st.integers(0, 6),
)  # fmt: skip
def test_values_and_gradients_are_those_of_conv2d(batch, inputs, outputs, height, width, size, padding) -> None:
    """For odd and even maps, periods and kernels, and any padding."""
    values, weight = tensors(batch, inputs, height, width), tensors(outputs, inputs, size, size)
    oracle, ours = F.conv2d(values, weight, padding=padding), spectral.convolve(values, weight, padding)
    assert ours.shape == oracle.shape
    assert torch.allclose(ours, oracle, atol=1e-11)
    grad = torch.randn_like(oracle)
    for one, two in zip(
        torch.autograd.grad(ours, [values, weight], grad),
        torch.autograd.grad(oracle, [values, weight], grad),
        strict=True,
    ):
        assert torch.allclose(one, two, atol=1e-11)


def test_batches_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values, weight = tensors(7, 2, 9, 9), tensors(3, 2, 5, 5)
    whole = spectral.convolve(values, weight, 2)
    expected = torch.autograd.grad(whole.square().sum(), [values, weight])
    monkeypatch.setattr(spectral, "CHUNK", 3)
    parts = spectral.convolve(values, weight, 2)
    assert torch.allclose(parts, whole)
    for one, two in zip(torch.autograd.grad(parts.square().sum(), [values, weight]), expected, strict=True):
        assert torch.allclose(one, two)


@pytest.mark.parametrize("chunk", [2, 64])
def test_factors_are_multiplied_in(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(spectral, "CHUNK", chunk)
    inputs = tensors(3, 2, 8, 8), tensors(4, 2, 5, 5), tensors(3, 2)
    oracle = F.conv2d(inputs[0] * inputs[2][..., None, None], inputs[1], padding=2)
    ours = spectral.convolve(*inputs[:2], 2, inputs[2])
    assert torch.allclose(ours, oracle)
    grad = torch.randn_like(oracle)
    pairs = zip(torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(oracle, inputs, grad), strict=True)
    assert all(torch.allclose(one, two) for one, two in pairs)


def test_images_need_no_gradient() -> None:
    values, weight = torch.rand(2, 2, 9, 9), torch.rand(3, 2, 5, 5, requires_grad=True)
    spectral.convolve(values, weight, 2).sum().backward()
    assert weight.grad is not None
    assert values.grad is None


def test_rounding_is_that_of_single_precision() -> None:
    values, weight = torch.randn(4, 32, 32, 32), torch.randn(32, 32, 7, 7)
    exact = F.conv2d(values.double(), weight.double(), padding=3)
    error = (spectral.convolve(values, weight, 3) - exact).abs().max() / exact.abs().max()
    assert error < 1e-6


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, in its forward mode
def test_derivatives_of_every_kind() -> None:
    """Second derivatives, forward mode, and vmap: rare, so they take the direct way, but they work."""
    values, weight, factors = tensors(2, 1, 4, 4), tensors(2, 1, 3, 3), tensors(2, 1)
    for inputs in ((values, weight), (values, weight, factors)):

        def call(*args: torch.Tensor) -> torch.Tensor:
            return spectral.convolve(args[0], args[1], 1, *args[2:])

        assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, inputs)
        single = (values.unsqueeze(1), weight, *(part.unsqueeze(1) for part in inputs[2:]))
        each = torch.vmap(call, in_dims=(0, None, *(0 for _ in inputs[2:])))(*single)
        assert torch.allclose(each.squeeze(1), call(*inputs))


def test_the_way_is_chosen_by_shape() -> None:
    def taken(batch: int, channels: int, size: int, kernel: int, dtype: torch.dtype = torch.float32) -> bool:
        values = torch.empty(batch, channels, size, size, dtype=dtype)
        return spectral.pays(values, torch.empty(channels, channels, kernel, kernel, dtype=dtype), kernel // 2)

    assert taken(64, 128, 32, 7)  # the paper's network
    assert taken(64, 80, 14, 5)  # digits
    assert not taken(64, 128, 32, 3)  # small kernels
    assert not taken(1, 128, 32, 7)  # a kernel's transform for a single image
    assert not taken(64, 3, 32, 7)  # few channels
    assert not taken(64, 128, 32, 7, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert not taken(64, 128, 32, 7)


def test_layers_take_it_and_answer_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = GroupConv2d(8, 8, 7, SO2(4), padding=3)
    conv.bias.data.normal_()
    feature = GroupFeature(torch.randn(16, 8, 4, 16, 16), SO2(4).grid(), None, SO2(4))
    conv.eval()
    calls: list[int] = []
    way = spectral.convolve
    monkeypatch.setattr(spectral, "convolve", lambda *args: calls.append(1) or way(*args))
    monkeypatch.setattr(spectral, "PAYS", 0.0)
    direct = conv(feature).values
    assert not calls
    monkeypatch.setattr(spectral, "PAYS", 1.0)
    assert torch.allclose(conv(feature).values, direct, atol=1e-5)
    assert calls
