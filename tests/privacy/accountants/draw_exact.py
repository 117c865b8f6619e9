"""Draws docs/exact.svg: the path of the exact accountant in ζ with its strip, and that in s, for one training.

python tests/privacy/accountants/draw_exact.py [OUT.svg]

The first row of bu2020 at ε = 0.8645. Run it from the top of the checkout.
"""

from __future__ import annotations

import cmath
import math
import sys
from pathlib import Path

from dpbench.privacy.accountants.exact.contour import Part, Setup, path
from dpbench.privacy.accountants.exact.saddle import Saddle
from dpbench.privacy.accountants.exact.sampled import Sampled

WIDTH, HEIGHT, EDGE = 400, 300, 45
Points = list[complex]


def panel(left: int, title: str, curves: list[tuple[Points, str]], crosses: Points) -> str:
    """One plot with linear axes: `curves` are points with their class, `crosses` are marked."""
    everything = [point for points, _ in curves for point in points] + crosses
    low = complex(min(z.real for z in everything), min(0.0, *(z.imag for z in everything)))
    high = complex(max(z.real for z in everything), max(z.imag for z in everything))

    def place(z: complex) -> tuple[float, float]:
        x = left + EDGE + (z.real - low.real) / (high.real - low.real) * (WIDTH - 2 * EDGE)
        return round(x, 1), round(HEIGHT - EDGE - (z.imag - low.imag) / (high.imag - low.imag) * (HEIGHT - 2 * EDGE), 1)

    drawn = [f'<text x="{left + EDGE}" y="25">{title}</text>']
    (x0, y0), (x1, y1) = place(low), place(high)
    drawn.append(f'<path d="M{x0} {y1}V{y0}H{x1}" class="axis"/>')
    for z, anchor in ((low, "start"), (high, "end")):
        drawn.append(f'<text x="{place(z)[0]}" y="{y0 + 18}" text-anchor="{anchor}">{z.real:.3g}</text>')
        drawn.append(f'<text x="{x0 - 4}" y="{place(z)[1] + 4}" text-anchor="end">{z.imag:.3g}</text>')
    for points, kind in curves:
        if kind == "node":
            drawn += ['<circle cx="{}" cy="{}" r="2"/>'.format(*place(z)) for z in points]
        else:
            line = " ".join("{},{}".format(*place(z)) for z in points)
            drawn.append(f'<polyline points="{line}" class="{kind}"/>')
    drawn += ['<text x="{}" y="{}" text-anchor="middle">×</text>'.format(*place(z)) for z in crosses]
    return "\n".join(drawn)


def figure() -> str:
    """The SVG."""
    release, epsilon = Sampled(256 / 60000, 1.3, "remove"), 0.8645
    setup = Setup((Part(release, 3516),), 0.0, "remove")
    strip = Saddle(setup, each=False).strip(epsilon)
    laid = path(setup, strip.crossing, strip.reach, epsilon)
    nodes = [complex(z) for z in laid.zeta]
    # ζ = c₁ + μ sin(α + iv) passes through its first nodes: sin α and cos α from the growth of its two parts
    steps = [laid.step * k for k in range(len(nodes))]
    slope = nodes[-1].imag / math.sinh(steps[-1])  # μ cos α
    rise = (nodes[-1].real - nodes[0].real) / (math.cosh(steps[-1]) - 1)  # μ sin α
    mu, alpha, start = math.hypot(slope, rise), math.atan2(rise, slope), nodes[0].real - rise
    edges = [[start + mu * cmath.sin(alpha + turned + 1j * v) for v in steps] for turned in (-alpha, alpha)]
    places = release.path(strip.crossing, 1.0)[0]
    kept = [complex(s) for s in places[:: max(len(places) // 60, 1)]]
    zero = math.log((1 - release.rate) / release.rate) + 1j * math.pi
    style = "text{font:12px sans-serif}.axis,.edge,.path{fill:none;stroke:#888}.edge{stroke-dasharray:4}"
    size = f'viewBox="0 0 {2 * WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg"'
    curves = [(edges[0], "edge"), (edges[1], "edge"), (nodes, "node")]
    left = panel(0, "ζ: nodes (dots), the strip's edges (dashed)", curves, [])
    right = panel(WIDTH, "s: some of the nodes, and a zero of R (×)", [(kept, "node")], [zero])
    return f"<svg {size}>\n<style>{style}</style>\n{left}\n{right}\n</svg>\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/exact.svg").write_text(figure(), encoding="utf-8")
