"""Networks with pretrained weights, and frozen features of them."""

from lib.models.paper import paper_student, paper_teacher
from lib.models.pretrained_text import (
    kept_word_pieces,
    minilm,
    minilm_tokenizer,
    text_features,
    tokenise,
)
from lib.models.pretrained_vision import (
    efficientnet_lite0,
    fold_standardisation,
    image_features,
    prepare_images,
)
from lib.models.weights import WEIGHTS, WeightsError, locate_weights, weights_here

__all__ = [
    "WEIGHTS",
    "WeightsError",
    "efficientnet_lite0",
    "fold_standardisation",
    "image_features",
    "kept_word_pieces",
    "locate_weights",
    "minilm",
    "minilm_tokenizer",
    "paper_student",
    "paper_teacher",
    "prepare_images",
    "text_features",
    "tokenise",
    "weights_here",
]
