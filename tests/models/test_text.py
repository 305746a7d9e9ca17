"""The small text network against PyTorch's own encoder, under padding and under other orders."""

import itertools

import pytest
import torch
from torch import nn

from lib.models.text import Block, text_encoder

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]
LENGTHS = torch.tensor([7, 3, 1, 5])


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def texts(longest=7, seed=1):
    """Tokens in [1, 50), 0 behind the end, and the mask."""
    tokens = torch.randint(1, 50, (len(LENGTHS), 7), generator=generator(seed))
    mask = torch.arange(longest) < LENGTHS[:, None]
    return nn.functional.pad(tokens, (0, longest - 7)) * mask, mask


def encoder(layers, seed=0, **options):
    return text_encoder(50, 6, 16, layers, 4, generator=generator(seed), **options).double()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_layers_it_is_the_mean_of_the_embeddings(seed):
    network = encoder(0, seed).eval()
    tokens, mask = texts(seed=seed)
    table = network.body.embedding.weight
    rows = [table[row[:k]].mean(0) for row, k in zip(tokens, LENGTHS.tolist(), strict=True)]
    torch.testing.assert_close(network.features(tokens, mask), torch.stack(rows))
    expected = torch.stack(rows) @ network.head.weight.T + network.head.bias
    torch.testing.assert_close(network(tokens, mask), expected)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_block_is_pytorchs_pre_norm_layer(seed):
    torch.manual_seed(seed)
    theirs = nn.TransformerEncoderLayer(
        16, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    ours = Block(16, 4, 0.0).double()
    pairs = {
        ours.attention.weight: theirs.self_attn.in_proj_weight,
        ours.attention.bias: theirs.self_attn.in_proj_bias,
        ours.output.weight: theirs.self_attn.out_proj.weight,
        ours.output.bias: theirs.self_attn.out_proj.bias,
        ours.perceptron[0].weight: theirs.linear1.weight,
        ours.perceptron[0].bias: theirs.linear1.bias,
        ours.perceptron[2].weight: theirs.linear2.weight,
        ours.perceptron[2].bias: theirs.linear2.bias,
    }
    with torch.no_grad():
        for mine, other in pairs.items():
            other.normal_(0, 0.3)
            mine.copy_(other)
        for mine, other in ((ours.first_norm, theirs.norm1), (ours.second_norm, theirs.norm2)):
            mine.weight.copy_(other.weight.normal_(1, 0.1))
            mine.bias.copy_(other.bias.normal_(0, 0.1))
    _, mask = texts()
    states = torch.randn(4, 7, 16, dtype=torch.float64)
    expected = theirs(states, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(states, mask)[mask], expected[mask], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_padding_changes_nothing(layers):
    network = encoder(layers).eval()
    tokens, mask = texts()
    long_tokens, long_mask = texts(longest=40)
    expected = network(tokens, mask)
    torch.testing.assert_close(network(long_tokens, long_mask), expected, rtol=0, atol=1e-12)
    other = long_tokens.where(long_mask, 17)
    torch.testing.assert_close(network(other, long_mask), expected, rtol=0, atol=1e-12)
    for row, length in enumerate(LENGTHS.tolist()):
        one = slice(row, row + 1)
        alone = network(tokens[one, :length], mask[one, :length])
        torch.testing.assert_close(alone, expected[one], rtol=0, atol=1e-12)


def test_order_matters_with_layers_only():
    tokens, mask = texts()
    turned = tokens.clone()
    turned[0] = tokens[0].flip(0)
    bag, ordered = encoder(0).eval(), encoder(1).eval()
    torch.testing.assert_close(bag(turned, mask), bag(tokens, mask))
    assert (ordered(turned, mask) - ordered(tokens, mask))[0].abs().max() > 1e-3
    assert bag.body.positions is None


def test_states_of_every_layer():
    network = encoder(3).eval()
    tokens, mask = texts()
    states = network.body.states(tokens, mask)
    assert [state.shape for state in states] == [(4, 7, 16)] * 4
    torch.testing.assert_close(network.body.blocks[2](states[2], mask), states[3])
    last = network.body.norm(states[3])
    torch.testing.assert_close(
        network.features(tokens, mask)[1], last[1, :3].mean(0), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("device", DEVICES)
def test_weights_come_from_the_generator(device):
    """The global generator neither decides them nor moves; spreads are as documented."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again = (text_encoder(900, 5, 64, 2, 4, generator=generator(3, device)) for _ in "ab")
    assert torch.equal(torch.get_rng_state(), state)
    other = text_encoder(900, 5, 64, 2, 4, generator=generator(4, device))
    for mine, same in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, same)
        assert mine.device.type == device
    assert not torch.equal(first.body.embedding.weight, other.body.embedding.weight)
    assert first.body.embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.03)
    assert first.body.blocks[0].perceptron[2].weight.std().item() == pytest.approx(1 / 16, rel=0.03)
    assert not first.body.blocks[1].attention.bias.any()


def test_dropout_in_training_only():
    network = encoder(2, dropout=0.5)
    tokens, mask = texts()
    torch.manual_seed(0)
    assert not torch.equal(network(tokens, mask), network(tokens, mask))
    network.eval()
    assert torch.equal(network(tokens, mask), network(tokens, mask))
    torch.testing.assert_close(network(tokens, mask), encoder(2).eval()(tokens, mask))


def test_gradients_of_a_padded_batch_are_those_of_its_texts():
    network = encoder(1, dropout=0.0)
    tokens, mask = texts(longest=12)
    network(tokens, mask).square().sum().backward()
    whole = [weight.grad.clone() for weight in network.parameters()]
    network.zero_grad()
    for row, length in enumerate(LENGTHS.tolist()):
        one = slice(row, row + 1)
        network(tokens[one, :length], mask[one, :length]).square().sum().backward()
    for weight, expected in zip(network.parameters(), whole, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=1e-10, atol=1e-12)


def test_heads_tell_networks_of_equal_weights_apart():
    """Caches of teachers know a network by its weights and its print alone."""

    def build(heads):
        generator = torch.Generator().manual_seed(0)
        return text_encoder(50, 6, 16, 1, heads, generator=generator)

    networks = [build(heads) for heads in (1, 2, 4)]
    for one, other in itertools.combinations(networks, 2):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs)
        assert repr(one) != repr(other)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vocabulary": 0}, "vocabulary"),
        ({"classes": 0}, "classes"),
        ({"layers": -1}, "layers"),
        ({"heads": 3}, "heads must divide width 16"),
        ({"dropout": 1.0}, "dropout"),
        ({"longest": 0}, "longest"),
        ({"generator": 0}, "generator"),
    ],
)
def test_refusals(change, word):
    usual = {"vocabulary": 50, "classes": 6, "width": 16, "layers": 1, "heads": 4}
    with pytest.raises(ValueError, match=word):
        text_encoder(**(usual | {"generator": generator()} | change))


def test_a_text_longer_than_the_positions_is_refused():
    network = text_encoder(50, 6, 16, 1, 4, generator=generator(), longest=6)
    with pytest.raises(ValueError, match="at most 6 places, got 7"):
        network(*texts())
