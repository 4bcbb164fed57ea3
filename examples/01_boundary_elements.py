"""Potential flow around a spheroid by boundary elements: a dense system from physics.

A prolate spheroid stands in a uniform stream of an ideal fluid.  The disturbance phi of
the potential is harmonic outside, vanishes far away, and cancels the stream's flow
through the surface: d(phi)/dn = -U.n.  Green's third identity makes of this an equation
on the surface alone (n points into the fluid, G = 1 / (4 pi r)),

    1/2 phi(x) - integral of dG/dn phi  =  integral of G U.n

which is solved by direct collocation: flat triangles, phi constant on each, the equation
demanded at each centroid.  Both integrals are exact: dG/dn gives the solid angle of the
triangle [1], G the potential of a charged triangle [2].  The matrix is dense and not
symmetric.  The answer is known [3]: phi = k U.x on the surface, with the coefficient k of
added mass, one for the stream along the axis and one for the stream across it.

The program solves on a coarse and on a finer mesh, and fails unless the error falls with
the size of the triangles as it should, to the second order.

    python examples/01_boundary_elements.py
    python examples/01_boundary_elements.py --panels 2000 --save spheroid.npy
    hetero-la lu spheroid.npy

[1] A. van Oosterom, J. Strackee, The solid angle of a plane triangle, IEEE Trans. Biomed.
    Eng. 30, 1983.  [2] J. L. Hess, A. M. O. Smith, Calculation of potential flow about
    arbitrary bodies, Progress in Aerospace Sciences 8, 1967.  [3] H. Lamb, Hydrodynamics,
    6th ed., 1932, sections 105 and 114.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hetero_la
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio

Array = NDArray[np.float64]

HALF_AXES = np.array([2.0, 1.0, 1.0])


def spheroid(frequency: int) -> Array:
    """Triangles (20 frequency^2, corner, xyz): an icosahedron, refined and blown up."""
    golden = (1 + 5**0.5) / 2
    corners = np.array([[0, s, t * golden] for s in (-1, 1) for t in (-1, 1)], float)
    corners = np.vstack([np.roll(corners, shift, axis=1) for shift in range(3)])
    near = np.linalg.norm(corners[:, None] - corners, axis=2) < 2.1  # edges have length 2
    faces = [
        (i, j, k)
        for i in range(12) for j in range(i) for k in range(j)
        if near[i, j] and near[j, k] and near[i, k]
    ]  # fmt: skip
    steps = np.arange(frequency)
    upright = [(i, j) for i in steps for j in steps if i + j < frequency]
    inverted = [(i, j) for i, j in upright if i + j < frequency - 1]
    cells = [((i, j), (i + 1, j), (i, j + 1)) for i, j in upright]
    cells += [((i + 1, j + 1), (i, j + 1), (i + 1, j)) for i, j in inverted]
    uv = np.array(cells) / frequency  # (cells, corner, 2)
    weights = np.concatenate([1 - uv.sum(axis=2, keepdims=True), uv], axis=2)
    triangles = np.einsum("tcw,fwx->ftcx", weights, corners[faces]).reshape(-1, 3, 3)
    triangles *= HALF_AXES / np.linalg.norm(triangles, axis=2, keepdims=True)
    inward = np.linalg.det(triangles) < 0
    triangles[inward] = triangles[inward][:, ::-1]
    return triangles


def normals(triangles: Array) -> Array:
    """Unit normals, out of the body."""
    a, b, c = np.moveaxis(triangles, 1, 0)
    n = np.cross(b - a, c - a)
    return n / np.linalg.norm(n, axis=1, keepdims=True)


def integrals(points: Array, triangles: Array) -> tuple[Array, Array]:
    """Integrals over each triangle, seen from each point: of -dG/dn and of G."""
    normal = normals(triangles)
    corner = triangles - points[:, None, None]  # (points, triangles, corner, xyz)
    r = np.sqrt(np.einsum("ptcx,ptcx->ptc", corner, corner))
    height = np.einsum("ptx,tx->pt", corner[:, :, 0], normal)  # of the plane over the point
    potential = np.zeros_like(height)
    angle = r.prod(axis=2)
    for here, there, other in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        edge = triangles[:, there] - triangles[:, here]
        length = np.linalg.norm(edge, axis=1)
        outward = np.cross(edge / length[:, None], normal)
        distance = np.einsum("ptx,tx->pt", corner[:, :, here], outward)
        around = r[:, :, here] + r[:, :, there]
        potential += distance * np.log((around + length) / (around - length))
        dot = np.einsum("ptx,ptx->pt", corner[:, :, here], corner[:, :, there])
        angle += dot * r[:, :, other]
    area = np.linalg.norm(np.cross(*np.diff(triangles, axis=1).transpose(1, 0, 2)), axis=1)
    solid = 2 * np.arctan2(height * area, angle)
    return solid / (4 * np.pi), (potential - height * solid) / (4 * np.pi)


def assemble(triangles: Array) -> tuple[Array, Array]:
    """The matrix, and one right-hand side for a stream along x and one for along y."""
    n = len(triangles)
    centroids, stream = triangles.mean(axis=1), normals(triangles)[:, :2]
    matrix, rhs = np.empty((n, n), order="F"), np.empty((n, 2), order="F")
    for start in range(0, n, 32):
        rows = slice(start, start + 32)
        matrix[rows], single = integrals(centroids[rows], triangles)
        rhs[rows] = single @ stream
    np.fill_diagonal(matrix, 0.5)  # a flat triangle does not see itself
    return matrix, rhs


def added_mass() -> Array:
    """Lamb's coefficients, along the axis and across it."""
    e = np.sqrt(1 - (HALF_AXES[1] / HALF_AXES[0]) ** 2)
    along = 2 * (1 - e**2) / e**3 * (np.arctanh(e) - e)
    across = 1 / e**2 - (1 - e**2) / e**3 * np.arctanh(e)
    return np.array([along / (2 - along), across / (2 - across)])


