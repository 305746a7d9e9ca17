"""Flows and descents with their weights, and the ways to measure, against closed forms."""

import numpy as np
import pytest
import torch

from lib.book.pages import progressive_sharpening as page
from lib.book.pages.stability_runs import digits_data, digits_network
from lib.stability import dense_hessian

DATA = torch.tensor([[1.0], [1.0]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)


def one_weight():
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.ones_(model.weight)
    return model


def test_weights_of_the_flow_are_those_at_its_times():
    # dw/dt = -w
    walk = page.follow_flow("one weight", one_weight(), DATA, 3.0, every=0.5, max_step=0.05)
    torch.testing.assert_close(walk.weights[:, 0], torch.exp(-walk.times), rtol=1e-6, atol=0)
    assert len(walk.times) == 7


@pytest.mark.parametrize("every", [1, 3])
def test_weights_of_descent_are_those_before_the_measured_steps(every):
    walk = page.follow_descent("one weight", one_weight(), DATA, 0.25, 9, every)
    torch.testing.assert_close(walk.weights[:, 0], 0.75 ** walk.run.steps.double())
    assert walk.times.tolist() == [0.25 * step for step in range(0, 10, every)]


def test_a_flow_of_one_record_a_step_is_euler():
    walk = page.follow_flow(
        "one weight", one_weight(), DATA, 1.0, every=0.25, max_step=0.25, rule="euler"
    )
    descent = page.follow_descent("one weight", one_weight(), DATA, 0.25, 4, 1)
    torch.testing.assert_close(walk.weights, descent.weights)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.01])
def test_a_smaller_demand_scales_the_first_residuals(share):
    model = digits_network((7,), dtype=torch.float64)
    inputs, labels = digits_data(40, torch.float64)
    same, targets = page.smaller_demand(model, (inputs, labels), share)
    wanted = torch.nn.functional.one_hot(labels, 10).double()
    with torch.no_grad():
        outputs = model(inputs)
    torch.testing.assert_close(targets - outputs, share * (wanted - outputs))
    assert same is inputs


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="share must be above 0"):
        page.smaller_demand(one_weight(), (DATA[0], torch.zeros(2, dtype=torch.int64)), share)


def test_the_loss_is_half_the_squared_distance():
    model = digits_network((7,), dtype=torch.float64)
    inputs, labels = digits_data(40, torch.float64)
    wanted = torch.nn.functional.one_hot(labels, 10).double()
    mean = torch.nn.MSELoss()(model(inputs), wanted).detach()
    found = page.square_loss(model, (inputs, labels))().detach()
    assert float(found) == pytest.approx(5 * float(mean))


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_all_methods_find_the_end_of_the_spectrum(factor):
    model = digits_network((4, 4), dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    data = digits_data(60, torch.float64)
    loss, parameters = page.square_loss(model, data), list(model.parameters())
    values, vectors = torch.linalg.eigh(dense_hessian(loss, parameters))
    largest = values[values.abs().argmax()]
    assert page.arpack(loss, parameters, "LA")[0] == pytest.approx(float(values[-1]), rel=1e-9)
    value, residual, products = page.arpack(loss, parameters, "LM")
    assert value == pytest.approx(float(largest), rel=1e-9)
    assert residual < 1e-6
    assert products > 5
    rows = page.compare_methods(model, data, vectors[:, -1])
    found = [row["sharpness"] for row in rows if "LM" not in row["method"]]
    assert np.allclose(found, float(values[-1]), rtol=1e-6)
    cold, warm = rows[-2]["products"], rows[-1]["products"]
    assert warm < cold


def test_levels_and_values_lie_on_straight_lines():
    times, values = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 2.0, 8.0])
    assert page.time_of_level(times, values, 5.0) == pytest.approx(2.0)
    assert page.value_at(times, values, 2.0) == pytest.approx(5.0)
    assert page.time_of_level(times, values, 0.5) == 0.0
    assert page.time_below(times, -values, -1.5) == 1.0
    assert page.time_below(times, values, 1.0) is None
    with pytest.raises(ValueError, match="stay below 9"):
        page.time_of_level(times, values, 9.0)
