"""Strokes come from a program alone; pictures are set upright one by one."""

import torch

from experiments.strokes import strokes, upright


def test_strokes_are_a_constant_with_ink_in_the_middle() -> None:
    pictures = strokes(300)
    assert torch.equal(pictures, strokes(300)) and not torch.equal(pictures, strokes(300, seed=1))
    assert pictures.shape == (300, 1, 28, 28) and pictures.min() == 0 and pictures.max() == 1
    assert (pictures.flatten(1).amax(1) > 0.9).all()  # none is empty
    assert (
        pictures[..., 0].max() == 0
        and pictures[..., 12:16, 12:16].mean() > pictures[..., :4, :].mean() + 0.1
    )


def bar(lean: float, column: float) -> torch.Tensor:
    """A bar from top to bottom, at a column in its middle row, which leans by so many columns in
    each row.
    """
    place = torch.arange(28.0)
    middle = column + lean * (place - 13.5)
    return (2.0 - (place[None, :] - middle[:, None]).abs()).clamp(0, 1).view(1, 1, 28, 28)


def test_pictures_are_centred_and_do_not_lean() -> None:
    """A shear the other way, or none, would leave the bars as different as they are."""
    straight, leaning = bar(0.0, 13.5), bar(0.3, 16.0)
    assert (
        (upright(leaning) - straight)[..., 4:24, :].abs().max()
        < 0.3
        < (leaning - straight).abs().max()
    )
    assert torch.allclose(upright(straight), straight, atol=1e-4)


def test_a_picture_is_set_upright_by_itself_and_a_blank_one_stays() -> None:
    pictures = strokes(5)
    assert torch.allclose(upright(pictures)[3:4], upright(pictures[3:4]), atol=1e-5)
    assert upright(torch.zeros(1, 1, 28, 28)).eq(0).all()
