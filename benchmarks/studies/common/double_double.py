"""Arrays of twice the digits of float64: unevaluated sums of two, on every processor the same.

The sum and the product of two numbers are exact as such a pair (T. Dekker 1971; D. Knuth).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Cuts the 53 digits of a float64 in two halves.
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True)
class DoubleDouble:
    """An array as the sum of `high`, its nearest float64, and of `low`, what is missing there.

    Examples
    --------
    >>> third = DoubleDouble.of(np.array([1.0])) / DoubleDouble.of(np.array([3.0]))
    >>> rest = DoubleDouble.of(np.array([1.0])) - third * DoubleDouble.of(np.array([3.0]))
    >>> bool(abs(rest.high[0]) < 1e-31)
    True
    """

    high: Any
    low: Any

    @classmethod
    def of(cls, array: np.ndarray) -> DoubleDouble:
        """Return an array of float64 or less, exactly."""
        return cls(array.astype(np.float64), np.zeros(array.shape))

    def copy(self) -> DoubleDouble:
        """Return a copy."""
        return DoubleDouble(self.high.copy(), self.low.copy())

    def __len__(self) -> int:
        return len(self.high)

    def __getitem__(self, where: Any) -> DoubleDouble:
        return DoubleDouble(self.high[where], self.low[where])

    def __setitem__(self, where: Any, value: DoubleDouble) -> None:
        self.high[where], self.low[where] = value.high, value.low

    def __sub__(self, other: DoubleDouble) -> DoubleDouble:
        high, missing = _exact_sum(self.high, -other.high)
        low, least = _exact_sum(self.low, -other.low)
        high, missing = _normalized(high, missing + low)
        return DoubleDouble(*_normalized(high, missing + least))

    def __mul__(self, other: DoubleDouble) -> DoubleDouble:
        high, missing = _exact_product(self.high, other.high)
        missing = missing + (self.high * other.low + self.low * other.high)
        return DoubleDouble(*_normalized(high, missing))

    def __truediv__(self, other: DoubleDouble) -> DoubleDouble:
        quotient = self.high / other.high
        rest = self - other * DoubleDouble(quotient, 0.0 * quotient)
        return DoubleDouble(*_normalized(quotient, rest.high / other.high))


def _normalized(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b as a pair, where a is the larger one."""
    total = a + b
    return total, b - (total - a)


def _exact_sum(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Any) -> tuple[Any, Any]:
    large = _SPLITTER * a
    high = large - (large - a)
    return high, a - high
