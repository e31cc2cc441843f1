"""Figures and HTML pages, made from plain data.

`chart` describes a figure. `static` draws it as SVG or PNG with matplotlib, `interactive` as HTML with plotly.
`page` holds the parts that HTML reports share; `digits`, `colors`, `diagnosis` and `levels` build single reports.
"""
