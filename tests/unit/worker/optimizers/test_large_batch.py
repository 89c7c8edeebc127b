"""LARS and LAMB against the papers' equations, written out in another library."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.optimizers import Lamb, Lars

SHAPES = ((3, 4), (5,), (2, 3, 2))


def trained(make, gradients, start):
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    optimizer = make(parameters)
    for step in gradients:
        for parameter, g in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


def lars(gradients, start, rate, momentum, decay, trust):
    weights, velocities = [w.copy() for w in start], [np.zeros_like(w) for w in start]
    for step in gradients:
        for i, g in enumerate(step):
            w = weights[i]
            if w.ndim == 1:
                update = rate * g
            else:
                norm_w, norm_g = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                local = trust * norm_w / (norm_g + decay * norm_w) if norm_w and norm_g else 1.0
                update = rate * local * (g + decay * w)
            velocities[i] = momentum * velocities[i] + update
            weights[i] = w - velocities[i]
    return weights


def lamb(gradients, start, rate, beta1, beta2, eps, decay):
    weights = [w.copy() for w in start]
    m, v = ([np.zeros_like(w) for w in start] for _ in range(2))
    for t, step in enumerate(gradients, start=1):
        for i, g in enumerate(step):
            w = weights[i]
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            r = m[i] / (1 - beta1**t) / (np.sqrt(v[i] / (1 - beta2**t)) + eps)
            ratio = 1.0
            if w.ndim > 1:
                r = r + decay * w
                norm_w, norm_r = np.sqrt((w**2).sum()), np.sqrt((r**2).sum())
                ratio = norm_w / norm_r if norm_w and norm_r else 1.0
            weights[i] = w - rate * ratio * r
    return weights


def tensors(seed, steps=5):
    generator = np.random.default_rng(seed)
    start = [generator.normal(size=shape) for shape in SHAPES]
    gradients = [[generator.normal(size=shape) for shape in SHAPES] for _ in range(steps)]
    return gradients, start


@given(
    seed=st.integers(0, 1000),
    rate=st.floats(1e-3, 2.0),
    momentum=st.floats(0, 0.95),
    decay=st.floats(0, 0.1),
)
def test_lars_follows_its_equations(seed, rate, momentum, decay):
    gradients, start = tensors(seed)
    found = trained(lambda p: Lars(p, rate, momentum, decay, trust=0.02), gradients, start)
    wanted = lars(gradients, start, rate, momentum, decay, 0.02)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 1000), rate=st.floats(1e-3, 0.5), decay=st.floats(0, 0.1))
def test_lamb_follows_its_equations(seed, rate, decay):
    gradients, start = tensors(seed)
    found = trained(lambda p: Lamb(p, rate, (0.9, 0.99), 1e-6, decay), gradients, start)
    wanted = lamb(gradients, start, rate, 0.9, 0.99, 1e-6, decay)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
