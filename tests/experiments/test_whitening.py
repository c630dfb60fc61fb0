"""Whitening by public examples is a fixed function of one record."""

import torch

from experiments.whitening import Whitened


def test_channels_are_made_equally_strong() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[3.0, 0.0, 0.0], [2.9, 0.3, 0.0], [2.9, 0.0, 0.3]])
    examples = torch.einsum(
        "dc,ncyx->ndyx", mixing, torch.randn(2000, 3, 4, 4, generator=generator)
    )

    def spread(x: torch.Tensor) -> float:
        rows = x.transpose(0, 1).flatten(1)
        values = torch.linalg.eigvalsh(rows @ rows.T)
        return float(values[-1] / values[0])

    assert (
        spread(examples) > 800 and spread(Whitened(examples, 0.01)(examples)) < 20
    )  # what shrinkage leaves


def test_a_record_is_whitened_by_itself() -> None:
    examples = torch.rand(100, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    whitened, others = (
        Whitened(examples, 0.01),
        torch.rand(7, 3, 2, 2, generator=torch.Generator().manual_seed(1)),
    )
    together = whitened(others)
    assert torch.allclose(together[3:4], whitened(others[3:4]), atol=1e-6)
    assert torch.allclose(together.flatten(1).norm(dim=1), torch.ones(7))
    assert torch.allclose(
        whitened(5 * others), together, atol=1e-5
    )  # of what is in a picture, not of its contrast
