"""The networks of Yuan & Tao, in their own sizes: PiT-B and VOLO-D2, BERT-Mini and BERT-large."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lib.models.checks import check_generator, check_rate, check_size, check_word
from lib.models.pretrained_text import TRANSFORMERS, BertBody
from lib.models.pretrained_vision import TIMM
from lib.models.student import Student, drawn_from, new_head
from lib.models.weights import WeightsError, needed

DOMAINS = ("vision", "text")
CLASSES = {"vision": 100, "text": 150}
IMAGE_SIZE = 224
IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VISION = {"student": "pit_b_224.in1k", "teacher": "volo_d2_224.sail_in1k"}
TEXT = {"student": "google/bert_uncased_L-4_H-256_A-4", "teacher": "bert-large-uncased"}
SIZES = {  # layers, width and attention heads
    "google/bert_uncased_L-4_H-256_A-4": (4, 256, 4),
    "bert-large-uncased": (24, 1024, 16),
}


class ImageBody(nn.Module):
    """A network of timm up to what its head reads.

    Attributes:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (b, d) of images (b, 3, 224, 224)."""
        return self.network.forward_head(self.network.forward_features(images), pre_logits=True)


def paper_student(
    domain: str,
    classes: int | None = None,
    pretrained: bool = True,
    *,
    generator: torch.Generator,
    dropout: float = 0.1,
) -> Student:
    """Return the paper's student: PiT-B on images, BERT-Mini with its pooler on texts.

    Published weights come from the Hugging Face hub: PiT-B's of ImageNet (timm), BERT-Mini's of
    masked words (Google). The head is new.

    **Source**: Yuan & Tao, Appendix E.1; Heo et al. (2021); Turc et al. (2019).

    Args:
        domain: "vision" or "text".
        classes: number of outputs, >= 1; None for the paper's 100 or 150.
        pretrained: True downloads the weights or takes them from the hub's cache; False draws them.
        generator: source of randomness; the weights are on its device.
        dropout: share dropped in training on texts, in [0, 1).

    Returns:
        The network in training mode, with `features` and `head`. It reads images
        (b, 3, 224, 224), standardised by `IMAGE_MEAN` and `IMAGE_STD`; or word pieces (b, L) of
        BERT uncased (`tokenise`) and their mask (b, L).

    Raises:
        ValueError: if an argument is outside its range.
        ImportError: if timm or transformers is not installed; says how to.
        WeightsError: if the hub cannot be reached or sends other weights; names them.

    Example:
        >>> with torch.device("meta"):  # shapes only, for this example
        ...     student = paper_student("text", pretrained=False, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in student.body.parameters())
        11170560
    """
    check_word("domain", domain, DOMAINS)
    classes = CLASSES[domain] if classes is None else check_size("classes", classes)
    dropout = check_rate("dropout", dropout)
    if domain == "text":
        return _bert(TEXT["student"], classes, dropout, pretrained, generator)
    body = ImageBody(_image_network(VISION["student"], 0, pretrained, generator))
    head = new_head(body.network.num_features, classes, generator)
    return Student(_placed(body, generator), head).train()


def paper_teacher(
    domain: str,
    classes: int | None = None,
    pretrained: bool = True,
    *,
    generator: torch.Generator,
    dropout: float = 0.1,
) -> nn.Module:
    """Return the paper's teacher before it has learned the task: VOLO-D2 or BERT-large.

    The paper's teachers, trained on CIFAR-100 and CLINC150, are not published; this is what they
    start from. VOLO-D2 adds to its logits half of the largest ones of its second, token-wise head.

    **Source**: Yuan & Tao, Appendix E.1; Yuan et al. (2023); Devlin et al. (2019).

    Args:
        domain: "vision" or "text".
        classes: number of outputs, >= 1; None for the paper's 100 or 150.
        pretrained: True downloads the weights or takes them from the hub's cache; False draws them.
        generator: source of randomness; the weights are on its device.
        dropout: share dropped in training on texts, in [0, 1).

    Returns:
        The network in training mode; it reads what `paper_student` reads, -> (b, classes).

    Raises:
        ValueError: if an argument is outside its range.
        ImportError: if timm or transformers is not installed; says how to.
        WeightsError: if the hub cannot be reached or sends other weights; names them.

    Example:
        >>> with torch.device("meta"):  # shapes only, for this example
        ...     teacher = paper_teacher("text", pretrained=False, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in teacher.body.parameters())
        335141888
    """
    check_word("domain", domain, DOMAINS)
    classes = CLASSES[domain] if classes is None else check_size("classes", classes)
    dropout = check_rate("dropout", dropout)
    if domain == "text":
        return _bert(TEXT["teacher"], classes, dropout, pretrained, generator)
    network = _image_network(VISION["teacher"], classes, pretrained, generator)
    return _placed(network, generator).train()


def _image_network(
    name: str, classes: int, pretrained: bool, generator: torch.Generator
) -> nn.Module:
    """A network of timm; without classes, without a head."""
    timm = needed("timm", TIMM)
    with drawn_from(generator):
        return _fetched(
            name,
            pretrained,
            lambda: timm.create_model(name, pretrained=pretrained, num_classes=classes),
        )


def _bert(
    name: str, classes: int, dropout: float, pretrained: bool, generator: torch.Generator
) -> Student:
    """BERT with its pooler and a new head."""
    transformers = needed("transformers", TRANSFORMERS)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    layers, width, heads = SIZES[name]

    def published() -> nn.Module:
        encoder, report = transformers.BertModel.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, **rates
        )
        if report["missing_keys"]:
            raise ValueError(f"it lacks {sorted(report['missing_keys'])}")
        return encoder

    def random() -> nn.Module:
        sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        config = transformers.BertConfig(intermediate_size=4 * width, **sizes, **rates)
        return transformers.BertModel(config)

    with drawn_from(generator):
        encoder = _fetched(name, pretrained, published if pretrained else random)
    body = BertBody(_placed(encoder, generator), "pooler", dropout)
    return Student(body, new_head(width, classes, generator)).train()


def _fetched(name: str, pretrained: bool, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network; what goes wrong with its published weights is told by their name."""
    if not pretrained:
        return build()
    try:
        return build()
    except Exception as error:  # each of the hub's layers has failures of its own
        raise WeightsError(
            f"the weights {name!r} cannot be had from huggingface.co: {error}\n"
            "Connect to the network and unset HF_HUB_OFFLINE; or, where they are in the hub's "
            "cache, set HF_HUB_OFFLINE=1; or ask for pretrained=False, random weights"
        ) from error


def _placed(network: nn.Module, generator: torch.Generator) -> nn.Module:
    """The network on the generator's device; on the CPU it already is."""
    device = check_generator(generator).device
    return network if device.type == "cpu" else network.to(device)
