"""The label's loss against the library's, and where its probability rounds to one."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from lib.distill.label import label_gradient, label_loss
from tests.tpkd.states import random_states


@pytest.mark.parametrize("classes", [3, 50])
def test_loss_and_gradient_are_the_librarys(classes):
    logits, _, labels = random_states(0, 20, classes, 5.0)
    torch.testing.assert_close(
        label_loss(logits, labels), cross_entropy(logits, labels, reduction="none")
    )
    leaf = logits.clone().requires_grad_()
    (auto,) = torch.autograd.grad(cross_entropy(leaf, labels, reduction="sum"), leaf)
    torch.testing.assert_close(label_gradient(logits, labels), auto, rtol=1e-10, atol=1e-15)
    (ours,) = torch.autograd.grad(label_loss(leaf, labels).sum(), leaf)
    torch.testing.assert_close(ours, auto, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("gap", [17.0, 40.0, 80.0])
def test_certain_student_in_single_precision(gap):
    """Softmax gives a loss of 0 here, and a gradient that does not sum to zero."""
    leaf = torch.tensor([gap, 0.0, 0.0], requires_grad=True)
    loss = label_loss(leaf, torch.tensor(0))
    loss.backward()
    doubt = 2 * math.exp(-gap)
    torch.testing.assert_close(loss.item(), doubt, rtol=1e-5, atol=0)
    expected = torch.tensor([-doubt, doubt / 2, doubt / 2])
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        label_gradient(leaf.detach(), torch.tensor(0)), expected, rtol=1e-5, atol=0
    )
