"""MiniLM, a small pretrained text encoder: tokenizer, students of its layers, features."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lib.models.checks import check_generator, check_rate, check_size
from lib.models.student import Student, masked_mean, new_head
from lib.models.weights import locate_weights, needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LAYERS, WIDTH, WORD_PIECES = 6, 384, 30_522
PADDING, UNKNOWN, FIRST, LAST = 0, 100, 101, 102  # [PAD], [UNK], [CLS], [SEP]
TRANSFORMERS = "transformers==5.24.0"

Progress = Callable[[Iterable, str], Iterable]


class BertBody(nn.Module):
    """A BERT encoder and what its head reads: the mean of a text, or the pooler's output.

    Attributes:
        encoder: a `transformers.BertModel`.
        pooling: "mean" or "pooler".
        lookup: (word pieces,) int64, the row of the embedding for each word piece, where only some
            rows are kept; else None.
    """

    def __init__(
        self, encoder: nn.Module, pooling: str, dropout: float, lookup: Tensor | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.drop = nn.Dropout(dropout)
        self.register_buffer("lookup", lookup, persistent=False)

    def states(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the states (b, L, d) of every layer: the embeddings first."""
        return self._read(tokens, mask, output_hidden_states=True).hidden_states

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return what the head reads, (b, d)."""
        found = self._read(tokens, mask)
        if self.pooling == "mean":
            return self.drop(masked_mean(found.last_hidden_state, mask))
        return self.drop(found.pooler_output)

    def _read(self, tokens: Tensor, mask: Tensor, **options: bool) -> object:
        rows = tokens if self.lookup is None else self.lookup[tokens]
        return self.encoder(input_ids=rows, attention_mask=mask, **options)


def minilm(
    layers: int = LAYERS,
    classes: int = 150,
    dropout: float = 0.1,
    *,
    generator: torch.Generator,
    vocabulary: Tensor | None = None,
) -> Student:
    r"""Return the first layers of MiniLM with the mean of a text and a new head.

    $$f(x) = W\, \frac{1}{|x|} \sum_{s \le |x|} h_s + b$$

    with the states h after the last kept layer; without layers, h are the normalised embeddings of
    word pieces and positions. No network is asked; the weights come from a package.

    **Source**: all-MiniLM-L6-v2 (Apache-2.0), which stands in for BERT; the head is that of Yuan &
    Tao, Appendix E.1.

    Args:
        layers: 0 to 6.
        classes: number of outputs, >= 1.
        dropout: share dropped in training, in [0, 1), in the encoder and before the head.
        generator: source of randomness of the head; the weights are on its device.
        vocabulary: (v,) word pieces whose embeddings are kept, as from `kept_word_pieces`; others
            read as the unknown one. None keeps all 30,522.

    Returns:
        The network in training mode: tokens (b, L) int64 and mask (b, L) bool, True at real tokens
        -> (b, classes). It has `features`, `head` and `body.states`.

    Raises:
        ValueError: if an argument is outside its range.
        ImportError: if the weights or transformers are not installed; says how to.
        WeightsError: if the weights are not the known ones.

    Example:
        >>> from lib.models.weights import weights_here
        >>> if weights_here("minilm"):
        ...     student = minilm(0, generator=torch.Generator())
        ...     assert student.head.weight.shape == (150, 384)
    """
    if check_size("layers", layers, 0) > LAYERS:
        raise ValueError(f"layers must be at most {LAYERS}, got {layers}")
    dropout = check_rate("dropout", dropout)
    device = check_generator(generator).device
    kept = None if vocabulary is None else _check_vocabulary(vocabulary)
    head = new_head(WIDTH, classes, generator)
    encoder = _encoder(layers, dropout, kept)
    lookup = None if kept is None else _lookup(kept)
    return Student(BertBody(encoder, "mean", dropout, lookup).to(device), head)


def kept_word_pieces(*tokens: Tensor) -> Tensor:
    """Return the word pieces that occur, with the four special ones, in ascending order.

    Args:
        *tokens: int64 tensors of any shape, in [0, 30522).

    Returns:
        (v,) int64; what `minilm` takes as `vocabulary`.

    Raises:
        ValueError: if a token is outside its range.

    Example:
        >>> kept_word_pieces(torch.tensor([[101, 2051, 102, 0], [101, 2129, 2051, 102]])).tolist()
        [0, 100, 101, 102, 2051, 2129]
    """
    special = torch.tensor([PADDING, UNKNOWN, FIRST, LAST])
    kept = torch.cat([special, *(part.flatten().cpu() for part in tokens)]).unique()
    if kept[0] < 0 or kept[-1] >= WORD_PIECES:
        raise ValueError(f"tokens must be in [0, {WORD_PIECES}), got {kept[0]} to {kept[-1]}")
    return kept


def minilm_tokenizer() -> Tokenizer:
    """Return the word pieces of MiniLM, which are those of BERT uncased, as a tokenizer.

    The file asks for padding to 128 tokens and for cutting there; both are switched off.

    Returns:
        A `tokenizers.Tokenizer` that adds [CLS] and [SEP] and neither pads nor cuts.

    Raises:
        ImportError: if the package or tokenizers is not installed; says how to.
        WeightsError: if the file is not the known one.

    Example:
        >>> from lib.models.weights import weights_here
        >>> if weights_here("minilm-tokenizer"):
        ...     assert minilm_tokenizer().encode("time").ids == [101, 2051, 102]
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = needed("tokenizers", "tokenizers==0.23.3").Tokenizer.from_file(
        str(locate_weights("minilm-tokenizer"))
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenise(texts: Sequence[str], longest: int = 128) -> tuple[Tensor, Tensor]:
    """Return the word pieces of texts, padded to the longest of them, and their numbers.

    Args:
        texts: one or more texts.
        longest: word pieces that a text may have, with the two special ones, 2 to 512.

    Returns:
        Tokens (n, L) int64, 0 behind the end of a text, and lengths (n,) int64.

    Raises:
        ValueError: if there is no text, or one has more word pieces than `longest`: none is cut.
        ImportError: if the package or tokenizers is not installed; says how to.

    Example:
        >>> from lib.models.weights import weights_here
        >>> if weights_here("minilm-tokenizer"):
        ...     tokens, lengths = tokenise(["time", "how time flies"])
        ...     assert lengths.tolist() == [3, 5] and tokens[0].tolist() == [101, 2051, 102, 0, 0]
    """
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts must be a sequence of one or more texts, got {texts!r}")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{place}] must be a text, got {type(text).__name__}")
    if check_size("longest", longest, 2) > 512:
        raise ValueError(f"longest must be at most 512, the places of the encoder, got {longest}")
    pieces = [torch.tensor(found.ids) for found in minilm_tokenizer().encode_batch(list(texts))]
    lengths = torch.tensor([len(piece) for piece in pieces])
    worst = int(lengths.argmax())
    if lengths[worst] > longest:
        raise ValueError(
            f"texts[{worst}] has {lengths[worst]} word pieces, must have at most {longest}"
        )
    return nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=PADDING), lengths


