"""The networks of the paper with random weights: sizes, a step of descent, errors of the hub."""

import pytest
import torch
from torch import nn

from lib.models import paper
from lib.models.paper import paper_student, paper_teacher
from lib.models.weights import WeightsError

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def size(network):
    return sum(weight.numel() for weight in network.parameters())


def texts():
    mask = torch.arange(9) < torch.tensor([[9], [4], [6]])
    return torch.randint(1000, 30_000, (3, 9), generator=generator()) * mask, mask


def step(student, inputs, labels):
    """One step of SGD; the loss before it and after."""
    student.eval()  # without dropout, so that the two losses compare
    optimiser = torch.optim.SGD(student.parameters(), 1e-3)
    losses = []
    for _ in range(2):
        loss = nn.functional.cross_entropy(student(*inputs), labels)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses


@pytest.mark.parametrize(
    ("build", "domain", "published"),
    [
        (paper_student, "vision", 73_764_840),
        (paper_teacher, "vision", 58_678_336),
        (paper_student, "text", 11_170_560),
        (paper_teacher, "text", 335_141_888),
    ],
)
def test_sizes_are_those_of_the_published_networks(build, domain, published):
    """PiT-B 73.8 M, VOLO-D2 58.7 M with ImageNet's heads; BERT-Mini 11.2 M, BERT-large 335 M."""
    with torch.device("meta"):
        network = build(domain, pretrained=False, generator=generator())
    assert network.training
    assert network.head.out_features == {"vision": 100, "text": 150}[domain]
    width = network.head.in_features
    heads = sum(isinstance(m, nn.Linear) and m.out_features == 100 for m in network.modules())
    there = 1000 * (width + 1) if domain == "vision" else 0
    here = network.head.out_features * (width + 1)
    assert size(network) + max(heads, 1) * (there - here) == published


@pytest.mark.parametrize("seed", [0, 1])
def test_bert_mini_learns_and_comes_from_its_generator(seed):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    student = paper_student("text", 5, pretrained=False, generator=generator(seed))
    again = paper_student("text", 5, pretrained=False, generator=generator(seed))
    assert torch.equal(torch.get_rng_state(), state)
    for mine, same in zip(student.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, same)
    before, after = step(student, texts(), torch.tensor([0, 3, 1]))
    assert after < before
    for name, weight in student.named_parameters():
        assert weight.grad is not None, name
    tokens, mask = texts()
    assert student.features(tokens, mask).shape == (3, 256)
    torch.testing.assert_close(
        student(tokens[1:2, :4], mask[1:2, :4]), student(tokens, mask)[1:2], rtol=0, atol=1e-5
    )


def test_the_head_of_bert_reads_the_pooler():
    student = paper_student("text", pretrained=False, generator=generator()).eval()
    tokens, mask = texts()
    first = student.body.states(tokens, mask)[-1][:, 0]
    pooler = student.body.encoder.pooler.dense
    expected = (first @ pooler.weight.T + pooler.bias).tanh()
    torch.testing.assert_close(student.features(tokens, mask), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_pit_learns():
    """Two images are enough to see one step lower their loss."""
    student = paper_student("vision", 4, pretrained=False, generator=generator())
    images = torch.randn(2, 3, 224, 224, generator=generator(1))
    assert student.features(images).shape == (2, 1024)
    before, after = step(student, (images,), torch.tensor([1, 2]))
    assert after < before


@pytest.mark.slow
def test_volo_adds_half_of_its_second_head():
    teacher = paper_teacher("vision", pretrained=False, generator=generator()).eval()
    images = torch.randn(1, 3, 224, 224, generator=generator(1))
    with torch.no_grad():
        tokens = teacher.forward_features(images)
        second = teacher.aux_head(tokens[:, 1:]).amax(1)
        torch.testing.assert_close(teacher(images), teacher.head(tokens[:, 0]) + second / 2)


def test_bert_large_by_a_smaller_one(monkeypatch):
    """The 24 layers run; their width is cut so that the test stays light."""
    monkeypatch.setitem(paper.SIZES, "bert-large-uncased", (24, 64, 16))
    teacher = paper_teacher("text", pretrained=False, generator=generator()).eval()
    assert teacher(*texts()).shape == (3, 150)
    assert len(teacher.body.encoder.encoder.layer) == 24


@pytest.mark.parametrize("build", [paper_student, paper_teacher])
@pytest.mark.parametrize("domain", ["vision", "text"])
def test_without_the_hub_the_weight_is_named(build, domain, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(transformers.BertModel, "from_pretrained", unreachable)
    name = {"vision": paper.VISION, "text": paper.TEXT}[domain][build.__name__.split("_")[1]]
    with pytest.raises(WeightsError) as caught:
        build(domain, generator=generator())
    for part in (repr(name), "no route to host", "HF_HUB_OFFLINE", "pretrained=False"):
        assert part in str(caught.value)


def test_published_weights_must_be_complete(monkeypatch):
    def incomplete(*_, **__):
        return nn.Identity(), {"missing_keys": {"pooler.dense.bias"}}

    monkeypatch.setattr(transformers.BertModel, "from_pretrained", incomplete)
    with pytest.raises(WeightsError, match=r"it lacks \['pooler.dense.bias'\]"):
        paper_student("text", generator=generator())


@pytest.mark.parametrize("build", [paper_student, paper_teacher])
@pytest.mark.parametrize(
    ("domain", "change", "word"),
    [
        ("audio", {}, "domain"),
        ("text", {"classes": 0}, "classes"),
        ("text", {"dropout": 2}, "dropout"),
        ("vision", {"generator": None}, "generator"),
        ("text", {"generator": 1}, "generator"),
    ],
)
def test_refusals(build, domain, change, word):
    with pytest.raises(ValueError, match=word):
        build(domain, **({"pretrained": False, "generator": generator()} | change))
