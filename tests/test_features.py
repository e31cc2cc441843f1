import pytest
import torch

from conftest import random_feature
from vpgcnn import SO2, GroupFeature, Hue


def test_slices_keep_the_parts_together() -> None:
    feature = random_feature(Hue(3), batch=5)
    weights = torch.rand(5, 3)
    feature = GroupFeature(feature.values, feature.elements, weights, torch.arange(5.0), feature.group)
    part = feature[1:3]
    assert part.shape[0] == len(part) == 2
    assert torch.equal(part.divergence, torch.tensor([1.0, 2.0]))
    assert torch.equal(part.weights, weights[1:3])
    assert part.elements is feature.elements
    assert torch.equal(feature[4].values, feature.values[4:])
    assert torch.equal(feature[-1].values, feature.values[4:])
    assert torch.equal(feature[torch.tensor([True, False, False, False, True])].divergence, torch.tensor([0.0, 4.0]))
    own = GroupFeature(feature.values, torch.rand(5, 3, 1), None, feature.divergence, feature.group)
    assert own.per_image
    assert own[:2].elements.shape == (2, 3, 1)


def test_it_is_a_sequence_of_images() -> None:
    feature = random_feature(Hue(3), batch=3)
    assert [len(one) for one in feature] == [1, 1, 1]
    assert torch.equal(feature[torch.tensor(1)].values, feature.values[1:2])
    for wrong in (3, -4, 100):
        with pytest.raises(IndexError, match=f"image {wrong} of 3"):
            feature[wrong]


def test_moves_and_detaches() -> None:
    feature = random_feature(Hue(3)).map(lambda x: x.requires_grad_())
    assert not feature.detach().values.requires_grad
    half = feature.to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.elements.dtype == torch.float32
    meta = feature.to("meta")
    assert {part.device.type for part in (meta.values, meta.elements, meta.divergence)} == {"meta"}


def test_mean_and_coverage() -> None:
    feature = random_feature(Hue(3))
    assert feature.coverage() is None
    assert torch.equal(feature.mean(), feature.values.mean(dim=2))
    weights = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    weighted = GroupFeature(feature.values, feature.elements, weights, feature.divergence, feature.group)
    assert torch.equal(weighted.coverage(), torch.tensor([[1.0, 0.5, 0.5], [1.0, 0.0, 0.0]]))
    assert torch.allclose(weighted.mean()[1], feature.values[1, :, 0])


def test_repr_says_what_it_is() -> None:
    assert repr(random_feature(SO2(), 8)) == (
        "GroupFeature(SO2(): 2 images, 4 channels, 8 elements, 7×7, full, float32, cpu)"
    )


def test_it_is_a_tree_of_tensors() -> None:
    """torch.export and other tools may take it apart and put it together."""
    from torch.utils import _pytree as pytree

    feature = random_feature(Hue(3))
    leaves, spec = pytree.tree_flatten(feature)
    assert len([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]) == 3
    doubled = pytree.tree_map_only(torch.Tensor, lambda t: 2 * t, feature)
    assert torch.equal(doubled.values, 2 * feature.values)
    assert isinstance(pytree.tree_unflatten(leaves, spec), GroupFeature)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((torch.rand(2, 4, 7, 7), torch.rand(3, 1), None, torch.zeros(2)), r"B×C×G×H×W, got shape \(2, 4, 7, 7\)"),
        (
            (torch.rand(2, 4, 3, 7, 7), torch.rand(5, 1), None, torch.zeros(2)),
            r"3 elements, but elements have shape \(5, 1\)",
        ),
        (
            (torch.rand(2, 4, 3, 7, 7), torch.rand(3, 1), torch.rand(3), torch.zeros(2)),
            r"weights must be 2×3, got shape \(3,\)",
        ),
        (
            (torch.rand(2, 4, 3, 7, 7), torch.rand(3, 1), None, torch.zeros(3)),
            r"divergence must have shape \(2,\), got \(3,\)",
        ),
    ],
)
def test_bad_parts_are_named(parts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupFeature(*parts, Hue(3))
