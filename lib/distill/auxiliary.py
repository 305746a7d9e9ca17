"""What methods train beside the student and then drop: a second head, projections of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.distill.dto import layer_feature_loss
from lib.distill.settings import HEADS
from lib.distill.streams import stream
from lib.models.student import HEAD_SPREAD, drawn_from

_HIDDEN = 200
_DROPOUT = 0.1

Features = Callable[..., Tensor]


def split_head(student: nn.Module) -> tuple[Features, nn.Module]:
    """Return the two parts of a network whose composition it is.

    Args:
        student: a module with `features` and `head`, or an `nn.Sequential` that ends in a linear
            layer.

    Returns:
        The map from inputs to features (b, d), and the layer from features to logits.

    Raises:
        ValueError: if the network has no such parts.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> features, head = split_head(network)
        >>> torch.equal(head(features(torch.ones(1, 2, 2))), network(torch.ones(1, 2, 2)))
        True
    """
    features, head = getattr(student, "features", None), getattr(student, "head", None)
    if callable(features) and isinstance(head, nn.Linear):
        return features, head
    if isinstance(student, nn.Sequential) and len(student) and isinstance(student[-1], nn.Linear):
        return student[:-1], student[-1]
    raise ValueError(
        "student must have a method features and a linear layer head, or be an nn.Sequential that "
        f"ends in a linear layer, got {type(student).__name__}"
    )


def auxiliary_head(width: int, classes: int, kind: str, seed: int) -> nn.Module:
    r"""Return DHKD's second head, with the framework's default weights.

    $$a = W_2 \operatorname{ReLU}(\operatorname{BN}(\operatorname{Dropout}_{0.1}(W_1 f))), \qquad
      W_1 \in \mathbb R^{200 \times d}$$

    or, linear, $a = W f$, each with biases.

    **Source**: Yang et al. (2025), released code; the command for CIFAR-100 takes the nonlinear
    one.

    Args:
        width: d >= 1.
        classes: K >= 1.
        kind: "nonlinear" or "linear".
        seed: of the stream "auxiliary", which no other weight and no order draws from.

    Returns:
        A module (b, d) -> (b, K).

    Raises:
        ValueError: if the kind is unknown.

    Example:
        >>> sum(p.numel() for p in auxiliary_head(5, 3, "nonlinear", 0).parameters())
        2203
    """
    if kind not in HEADS:
        raise ValueError(f"kind must be one of {', '.join(HEADS)}, got {kind!r}")
    with drawn_from(stream(seed, "auxiliary")):
        if kind == "linear":
            return nn.Linear(width, classes)
        return nn.Sequential(
            nn.Linear(width, _HIDDEN),
            nn.Dropout(_DROPOUT),
            nn.BatchNorm1d(_HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, classes),
        )


@dataclass(frozen=True)
class LayerFeatures:
    """Pairs of layers whose hidden states DTO-KD compares on text.

    Attributes:
        layers: M modules of the student; each returns states (b, L, d), or a tuple of which they
            are the first.
        teacher_states: the network's inputs, tokens (b, L) and mask (b, L), to the teacher's
            states (M, b, L, D) at the same places.
    """

    layers: Sequence[nn.Module]
    teacher_states: Callable[..., Tensor]


class Projections(nn.Module):
    r"""The maps $W_m$ from the student's hidden states to the teacher's.

    $$W_m \in \mathbb R^{d \times D}$$

    Normal with standard deviation 0.02, cut off at $\pm 0.04$.

    **Source**: ours, after Jiao et al. (2020); initialised as the classifier of Yuan & Tao.

    Args:
        pairs: M, number of pairs of layers.
        width: d, of the student.
        target: D, of the teacher.
        seed: of the stream "auxiliary".

    Example:
        >>> Projections(2, 3, 4, seed=0).weight.shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, pairs: int, width: int, target: int, seed: int) -> None:
        super().__init__()
        edge, draw = 2 * HEAD_SPREAD, stream(seed, "auxiliary")
        self.weight = nn.Parameter(torch.empty(pairs, width, target))
        nn.init.trunc_normal_(self.weight, 0, HEAD_SPREAD, -edge, edge, generator=draw)


class FeatureLoss:
    """The distance of hidden states of one forward pass, from what hooks on the layers caught.

    Args:
        student: the network; its inputs are tokens and mask.
        features: the pairs of layers.
        inputs: the network's inputs for one example or more, to find the widths.
        seed: of the stream "auxiliary".

    Raises:
        ValueError: if there is no layer, or states have no common shape.
    """

    def __init__(
        self, student: nn.Module, features: LayerFeatures, inputs: tuple[Tensor, ...], seed: int
    ) -> None:
        if not features.layers:
            raise ValueError("features must name at least one layer of the student, got none")
        self.features = features
        self.caught: list[Tensor] = []
        was, _ = student.training, student.eval()
        with torch.no_grad():
            states, target = self.states(student, inputs)[1:]
        student.train(was)
        pairs, width = len(states), states.shape[-1]
        self.projections = Projections(pairs, width, target.shape[-1], seed).to(states)

    def states(
        self, student: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the student's states (M, b, L, d) and the teacher's (M, b, L, D)."""
        caught: list[Tensor] = []
        handles = [
            layer.register_forward_hook(
                lambda module, args, out: caught.append(out[0] if isinstance(out, tuple) else out)
            )
            for layer in self.features.layers
        ]
        try:
            logits = student(*inputs)
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad():
            target = self.features.teacher_states(*inputs)
        return logits, torch.stack(caught), target

    def __call__(self, student: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the logits and the mean distance over the real tokens of the inputs."""
        logits, states, target = self.states(student, inputs)
        return logits, layer_feature_loss(states, target, self.projections.weight, inputs[1])
