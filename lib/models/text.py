"""A small text network: embeddings, pre-norm transformer blocks, the mean of a text, a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lib.models.checks import check_generator, check_rate, check_size
from lib.models.student import Student, masked_mean, new_head


class Block(nn.Module):
    r"""One transformer block, normalised before attention and before the perceptron.

    $$h' = h + \operatorname{Att}(\operatorname{LN}(h)), \qquad
      h'' = h' + W_2\, \operatorname{GELU}(W_1 \operatorname{LN}(h'))$$

    **Source**: Xiong et al. (2020), pre-norm; the hidden width is four times the width.

    Args:
        width: d, a multiple of `heads`.
        heads: number of attention heads.
        dropout: share dropped in training: of attention weights and of both increments.

    Example:
        >>> block = Block(8, 2, 0.0)
        >>> block(torch.zeros(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.first_norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def extra_repr(self) -> str:
        """Return the heads, which no weight shows; networks are known by what they print.

        Two heads print nothing: so did every block before, and what was kept of such networks is
        still found.
        """
        return "" if self.heads == 2 else f"heads={self.heads}"

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the states (b, L, d) after the block; `mask` (b, L) is True at real tokens."""
        parts = self.attention(self.first_norm(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        states = states + self.drop(self.output(mixed.transpose(1, 2).flatten(2)))
        return states + self.drop(self.perceptron(self.second_norm(states)))


class TextBody(nn.Module):
    """Tokens and mask to the mean of a text: what the head of `text_encoder` reads.

    Attributes:
        embedding: (vocabulary, d) table.
        positions: (longest, d) parameter, or None without blocks: then order does not matter.
        blocks: the transformer blocks.
    """

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, longest: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(longest, width)) if layers else None
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if layers else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def states(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the states (b, L, d) of every layer: the embeddings first."""
        states = self.embedding(tokens)
        if self.positions is not None:
            if tokens.shape[1] > len(self.positions):
                raise ValueError(
                    f"tokens must have at most {len(self.positions)} places, got {tokens.shape[1]}"
                )
            states = self.drop(states + self.positions[: tokens.shape[1]])
        found = [states]
        for block in self.blocks:
            found.append(block(found[-1], mask))
        return tuple(found)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the mean (b, d) of the last states over the real tokens."""
        return self.drop(masked_mean(self.norm(self.states(tokens, mask)[-1]), mask))


def text_encoder(
    vocabulary: int,
    classes: int,
    width: int,
    layers: int,
    heads: int = 1,
    *,
    generator: torch.Generator,
    dropout: float = 0.1,
    longest: int = 128,
) -> Student:
    r"""Return a small network for texts of tokens.

    $$f(x) = W\, \frac{1}{|x|} \sum_{s \le |x|} h_s + b$$

    Without layers, h are the embeddings and the order of the tokens does not matter; with layers,
    positions are learned, and h are the normalised states after the last block. Weights of linear
    layers are normal with standard deviation $1/\sqrt m$ for m inputs, embeddings and positions
    with $1/\sqrt d$; biases are 0. The head is that of `new_head`.

    **Source**: ours.

    Args:
        vocabulary: number of tokens, >= 1; tokens are in [0, vocabulary).
        classes: number of outputs, >= 1.
        width: d >= 1, a multiple of `heads`.
        layers: number of transformer blocks, >= 0.
        heads: attention heads of a block, >= 1.
        generator: source of randomness; the weights are on its device.
        dropout: share dropped in training, in [0, 1), inside the blocks and before the head.
        longest: places for which positions exist, >= 1.

    Returns:
        The network: tokens (b, L) int64 and mask (b, L) bool, True at real tokens, at least one a
        text -> (b, classes). It has `features` and `head`; `body.states` are those of every layer.

    Raises:
        ValueError: if a size is below its limit, `heads` does not divide `width`, or `dropout` is
            outside [0, 1).

    Example:
        >>> network = text_encoder(100, 5, 32, 0, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in network.parameters())  # 100 x 32 + 33 x 5
        3365
    """
    vocabulary = check_size("vocabulary", vocabulary)
    width, layers = check_size("width", width), check_size("layers", layers, 0)
    heads, longest = check_size("heads", heads), check_size("longest", longest)
    if width % heads:
        raise ValueError(f"heads must divide width {width}, got {heads}")
    dropout = check_rate("dropout", dropout)
    head = new_head(width, classes, generator)
    with torch.device("meta"):
        body = TextBody(vocabulary, width, layers, heads, longest, dropout)
    body.to_empty(device=check_generator(generator).device)
    _fill(body, width, generator)
    return Student(body, head)


@torch.no_grad()
def _fill(body: TextBody, width: int, generator: torch.Generator) -> None:
    """Draw every weight; set the biases to 0 and the scales of normalisations to 1."""
    body.embedding.weight.normal_(0, 1 / math.sqrt(width), generator=generator)
    if body.positions is not None:
        body.positions.normal_(0, 1 / math.sqrt(width), generator=generator)
    for module in body.modules():
        if isinstance(module, nn.Linear):
            spread = 1 / math.sqrt(module.in_features)
            module.weight.normal_(0, spread, generator=generator)
            module.bias.zero_()
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
