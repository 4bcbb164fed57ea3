"""Writer of animations as GIF, by Pillow."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_la.pictures.png import matplotlib_agg


def pillow(name: str = "Image") -> Any:
    """Import a module of Pillow.

    Raises
    ------
    ValueError
        If Pillow is not installed; the message tells how to install it.
    """
    try:
        return importlib.import_module(f"PIL.{name}")
    except ImportError as error:
        raise ValueError(
            "GIF needs the Pillow library (pip install 'hetero-la[viz]' brings it)"
        ) from error


def font(size: float) -> Any:
    """Return the font of all pictures, which Matplotlib finds or brings.

    Raises
    ------
    ValueError
        If Matplotlib or Pillow is not installed.
    """
    matplotlib_agg()
    file = importlib.import_module("matplotlib.font_manager").findfont("DejaVu Sans")
    return pillow("ImageFont").truetype(file, size)


def gif(frames: Sequence[np.ndarray], milliseconds: Sequence[int]) -> bytes:
    """Return an endless animation.

    Parameters
    ----------
    frames : sequence of numpy.ndarray, each of shape (height, width, 3), uint8
        The pictures; the colours of all must be found in a few of them, evenly spaced.
    milliseconds : sequence of int
        How long each is shown.

    Examples
    --------
    >>> white = np.full((4, 4, 3), 255, np.uint8)
    >>> gif([white, 0 * white], [100, 500])[:6]
    b'GIF89a'
    """
    image = pillow()
    some = frames[:: max(len(frames) // 8, 1)]
    palette = image.fromarray(np.concatenate(some)).quantize(256)
    drawn = [
        image.fromarray(frame).quantize(palette=palette, dither=image.Dither.NONE)
        for frame in frames
    ]
    written = io.BytesIO()
    drawn[0].save(
        written, "GIF", save_all=True, append_images=drawn[1:], duration=list(milliseconds), loop=0
    )
    return written.getvalue()