def largest_error(triangles: Array, phi: Array) -> float:
    """Of the potential, relative to the largest potential."""
    exact = added_mass() * triangles.mean(axis=1)[:, :2]
    return float(np.abs(phi - exact).max() / np.abs(exact).max())


def main() -> int:
    parser = argparse.ArgumentParser(description="Potential flow around a spheroid.")
    parser.add_argument("--panels", type=int, default=4000, help="about so many unknowns")
    parser.add_argument("--save", type=Path, help="write the matrix to a .npy file")
    args = parser.parse_args()
    fine = max(round((args.panels / 20) ** 0.5), 4)
    coarse = fine // 2

    triangles = spheroid(coarse)
    before = largest_error(triangles, hetero_la.solve(*assemble(triangles)))
    print(f"{len(triangles)} unknowns: largest error of the potential {before:.2e}")

    triangles = spheroid(fine)
    began = time.perf_counter()
    matrix, rhs = assemble(triangles)
    print(f"{len(triangles)} unknowns: assembled in {time.perf_counter() - began:.1f} s")
    if args.save:
        np.save(args.save, matrix)
        print(f"matrix saved as {args.save}")

    phi = np.empty_like(rhs)
    phi[:, 0] = hetero_la.solve(matrix, rhs[:, 0])  # factors and solves, in one run
    factors = hetero_la.lu_factor(matrix)  # factors that are kept ...
    phi[:, 1] = factors.solve(rhs[:, 1])  # ... for as many right-hand sides as there come
    print(factors.plan.explain())

    after = largest_error(triangles, phi)
    order = np.log(before / after) / np.log(fine / coarse)
    ratio = solve_ratio(matrix, phi, rhs)
    print(f"largest error of the potential {after:.2e}: it falls as h^{order:.2f}")
    print(f"residual ratio {ratio:.3g}, limit {RATIO_LIMIT:g}")
    passed = order > 1.5 and after < 0.05 and ratio < RATIO_LIMIT
    print("the potential agrees with the known answer" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
