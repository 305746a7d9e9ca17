"""The form of a network that learns from a teacher: features, and a linear head that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lib.models.checks import check_generator, check_size

HEAD_SPREAD = 0.02  # standard deviation of a new head's weights, cut off at twice that


class Student(nn.Module):
    r"""A network $f(x) = W \phi(x) + b$ whose parts can be reached.

    Networks of this form have `features`, which maps what the network reads to (b, d), and `head`,
    the linear layer that reads the features.

    Attributes:
        body: $\phi$, any module; what it reads, the network reads.
        head: the linear layer, (b, d) -> (b, classes).

    Example:
        >>> student = Student(nn.Flatten(), nn.Linear(6, 4))
        >>> student.features(torch.zeros(2, 3, 2)).shape, student(torch.zeros(2, 3, 2)).shape
        (torch.Size([2, 6]), torch.Size([2, 4]))
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, *inputs: Tensor) -> Tensor:
        """Return what the head reads, (b, d)."""
        return self.body(*inputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits, (b, classes)."""
        return self.head(self.features(*inputs))


def new_head(
    width: int, classes: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> nn.Linear:
    r"""Return a linear head with small random weights.

    Weights are normal with standard deviation 0.02, cut off at $\pm 0.04$; biases are 0.

    **Source**: Yuan & Tao, Appendix E.1, the shared classifier on text.

    Args:
        width: number of features, >= 1.
        classes: number of outputs, >= 1.
        generator: source of randomness; the head is on its device.
        dtype: floating-point dtype of the weights.

    Returns:
        The layer, (..., width) -> (..., classes).

    Raises:
        ValueError: if a size is below 1 or there is no generator.

    Example:
        >>> head = new_head(8, 3, torch.Generator())
        >>> head.bias.tolist(), bool(head.weight.abs().max() <= 0.04)
        ([0.0, 0.0, 0.0], True)
    """
    width, classes = check_size("width", width), check_size("classes", classes)
    device = check_generator(generator).device
    head = nn.utils.skip_init(nn.Linear, width, classes, device=device, dtype=dtype)
    edge = 2 * HEAD_SPREAD
    nn.init.trunc_normal_(head.weight, 0, HEAD_SPREAD, -edge, edge, generator=generator)
    nn.init.zeros_(head.bias)
    return head


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Let the block draw from the global generator as if it were `generator`.

    For builders of other libraries, which know no other. Afterwards the global generator is as it
    was before, and `generator` has moved on by one number.

    Args:
        generator: source of randomness.

    Yields:
        None; what the block draws depends on `generator` alone.

    Example:
        >>> with drawn_from(torch.Generator().manual_seed(5)):
        ...     first = torch.rand(3)
        >>> with drawn_from(torch.Generator().manual_seed(5)):
        ...     assert torch.equal(first, torch.rand(3))
    """
    check_generator(generator)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    r"""Return the mean over the real tokens of each text.

    $$\bar h_i = \frac{\sum_s a_{is} h_{is}}{\sum_s a_{is}}$$

    Args:
        states: (b, L, d), floating point.
        mask: (b, L), True at real tokens, at least one a text.

    Returns:
        (b, d); what padding holds does not matter as long as it is finite.

    Example:
        >>> states = torch.tensor([[[1.0], [3.0], [99.0]]])
        >>> masked_mean(states, torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    weight = mask.to(states.dtype).unsqueeze(-1)
    return (states * weight).sum(1) / weight.sum(1)