def text_features(
    student: Student,
    tokens: Tensor,
    lengths: Tensor,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Tensor:
    """Return what the head of a text network reads, for every text, in one pass.

    The network is in evaluation mode meanwhile. A batch holds texts of similar length and is
    padded to its longest only.

    Args:
        student: a network with `features(tokens, mask)`.
        tokens: (n, L) int64.
        lengths: (n,) int64, in [1, L].
        batch_size: texts at a time, >= 1.
        progress: `progress(iterable, label)` yields the items and may say how far it is.

    Returns:
        (n, d) in the network's dtype, on the CPU, in the order of the texts.

    Raises:
        ValueError: if the shapes do not fit or a length is out of range.

    Example:
        >>> from lib.models.text import text_encoder
        >>> student = text_encoder(9, 3, 4, 0, generator=torch.Generator())
        >>> tokens = torch.tensor([[1, 2, 0], [3, 4, 5]])
        >>> found = text_features(student, tokens, torch.tensor([2, 3]))
        >>> bool((found[0] == student.body.embedding.weight[1:3].mean(0)).all())
        True
    """
    check_size("batch_size", batch_size)
    _check_tokens(tokens, lengths)
    device, dtype = student.head.weight.device, student.head.weight.dtype
    result = torch.empty(len(tokens), student.head.in_features, dtype=dtype)
    batches = lengths.argsort(stable=True).split(batch_size)
    training = student.training
    student.eval()
    with torch.inference_mode():
        for batch in progress(batches, "batches of texts") if progress else batches:
            size = lengths[batch]
            longest = int(size.max())
            mask = torch.arange(longest) < size[:, None]
            inputs = tokens[batch, :longest].to(device), mask.to(device)
            result[batch] = student.features(*inputs).to("cpu", dtype)
    student.train(training)
    return result


def _check_tokens(tokens: Tensor, lengths: Tensor) -> None:
    if tokens.ndim != 2 or lengths.shape != tokens.shape[:1] or not len(tokens):
        raise ValueError(
            f"tokens must be (n, L) and lengths (n,) with n >= 1, got {tuple(tokens.shape)} and "
            f"{tuple(lengths.shape)}"
        )
    if lengths.min() < 1 or lengths.max() > tokens.shape[1]:
        raise ValueError(
            f"lengths must be in [1, {tokens.shape[1]}], got {lengths.min()} to {lengths.max()}"
        )


def _check_vocabulary(vocabulary: Tensor) -> Tensor:
    """The kept word pieces in ascending order, on the CPU."""
    if not isinstance(vocabulary, Tensor):
        raise ValueError(f"vocabulary must be a torch.Tensor, got {type(vocabulary).__name__}")
    kept = vocabulary.cpu()
    special = torch.tensor([PADDING, UNKNOWN, FIRST, LAST])
    ascending = kept.ndim == 1 and kept.dtype == torch.int64 and bool((kept.diff() > 0).all())
    if not ascending or not torch.isin(special, kept).all() or kept[-1] >= WORD_PIECES:
        raise ValueError(
            f"vocabulary must be int64 word pieces in [0, {WORD_PIECES}), ascending, with 0, 100, "
            f"101 and 102 among them, as from kept_word_pieces; got {vocabulary}"
        )
    return kept


def _lookup(kept: Tensor) -> Tensor:
    """The row of every word piece among the kept ones; that of the unknown one for the others."""
    unknown = int(torch.searchsorted(kept, UNKNOWN))
    lookup = torch.full((WORD_PIECES,), unknown)
    lookup[kept] = torch.arange(len(kept))
    return lookup


def _encoder(layers: int, dropout: float, kept: Tensor | None) -> nn.Module:
    """The first layers with their weights, without the pooler, in float32."""
    path = locate_weights("minilm")
    transformers = needed("transformers", TRANSFORMERS)
    weights = needed("safetensors.torch", "safetensors==0.8.0").load_file(path)
    table = "embeddings.word_embeddings.weight"
    if kept is not None:
        weights[table] = weights[table][kept]
    config = transformers.BertConfig.from_json_file(str(path.parent / "config.json"))
    config.num_hidden_layers, config.vocab_size = layers, len(weights[table])
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    with torch.random.fork_rng(devices=[]):
        encoder = transformers.BertModel(config, add_pooling_layer=False).float()
    encoder.load_state_dict({k: w for k, w in weights.items() if _is_used(k, layers)}, strict=True)
    return encoder.train()


def _is_used(key: str, layers: int) -> bool:
    """Whether a weight belongs to the kept layers."""
    if key.startswith("encoder.layer."):
        return int(key.split(".")[2]) < layers
    return key.startswith("embeddings.") and key != "embeddings.position_ids"
