"""Mixed precision, the loss scale, and float32 that is float32."""

from __future__ import annotations

import math

import pytest
import torch

from lib.distill.precision import LossScale, exact_float32
from lib.distill.trainer import Trainer
from tests.distill.small_runs import TWO_PASSES, network, settings, task, trained, weights


def test_bfloat16_stays_close_to_float32():
    examples, teacher = task(19, dtype=torch.float32)
    ends = []
    for precision in ("float32", "amp-bfloat16"):
        model = network(dtype=torch.float32)
        start = weights(model)
        found, trainer = trained("kd", model, examples, teacher, precision=precision)
        assert trainer.state()["student.0.weight"].dtype == torch.float32
        ends.append(found - start)
    gap = float((ends[0] - ends[1]).norm() / ends[0].norm())
    assert 0 < gap < 0.03


def test_losses_are_computed_in_float32_outside_autocast():
    examples, teacher = task(19, dtype=torch.float32)
    values = settings("kd", 2, precision="amp-bfloat16")
    trainer = Trainer(network(dtype=torch.float32), examples, values, teacher=teacher)
    index = torch.arange(6)
    part = trainer.parts.evaluate(index, torch.zeros(6, dtype=torch.int64), 0)
    assert part.losses[0].dtype == part.logits.dtype == torch.float32
    assert torch.equal(part.logits, part.logits.bfloat16().float())  # the network ran in bfloat16


@pytest.mark.parametrize("method", ["kd", *TWO_PASSES])
def test_a_loss_scale_changes_no_bit(method):
    """A power of two cancels exactly while nothing overflows."""
    examples, teacher = task(20, dtype=torch.float32)
    ends = []
    for scale in (None, LossScale(1024.0)):
        model = network(dtype=torch.float32)
        values = settings(method, 5, precision="float32", micro_batch=7)
        trainer = Trainer(model, examples, values, teacher=teacher)
        trainer.scale = scale
        for k in range(5):
            trainer.step(k)
        ends.append(weights(model))
    assert torch.equal(*ends)
    assert scale.clean == 5


@pytest.mark.parametrize("method", ["kd", *TWO_PASSES])
def test_an_overflow_is_skipped_and_halves_the_scale(method):
    examples, teacher = task(20, dtype=torch.float32)
    model = network(dtype=torch.float32)
    trainer = Trainer(model, examples, settings(method, 3, precision="float32"), teacher=teacher)
    trainer.scale = LossScale(2.0**127)
    model[3].weight.data *= 100  # gradients of the first layer beyond 2, times 2^127
    before = trainer.state()
    found = trainer.step(0)
    assert found["gradient_norm"] is None
    assert math.isfinite(found["loss"])
    assert trainer.scale == LossScale(2.0**126, 0)
    assert torch.equal(before["student.0.weight"], model[0].weight)
    trainer.scale.value = 2.0**-30
    assert trainer.step(1)["gradient_norm"] > 0


def test_the_loss_scale_is_that_of_the_library():
    library = torch.amp.GradScaler("cpu")
    own = LossScale(65536.0)
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], 0.0)
    for step in range(2300):
        finite = step not in (3, 100, 101)
        weight.grad = torch.full((1,), 1.0 if finite else math.inf)
        library.scale(torch.ones(1))
        library.step(optimiser)
        library.update()
        own.update(finite)
    assert own.value == library.get_scale() == 65536 / 8 * 2
    assert own.clean == library.state_dict()["_growth_tracker"]


def test_float32_means_float32_on_a_gpu():
    """Flags of this process, which need no GPU; nothing else may change, and all comes back."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    with exact_float32(torch.device("cuda")):
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (False, False)
        assert (cudnn.enabled, cudnn.benchmark) == before[:2]
    assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32) == before
    assert cudnn.allow_tf32  # the library's default, which the block must not leave


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("precision", ["float32", "amp-float16", "amp-bfloat16"])
@pytest.mark.parametrize("method", ["tpkd", *TWO_PASSES])
def test_mixed_precision_on_cuda(method, precision):
    examples, teacher = task(27, dtype=torch.float32)
    ends = []
    for device, kind in (("cpu", "float32"), ("cuda", precision)):
        model = network(dtype=torch.float32)
        values = settings(method, 10, precision=kind, micro_batch=10)
        trainer = Trainer(model, examples, values, teacher=teacher, device=device)
        for k in range(10):
            trainer.step(k)
        ends.append(weights(model).cpu())
    assert (ends[0] - ends[1]).norm() < 0.05 * ends[0].norm()
