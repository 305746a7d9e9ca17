import pytest
import torch

from lib.stability import checks


def test_counts():
    assert checks.count("steps", 3, 0, 5) == 3
    for bad in (-1, 6, 1.0, True, "2", None):
        with pytest.raises(ValueError, match=r"steps must be an integer >= 0 and <= 5, got"):
            checks.count("steps", bad, 0, 5)


def test_positive_numbers():
    assert checks.positive("tol", torch.tensor(0.5), 1.0) == 0.5
    for bad in (0, -1, 2, float("nan"), float("inf"), "1", True, None, torch.ones(2)):
        with pytest.raises(ValueError, match="tol must be a finite number > 0 and <= 1"):
            checks.positive("tol", bad, 1.0)


def test_momentum():
    assert checks.momentum_method("polyak", 0) == ("polyak", 0.0)
    for bad in (1.0, -0.1, float("nan"), "0", None):
        with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\)"):
            checks.momentum_method("nesterov", bad)
    with pytest.raises(ValueError, match="optimiser must be one of 'gd', 'polyak', 'nesterov'"):
        checks.momentum_method("adam", 0.0)


def test_real_numbers():
    assert checks.real_float64("x", [1, 2]).dtype == torch.float64
    assert checks.real_float64("x", torch.tensor(3)).dtype == torch.float64
    cases = {"real": torch.ones(1) * 1j, "finite": [float("inf")], "a tensor or numbers": "a"}
    for message, bad in cases.items():
        with pytest.raises(ValueError, match=f"x must be {message}"):
            checks.real_float64("x", bad)


def test_parameters():
    leaf = torch.ones(2, requires_grad=True)
    model = torch.nn.Linear(2, 1)
    assert checks.leaf_parameters(model.parameters()) == tuple(model.parameters())
    cases = [
        (leaf, "must be a sequence of tensors, got Tensor"),
        (3, "must be a sequence of tensors, got int"),
        ([], "at least one tensor"),
        ([torch.ones(0, requires_grad=True)], "at least one tensor"),
        ([leaf, 2.0], r"\[1\] must be a float32 or float64 tensor, got float"),
        ([leaf.detach().half().requires_grad_()], r"\[0\] must be a float32 or float64 tensor"),
        ([leaf * 2], r"\[0\] must be a leaf"),
        ([leaf, leaf], "each tensor once"),
        ([leaf, torch.ones(1).double().requires_grad_()], "must share dtype and device"),
    ]
    for bad, message in cases:
        with pytest.raises(ValueError, match=message):
            checks.leaf_parameters(bad)


def test_losses():
    assert checks.loss_functions([len, abs]) == (len, abs)
    for bad in (None, [len, 3], {len}):
        with pytest.raises(ValueError, match="loss must be a function of no argument"):
            checks.loss_functions(bad)
