"""Hypothesis strategies of layers that several tests draw."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


@st.composite
def convolutions(draw: st.DrawFn, most_axes: int) -> tuple[int, dict[str, Any]]:
    """1 to `most_axes` axes, and the arguments of the layer: every padding mode, stride, dilation, groups."""
    axes, groups = draw(st.integers(1, most_axes)), draw(st.integers(1, 2))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding = draw(st.sampled_from(["same", "valid"]) | st.integers(0, 2))
    return axes, {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": tuple(draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))),
        "stride": 1 if padding == "same" else draw(st.integers(1, 3)),
        "dilation": draw(st.integers(1, 2)),
        "padding": padding,
        "padding_mode": mode,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
