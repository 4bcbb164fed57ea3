"""
Potential flow around a spheroid
================================

A dense system from physics, by boundary elements.

A prolate spheroid stands in a uniform stream of an ideal fluid.  The disturbance phi of the
potential is harmonic outside, vanishes far away, and cancels the stream's flow through the
surface: d(phi)/dn = -U.n.  Green's third identity makes of this an equation on the surface alone,
where n points into the fluid and G = 1 / (4 pi r)::

    1/2 phi(x) - integral of dG/dn phi  =  integral of G U.n

It is solved by direct collocation: flat triangles, phi constant on each, and the equation holds
at each centroid.  The matrix is dense and not symmetric.  The answer is known [3]: phi = k U.x on
the surface, with the coefficient k of added mass, one for a stream along the axis and one for a
stream across it.

The script solves on a coarse and on a finer mesh, and fails unless the error falls
roughly with the square of the size of the triangles. ::

    python examples/01_boundary_elements.py

[1] A. van Oosterom, J. Strackee, The solid angle of a plane triangle, IEEE Trans. Biomed. Eng.
30, 1983. [2] J. L. Hess, A. M. O. Smith, Calculation of potential flow about arbitrary bodies,
Progress in Aerospace Sciences 8, 1967.  [3] H. Lamb, Hydrodynamics, 6th ed., 1932, sections 105
and 114.
"""

# %%
# The surface
# -----------
# An icosahedron, refined and stretched to the spheroid.

import numpy as np
from matplotlib import pyplot
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from numpy.typing import NDArray

import hetero_la
from hetero_la.testing.residuals import RATIO_LIMIT, solve_ratio

Array = NDArray[np.float64]

HALF_AXES = np.array([2.0, 1.0, 1.0])
FREQUENCY = 8  # parts of an edge of the icosahedron: 20 times its square unknowns


def spheroid(frequency: int) -> Array:
    """Build the triangles (20 frequency^2, corner, xyz) of a refined, stretched icosahedron."""
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
    """Return unit normals that point out of the body."""
    a, b, c = np.moveaxis(triangles, 1, 0)
    n = np.cross(b - a, c - a)
    return n / np.linalg.norm(n, axis=1, keepdims=True)


# %%
# The matrix
# ----------
# Both integrals over a triangle are exact: that of dG/dn is its solid angle [1], that of G the
# potential of a charged triangle [2].


def integrals(points: Array, triangles: Array) -> tuple[Array, Array]:
    """Integrate -dG/dn and G over each triangle, as seen from each point."""
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
    """Return the matrix, and right-hand sides for a stream along x and one along y."""
    n = len(triangles)
    centroids, stream = triangles.mean(axis=1), normals(triangles)[:, :2]
    matrix, rhs = np.empty((n, n), order="F"), np.empty((n, 2), order="F")
    for start in range(0, n, 32):
        rows = slice(start, start + 32)
        matrix[rows], single = integrals(centroids[rows], triangles)
        rhs[rows] = single @ stream
    np.fill_diagonal(matrix, 0.5)  # a flat triangle does not see itself
    return matrix, rhs


# %%
# The known answer
# ----------------


def added_mass() -> Array:
    """Return Lamb's coefficients, along the axis and across it."""
    e = np.sqrt(1 - (HALF_AXES[1] / HALF_AXES[0]) ** 2)
    along = 2 * (1 - e**2) / e**3 * (np.arctanh(e) - e)
    across = 1 / e**2 - (1 - e**2) / e**3 * np.arctanh(e)
    return np.array([along / (2 - along), across / (2 - across)])


def largest_error(triangles: Array, phi: Array) -> float:
    """Return the largest error of the potential, relative to the largest potential."""
    exact = added_mass() * triangles.mean(axis=1)[:, :2]
    return float(np.abs(phi - exact).max() / np.abs(exact).max())


# %%
# Solve
# -----
# On the coarse mesh, factor and solve in one run.

triangles = spheroid(FREQUENCY // 2)
before = largest_error(triangles, hetero_la.solve(*assemble(triangles)))
print(f"{len(triangles)} unknowns: largest error of the potential {before:.2e}")

# %%
# On the fine mesh, keep the factors: they solve for as many right-hand sides as there are.

triangles = spheroid(FREQUENCY)
matrix, rhs = assemble(triangles)
# Half of all directions lie behind a flat panel of a closed surface.
assert np.allclose(matrix.sum(axis=1), 1, rtol=1e-12)
factors = hetero_la.lu_factor(matrix)
phi = factors.solve(rhs)
print(factors.plan)

after = largest_error(triangles, phi)
order = np.log(before / after) / np.log(2)
ratio = solve_ratio(matrix, phi, rhs)
print(f"{len(triangles)} unknowns: largest error of the potential {after:.2e}, as h^{order:.2f}")
print(f"error ratio {ratio:.3g}, limit {RATIO_LIMIT:g}")

# %%
# The potential on the surface, for a stream across the axis.

figure = pyplot.figure(figsize=(7, 4))
axes = figure.add_subplot(projection="3d", box_aspect=HALF_AXES)
shades = pyplot.cm.coolwarm(0.5 + phi[:, 1] / np.ptp(phi[:, 1]))
axes.add_collection3d(Poly3DCollection(triangles, facecolors=shades, edgecolors="0.4", lw=0.2))
axes.set(xlim=(-2, 2), ylim=(-1, 1), zlim=(-1, 1), title="disturbance of the potential")
axes.set_axis_off()

assert order > 1.5
assert after < 0.05
assert ratio < RATIO_LIMIT
print("the potential agrees with the known answer")
