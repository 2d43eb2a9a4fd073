"""What a panel and a board are, and how they become Grafana's JSON through its own SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

RUNBOOKS = "docs/runbooks"
"""The folder in the sources; the chart puts its value `runbookBase` in its place."""
COLUMNS, HEIGHT = 24, 8
SERIES = '{namespace=~"$namespace",service=~"$service"}'
"""Selector of everything that belongs to one service."""


@dataclass(frozen=True)
class Panel:
    """One panel: at most three queries, each with its legend."""

    title: str
    description: str
    unit: str
    """Grafana's name: s, reqps, percentunit, short, bytes …"""
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend)."""
    low: float | None = 0
    high: float | None = None
    kind: str = "timeseries"
    """timeseries, or stat for a number that one reads at a glance."""
    width: int = 8
    stacked: bool = False
    runbook: str = ""
    """Name of the alert whose runbook explains what to do."""


@dataclass(frozen=True)
class Board:
    """One dashboard. Its uid is part of links: it stays the same for ever."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    """(title, panels) from top to bottom."""
    per_service: bool = True
    """Whether it has the variables namespace and service."""
    service_metric: str = "octavo_requests_received_total"
    """Where the values of the two variables come from."""
    links: tuple[str, ...] = field(default=())


def _source() -> common.DataSourceRef:
    return common.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _link(title: str, url: str) -> builder.DashboardLink:
    return builder.DashboardLink(title).url(url).target_blank(True).type(dashboard.DashboardLinkType.LINK)


def _fill(made: timeseries.Panel | stat.Panel, panel: Panel) -> timeseries.Panel | stat.Panel:
    made.title(panel.title).description(panel.description).unit(panel.unit).datasource(_source())
    made.span(panel.width).height(HEIGHT if panel.kind == "timeseries" else HEIGHT // 2)
    if panel.low is not None:
        made.min(panel.low)
    if panel.high is not None:
        made.max(panel.high)
    if panel.runbook:
        made.links([_link(f"Runbook: {panel.runbook}", f"{RUNBOOKS}/{panel.runbook}/")])
    for number, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        made.with_target(query.datasource(_source()))
    return made


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel:
    if panel.kind == "stat":
        options = common_builder.ReduceDataOptions().calcs(["lastNotNull"])
        return _fill(stat.Panel().reduce_options(options), panel)
    made = timeseries.Panel().line_width(1).fill_opacity(25 if panel.stacked else 8)
    if panel.stacked:
        made.stacking(common_builder.StackingConfig().mode(common.StackingMode.NORMAL))
    return _fill(made, panel)


def _variable(name: str, label: str, query: str) -> builder.QueryVariable:
    return (
        builder.QueryVariable(name)
        .label(label)
        .datasource(_source())
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _with_variables(made: builder.Dashboard, board: Board) -> builder.Dashboard:
    made.with_variable(builder.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    if board.per_service:
        metric = board.service_metric
        made.with_variable(_variable("namespace", "Namespace", f"label_values({metric}, namespace)"))
        within = f'label_values({metric}{{namespace=~"$namespace"}}, service)'
        made.with_variable(_variable("service", "Service", within))
    return made


def render(board: Board) -> str:
    """The board as Grafana imports it, with sorted keys: equal boards are equal texts."""
    made = (
        builder.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["octavo"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .readonly()
        .link(_link("Runbooks", f"{RUNBOOKS}/"))
    )
    _with_variables(made, board)
    for title, panels in board.rows:
        made.with_row(builder.Row(title))
        for panel in panels:
            made.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def every_panel(boards: tuple[Board, ...], wanted: Callable[[Panel], bool] = lambda _: True) -> list[Panel]:
    """Panels of all boards in order."""
    return [panel for board in boards for _, panels in board.rows for panel in panels if wanted(panel)]
