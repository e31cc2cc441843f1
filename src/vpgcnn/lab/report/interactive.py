"""Charts as interactive HTML pages, drawn by plotly."""

from __future__ import annotations

from html import escape
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.lab.report.chart import NAMED_BARS, BarPanel, Chart, Panel, PointPanel

__all__ = ["to_html"]


def to_html(chart: Chart) -> str:
    """Draw a chart as one HTML page, which contains plotly's script (5 MB) and loads nothing else.

    Raises:
        UserError: If plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise UserError("interactive figures need plotly: pip install 'vpgcnn[report]'") from error

    rows, columns = chart.grid
    figure = make_subplots(
        rows, columns, subplot_titles=[escape(panel.title) for panel in chart.panels],
        vertical_spacing=0.35 / rows, horizontal_spacing=0.3 / columns,
    )  # fmt: skip
    named: set[str | None] = set()
    for number, panel in enumerate(chart.panels):
        row, column = divmod(number, columns)
        where = {"row": row + 1, "col": column + 1}
        for trace in _traces(go, panel, chart.colors):
            trace.showlegend = trace.name is not None and trace.name not in named
            named.add(trace.name)
            figure.add_trace(trace, **where)
        low, high = panel.y.ends
        figure.update_yaxes(
            title_text=panel.y.name, tickvals=[v for v, _ in panel.y.ticks], ticktext=[t for _, t in panel.y.ticks],
            range=[low - 0.02 * (high - low), high + 0.02 * (high - low)], **where,
        )  # fmt: skip
        if isinstance(panel, BarPanel):
            figure.update_xaxes(
                title_text=panel.below, tickvals=list(range(len(panel.classes))), ticktext=list(panel.classes),
                showticklabels=len(panel.classes) <= NAMED_BARS, **where,
            )  # fmt: skip
        else:
            texts = [text for _, text in panel.x.ticks]
            figure.update_xaxes(
                title_text=panel.x.name, tickvals=[v for v, _ in panel.x.ticks], ticktext=texts, **where
            )
    figure.update_layout(
        template="plotly_white", height=(340 if chart.wide else 420) * rows, title=escape(chart.title) or None,
        font={"family": "system-ui, sans-serif"}, legend={"orientation": "h", "y": -0.16, "yref": "paper"},
        barmode="group", margin={"t": 80 if chart.title else 50},
    )  # fmt: skip
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
    head = '<head><meta name="viewport" content="width=device-width, initial-scale=1">'
    page = page.replace("<head>", f"{head}<title>{escape(chart.title)}</title>", 1)
    return page.replace("<html>", '<html lang="en">', 1)


def _traces(go: Any, panel: Panel | BarPanel | PointPanel, colors: dict[str, str]) -> list[Any]:
    if isinstance(panel, BarPanel):
        return _bars(go, panel, colors)
    return _points(go, panel, colors) if isinstance(panel, PointPanel) else _curves(go, panel, colors)


def _points(go: Any, panel: PointPanel, colors: dict[str, str]) -> list[Any]:
    """The traces of a panel, where `go` is `plotly.graph_objects`."""
    return [
        go.Scatter(
            x=[x for x, _ in points.places], y=[y for _, y in points.places], text=list(points.labels),
            name=points.name, legendgroup=points.name, mode=f"{'lines+' if points.joined else ''}markers+text",
            textposition="top right", line={"color": colors[points.name], "width": 1},
            marker={"color": colors[points.name], "size": 9}, hovertemplate="%{text}: %{x:.2%}, %{y:.2%}",
        )
        for points in panel.series
    ]  # fmt: skip


def _curves(go: Any, panel: Panel, colors: dict[str, str]) -> list[Any]:
    """The traces of a panel, where `go` is `plotly.graph_objects`."""
    traces = [
        go.Scatter(
            x=panel.places, y=line, line={"color": colors[panel.names[0][0]], "width": 1}, opacity=0.35,
            mode="lines", hoverinfo="skip",
        )
        for line in panel.faint
    ]  # fmt: skip
    for curve in panel.curves:
        color = colors[curve.name]
        shared = {"legendgroup": curve.name, "mode": "lines"}
        if curve.low is not None and curve.high is not None:
            around = [*panel.places, *reversed(panel.places)]
            traces.append(
                go.Scatter(
                    x=around, y=[*curve.high, *reversed(curve.low)], fill="toself", fillcolor=color, opacity=0.15,
                    line={"width": 0}, hoverinfo="skip", **shared,
                )
            )  # fmt: skip
        line = {"color": color, "width": 2.5, "dash": "dash" if curve.dashed else "solid"}
        traces.append(go.Scatter(x=panel.places, y=curve.values, name=curve.name, line=line, **shared))
    return traces


def _bars(go: Any, panel: BarPanel, colors: dict[str, str]) -> list[Any]:
    """The traces of a panel, where `go` is `plotly.graph_objects`."""
    return [
        go.Bar(
            x=list(range(len(panel.classes))),
            y=[high - low for low, high in series.ends], base=[low for low, _ in series.ends],
            name=series.name, legendgroup=series.name, marker={"color": colors[series.name]},
            customdata=[(name, *ends) for name, ends in zip(panel.classes, series.ends, strict=True)],
            hovertemplate="%{customdata[0]}: %{customdata[1]:.3g} to %{customdata[2]:.3g}",
        )
        for series in panel.series
    ]  # fmt: skip
