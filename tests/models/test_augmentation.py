"""Variations are drawn for each image alone; the gradient of a record is the mean over them, with
every engine.
"""

import pytest
import torch
import torch.nn.functional as F
from runs import Started
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

import dpfy
from dpfy.models import AugmentedData, augmented, crop_and_flip, mean_over_copies

RECORDS, COPIES, CLIP = 4, 3, 0.5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 4 * 4, 2))


def loss_of(model):
    return lambda x, y: F.cross_entropy(model(x), y, reduction="none")


def fixed_variations(images):
    """Different for the copies of a record, and the same every time."""
    return images + torch.linspace(-1, 1, len(images)).view(-1, 1, 1, 1)


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.rand(RECORDS, 1, 6, 6, generator=generator), torch.arange(RECORDS) % 2
    )


def all_crops(image, padding):
    padded = F.pad(image[None], [padding] * 4, mode="reflect")[0]
    height, width = image.shape[1:]
    shifts = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return torch.stack([variation for crop in shifts for variation in (crop, crop.flip(-1))])


def counts_of(variations, image, padding):
    crops = all_crops(image, padding)
    equal = (variations[:, None] == crops).flatten(2).all(2)
    assert equal.sum(1).eq(1).all()  # each is just one of them
    return equal.sum(0)


def test_variations_are_all_crops_and_mirror_images_equally_often():
    torch.manual_seed(1)
    image, draws = torch.rand(2, 5, 4), 3600
    counts = counts_of(crop_and_flip(image.expand(draws, -1, -1, -1), padding=1), image, padding=1)
    # 18 variations, 200 of each expected, standard deviation 13.7; beyond 6 of them less than once
    # in 10^7 tests.
    assert len(counts) == 18 and (counts - 200).abs().max() < 6 * 13.8


def test_under_vmap_every_image_draws_for_itself():
    torch.manual_seed(1)
    image = torch.rand(1, 5, 4)
    found = vmap(lambda x: crop_and_flip(x, padding=1), randomness="different")(
        image.expand(200, 3, -1, -1, -1)
    )
    assert (counts_of(found.flatten(0, 1), image, padding=1) > 0).all()


def test_without_padding_images_are_only_mirrored():
    torch.manual_seed(1)
    image = torch.rand(3, 5, 4)
    counts = counts_of(crop_and_flip(image.expand(100, -1, -1, -1), padding=0), image, padding=0)
    assert len(counts) == 2 and counts.min() > 10


def clipped_sum(model, variations, labels):
    """Each record's gradient as the mean of its copies', one backward pass each, then clipped and
    summed.
    """
    total = 0
    for copies, label in zip(variations, labels, strict=True):
        mean = 0
        for copy in copies:
            model.zero_grad()
            F.cross_entropy(model(copy[None]), label[None]).backward()
            mean = mean + torch.cat([p.grad.flatten() for p in model.parameters()]) / len(copies)
        total = total + mean * min(1, CLIP / mean.norm())
    model.zero_grad()
    return total


@pytest.mark.parametrize("engine", ["loop", "vmap", "bookkeeping", "ghost", "auto"])
def test_a_step_sums_the_clipped_means_of_gradients_over_copies(engine):
    model = network()
    varied = AugmentedData(data(), fixed_variations, COPIES)
    expected = clipped_sum(
        model, torch.stack([varied[i][0] for i in range(RECORDS)]), data().tensors[1]
    )
    started = Started(varied, model=model, clip=CLIP, engine=engine)
    found = started.release(mean_over_copies(loss_of(model)))
    started.run.close()
    assert torch.allclose(found, expected, atol=1e-5)
    assert found.norm() > CLIP / 2  # the records do not cancel


def test_an_augmented_loss_has_the_gradient_of_the_mean_under_vmap_too():
    model, (x, y) = network(), data().tensors
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def one(parameters, x, y):
        loss = augmented(
            lambda x, y: F.cross_entropy(
                functional_call(model, parameters, (x,)), y, reduction="none"
            ),
            fixed_variations,
            COPIES,
        )
        return loss(x[None], y[None])[0]

    found = vmap(grad(one), in_dims=(None, 0, 0))(weights, x, y)
    for row in range(RECORDS):
        model.zero_grad()
        variations = fixed_variations(x[row].expand(COPIES, -1, -1, -1))
        sum(F.cross_entropy(model(v[None]), y[row : row + 1]) for v in variations).div(
            COPIES
        ).backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(found[name][row], parameter.grad, atol=1e-6)


def test_a_record_changes_no_other_loss():
    model, (x, y) = network(), data().tensors
    copies = x.unsqueeze(1) + torch.rand(1, COPIES, 1, 1, 1)
    for loss, first in (
        (mean_over_copies(loss_of(model)), copies),
        (augmented(loss_of(model), crop, COPIES), x),
    ):
        torch.manual_seed(3)
        before = loss(first, y)
        changed = first.clone()
        changed[1] = torch.nan
        torch.manual_seed(3)
        after = loss(changed, y)
        assert torch.equal(after[[0, 2, 3]], before[[0, 2, 3]]) and after[1].isnan()


def crop(images):
    return crop_and_flip(images, padding=2)


@pytest.mark.parametrize("with_data", [True, False])
def test_random_variations_train_in_a_run(with_data):
    model = network()
    loss = (
        mean_over_copies(loss_of(model)) if with_data else augmented(loss_of(model), crop, COPIES)
    )
    records = AugmentedData(data(), crop, COPIES) if with_data else data()
    start = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = dpfy.dpsgd(records=RECORDS, batch_size=RECORDS, steps=2, noise_multiplier=0.1)
    with dpfy.privatize(
        model, optimizer, records, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
    ) as run:
        for batch in run:
            optimizer.zero_grad()
            run.backward(loss, batch)
            optimizer.step()
    assert not torch.equal(start, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_variations_are_drawn_every_time_a_record_is_loaded():
    torch.manual_seed(1)
    varied = AugmentedData(data(), crop, multiplicity=8)
    assert len(varied) == RECORDS
    first, again = varied[2][0], varied[2][0]
    assert (
        first.shape == (8, 1, 6, 6)
        and not torch.equal(first, again)
        and not torch.equal(first[0], first[1])
    )
    assert varied[2][1] == data()[2][1]


def test_losses_that_were_reduced_are_refused():
    with pytest.raises(dpfy.InvalidArgument, match="reduction='none'"):
        mean_over_copies(lambda x, y: x.sum())(torch.rand(2, 3, 4), torch.zeros(2))


@pytest.mark.parametrize(
    "make", [lambda n: augmented(None, crop, n), lambda n: AugmentedData(data(), crop, n)]
)
def test_multiplicity_is_a_count(make):
    with pytest.raises(dpfy.InvalidArgument, match="multiplicity=0"):
        make(0)
