"""Makes fit_nnls.json: non-negative least squares problems and SciPy's answers.

Run with SciPy >= 1.12 installed: python fit_nnls.py > fit_nnls.json
"""

import json
import sys

import numpy as np
from scipy.optimize import nnls

rng = np.random.default_rng(20180423)
cases = []


def add(kind, a, b):
    # Rounded first, so that the file holds exactly what SciPy solved.
    a = np.array([[float(f"{v:.6g}") for v in row] for row in a])
    b = np.array([float(f"{v:.6g}") for v in b])
    _, residual = nnls(a, b, maxiter=1000)
    cases.append({"kind": kind, "rows": a.tolist(), "b": b.tolist(), "residual": residual})


for i in range(16):
    rows, columns = int(rng.integers(2, 12)), int(rng.integers(1, 7))
    add("random", rng.normal(size=(rows, columns)), rng.normal(size=rows))
for i in range(10):
    rows, columns = int(rng.integers(6, 14)), int(rng.integers(2, 7))
    a, x = rng.uniform(size=(rows, columns)), rng.uniform(size=columns) * (rng.uniform(size=columns) > 0.4)
    add("exact", a, a @ x)
for i in range(10):
    a = rng.uniform(size=(8, 4))
    a[:, 3] = a[:, i % 3] * rng.uniform(0.1, 10)
    add("collinear", a, rng.normal(size=8) + 1)
for i in range(8):
    a = rng.normal(size=(10, 2)) @ rng.normal(size=(2, 5))
    add("rank 2 of 5", a, rng.normal(size=10))
for i in range(8):
    columns = 5
    a = rng.normal(size=(3, columns))
    add("wide", a, rng.normal(size=3))
for i in range(8):
    # The synchronous speed model, p and w from 1 to 20, times scaled over six decades.
    p, w = rng.integers(1, 21, size=12).astype(float), rng.integers(1, 21, size=12).astype(float)
    theta = rng.uniform(size=5) * [0.01, 1, 1, 0.05, 0.05] * 10.0 ** rng.integers(-3, 4)
    a = np.stack([256 / w, np.ones(12), w / p, w, p], axis=1)
    t = (a @ theta) * (1 + 0.03 * rng.normal(size=12))
    add("speed", a / t[:, None], np.ones(12))
for i in range(4):
    # Workers and servers always equal: columns 1 and 2 and columns 3 and 4 agree.
    w = rng.integers(1, 21, size=8).astype(float)
    a = np.stack([256 / w, np.ones(8), np.ones(8), w, w], axis=1)
    add("p = w", a, 2 / w + 0.3 + 0.01 * w + 0.01 * rng.normal(size=8))
for i in range(4):
    a = rng.normal(size=(6, 3))
    a[:, i % 3] = 0
    add("zero column", a, rng.normal(size=6))
add("all negative", -np.abs(rng.normal(size=(5, 3))), np.abs(rng.normal(size=5)))
add("zero target", rng.normal(size=(5, 3)), np.zeros(5))

json.dump(cases, sys.stdout, indent=None, separators=(",", ":"))
print()
