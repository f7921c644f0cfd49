"""The Grafana dashboards: every panel of `panels.py`, and what only makes sense over many machines."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    gauge,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from trainvitals.conditions import Conditions, Level
from trainvitals.exporters.names import Spelling
from trainvitals.views.deployment import queries
from trainvitals.views.deployment.queries import RATE, Query, once, selector
from trainvitals.views.panels import BY_ID, GROUPS, PANELS, Panel, levels_of

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TRAINING, FLEET, NODE = "training", "fleet", "node"
_COLOURS = {"warning": "#EAB839", "critical": "#E24D42"}
CONDITIONS = Conditions()
"""A dashboard is for everybody's runs, so its colours are those without anybody's own thresholds."""
_DASH = model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]})


def build_all(spelling: Spelling) -> dict[str, str]:
    """File name -> JSON."""
    return {
        "gpu-training-dashboard.json": _render(build_training(spelling)),
        "gpu-fleet-dashboard.json": _render(build_fleet(spelling)),
        "gpu-node-dashboard.json": _render(build_node(spelling)),
    }


def _render(built: dashboard.Dashboard) -> str:
    board = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    _number(board["panels"])
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def _number(panels: list[dict[str, Any]]) -> None:
    """Ids that stay when panels come and go, so that a link to a panel keeps leading to it: from its row and title."""
    row, known = "", dict[int, str]()
    for panel in panels:
        is_row = panel["type"] == "row"
        row = panel["title"] if is_row else row
        name = row if is_row else f"{row}/{panel['title']}"
        panel["id"] = zlib.crc32(name.encode()) & 0x7FFFFFFF
        if panel["id"] in known:
            raise ValueError(f"panels {known[panel['id']]!r} and {name!r} have the same id: rename one")
        known[panel["id"]] = name


def _uid(name: str, spelling: Spelling) -> str:
    return f"{_tag(spelling)}-{name}"


def _tag(spelling: Spelling) -> str:
    """What the dashboards of a spelling share: both can be in one Grafana, and each links to its own."""
    return "trainvitals" if spelling == "mb" else "trainvitals-base"


# -- one training


def build_training(spelling: Spelling) -> dashboard.Dashboard:
    """A run and the GPUs it runs on."""
    found = _begin("GPU training", TRAINING, spelling, "Training and hardware on one timeline")
    for name, of in (
        ("project", "trainvitals_run_info"),
        ("run", 'trainvitals_run_info{project=~"$project"}'),
        ("host", 'trainvitals_run_info{project=~"$project",run=~"$run"}'),
        ("gpu", 'gpu_info{host=~"$host"}'),
    ):
        found.with_variable(_variable(name, of))
    chosen = selector("training")
    found.with_row(dashboard.Row("At a glance"))
    for title, expression, unit in (
        ("Loss", f"min(training_loss{chosen})", "short"),
        ("Learning rate", f"max(learning_rate{chosen})", "short"),
        ("Steps", f"max(training_steps_total{chosen})", "short"),
        ("Steps per second", f"max(rate(training_steps_total{chosen}{RATE}))", "short"),
        ("Throughput", f"sum(training_throughput_samples_per_second{chosen})", "cps"),
        ("Alerts", f"sum(trainvitals_alert_active{chosen}) or vector(0)", "short"),
    ):
        found.with_panel(_stat(title, expression, unit).span(4).height(4))
    found.with_panel(_gauges(BY_ID["gpu_temperature"], spelling, 0, 110).span(12).height(6))
    found.with_panel(_gauges(BY_ID["gpu_memory"], spelling, 0, 100).span(12).height(6))
    for group, title in GROUPS:
        if group == "rl":  # Prometheus has these under the names that were logged
            continue
        found.with_row(dashboard.Row(title))
        if group == "performance":
            found.with_panel(_step_heatmap(chosen))
            found.with_panel(_step_quantiles(chosen))
        _add_panels(found, (panel for panel in PANELS.own if panel.group == group), spelling)
    return found.annotation(_alerts(chosen))


def _step_heatmap(chosen: str) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .title("Step duration")
        .description("All steps of all ranks; a second band is a straggler or an uneven batch")
        .datasource(SOURCE)
        .with_target(
            _target(Query(queries.durations(f"{chosen}{RATE}"), "{{le}}"), "A")
            .format(PromQueryFormat.HEATMAP)
            .exemplar(True)
        )
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .color(heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64))
        .span(12)
        .height(8)
    )


def _step_quantiles(chosen: str) -> timeseries.Panel:
    asked = [
        Query(queries.duration_quantile(share, f"{chosen}{RATE}"), f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99)
    ]
    return _lines("Step duration quantiles", asked, "s").span(12).height(8)


# -- many machines


RUNNING = 'trainvitals_run_state{project=~"$project",host=~"$host",state=~"running|stalled|hung"}'


def _count_once(series: str) -> str:
    """Alerts as people count them: a GPU that two runs use has one problem, and Prometheus' own rules see it too."""
    agents = f'{series}{{project=~"$project",host=~"$host",gpu%s""}}'
    rules = 'ALERTS{host=~"$host",alertstate="firing",rule!="",gpu!=""}'
    return (
        f"group by (rule, host, gpu) ({agents % '!='}) or group by (rule, host, gpu) ({rules})"
        f" or group by (rule, host, run, role, rank) ({agents % '='})"
    )


def build_fleet(spelling: Spelling) -> dashboard.Dashboard:
    """Every GPU at once: who works, who is hot, who waits, and what it costs."""
    found = _begin("GPU fleet", FLEET, spelling, "Every GPU of every machine")
    found.with_variable(_variable("project", "trainvitals_run_info"))
    found.with_variable(_variable("host", "gpu_info"))
    found.with_variable(dashboard.TextBoxVariable("gpu_hour").label("Price of a GPU hour").default_value("2.0"))
    found.with_variable(dashboard.TextBoxVariable("kwh").label("Price of a kWh").default_value("0.30"))
    ratio = queries.series("gpu", "utilization_percent", spelling)
    whole = "1" if spelling == "base" else "100"
    here = '{host=~"$host"}'
    not_ok = 'gpu_state{host=~"$host",state!="ok"}'
    power, temperature = (queries.series("gpu", name, spelling) for name in ("power_draw_watts", "temperature_celsius"))
    memory = queries.series("gpu", "memory_percent", spelling)
    percent = "percentunit" if spelling == "base" else "percent"
    joules = f"sum({once(f'increase(gpu_energy_joules_total{here}[$__range])')})"
    idle_share = f"sum by (host) (1 - {once(ratio + here)} / {whole})"
    to_node = _to_node(spelling)
    found.with_row(dashboard.Row("Now"))
    for title, expression, unit in (
        ("GPUs", f"count({once(ratio + here)})", "short"),
        ("Free GPUs", f"count({once('gpu_processes' + here)} == 0) or vector(0)", "short"),
        ("Mean utilization", f"avg({once(ratio + here)})", percent),
        ("GPUs not ok", f"count({once(not_ok)} == 1) or vector(0)", "short"),
        ("Power", f"sum({once(power + here)})", "watt"),
        ("Runs", f"count(max by (run) ({RUNNING}) == 1) or vector(0)", "short"),
        ("Alerts", f"count({_count_once('trainvitals_alert_active')}) or vector(0)", "short"),
    ):
        found.with_panel(_stat(title, expression, unit).span(4).height(4))
    found.with_row(dashboard.Row("Every GPU"))
    found.with_panel(
        _tiles("Utilization of every GPU", f"{ratio}{here}", percent, model.FieldColorModeId.CONTINUOUS_BLUES, to_node)
        .span(24)
        .height(10)
    )
    found.with_panel(
        _tiles(
            "Temperature of every GPU",
            f"{temperature}{here}",
            "celsius",
            model.FieldColorModeId.CONTINUOUS_YL_RD,
            to_node,
        )
        .span(24)
        .height(10)
    )
    found.with_row(dashboard.Row("Waste"))
    found.with_panel(_lines("Idle GPUs", [Query(idle_share, "{{host}}")], "short"))
    found.with_panel(_lines("Waste per hour", [Query(f"{idle_share} * $gpu_hour", "{{host}}")], "short"))
    idle = f"avg_over_time({ratio}{here}[1h]) < {0.05 if spelling == 'base' else 5} and {memory}{here} > 0"
    found.with_panel(_bars("Allocated but idle for an hour", idle, percent, to_node))
    found.with_row(dashboard.Row("Outliers"))
    found.with_panel(_bars("Hottest", f"topk(10, {temperature}{here})", "celsius", to_node))
    slowest = 'topk(10, rank:training_step_duration_seconds:mean5m{project=~"$project",host=~"$host"})'
    found.with_panel(_bars("Slowest ranks", slowest, "s", to_node, "{{run}} {{role}} rank {{rank}} ({{host}})"))
    found.with_panel(_states("State", f"{not_ok} == 1", "{{host}} GPU {{gpu}}: {{state}}"))
    found.with_row(dashboard.Row("Energy and cost"))
    found.with_panel(_stat("Energy in this range", f"{joules} / 3.6e6", "kwatth").span(6).height(5))
    found.with_panel(_stat("Energy cost", f"{joules} / 3.6e6 * $kwh", "short").span(6).height(5))
    hours = f"sum({once(f'count_over_time({ratio}{here}[$__range:1m])')}) / 60"
    found.with_panel(_stat("GPU hours", hours, "short").span(6).height(5))
    found.with_panel(_stat("GPU hour cost", f"{hours} * $gpu_hour", "short").span(6).height(5))
    found.with_panel(_lines("Power", [Query(f"sum by (host) ({once(power + here)})", "{{host}}")], "watt").span(24))
    found.with_row(dashboard.Row("Runs"))
    found.with_panel(_runs(spelling))
    return found.annotation(_alerts('{project=~"$project",host=~"$host"}'))


# -- one machine


def build_node(spelling: Spelling) -> dashboard.Dashboard:
    """A host, its GPUs and the processes of the ranks on it."""
    found = _begin("GPU node", NODE, spelling, "One machine: host, GPUs, processes and sources")
    for name, of in (
        ("host", "trainvitals_agent_start_time_seconds"),
        ("gpu", 'gpu_info{host=~"$host"}'),
        ("project", 'trainvitals_run_info{host=~"$host"}'),
        ("run", 'trainvitals_run_info{host=~"$host",project=~"$project"}'),
    ):
        found.with_variable(_variable(name, of))
    for group, title in GROUPS:
        if group not in ("rl", "training", "performance"):
            found.with_row(dashboard.Row(title))
            _add_panels(found, (panel for panel in PANELS.own if panel.group == group), spelling)
    here = '{host=~"$host"}'
    found.with_row(dashboard.Row("Sources"))
    found.with_panel(_states("Sources", f"trainvitals_source_up{here}", "{{unit}}"))
    age = [Query(f"trainvitals_source_age_seconds{here}", "{{unit}}")]
    found.with_panel(_lines("Age of the latest reading", age, "s"))
    took = [Query(f"trainvitals_source_duration_seconds{here}", "{{unit}}")]
    found.with_panel(_lines("Read duration", took, "s"))
    return found.annotation(_alerts(here))


# -- parts


def _begin(title: str, name: str, spelling: Spelling, description: str) -> dashboard.Dashboard:
    tag = _tag(spelling)
    links = dashboard.DashboardLink("trainvitals").type(model.DashboardLinkType.DASHBOARDS).tags([tag])
    return (
        dashboard.Dashboard(title if spelling == "mb" else f"{title} (base units)")
        .uid(_uid(name, spelling))
        .description(f"{description}. Generated by trainvitals; change the panels there, not here.")
        .tags([tag, "gpu"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(links.keep_time(True).include_vars(True).as_dropdown(False))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


def _variable(name: str, of: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize() if name != "gpu" else "GPU")
        .datasource(SOURCE)
        .query(f"label_values({of}, {name})")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC if name == "gpu" else model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text="All", value="$__all", selected=True))
    )


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter).datasource(SOURCE)


def _add_panels(found: dashboard.Dashboard, panels: Iterable[Panel], spelling: Spelling) -> None:
    for panel in panels:
        found.with_panel(_panel(panel, spelling))


def _panel(panel: Panel, spelling: Spelling) -> Any:
    asked = queries.queries_of(panel, spelling)
    if panel.chart == "states":
        return _states(panel.title, asked[0].expression, asked[0].legend)
    built = _lines(panel.title, asked, queries.grafana_unit(panel, spelling))
    factor = queries.factor_of(panel, spelling)
    if panel.low is not None:
        built.min(panel.low * factor)
    if panel.high is not None and not panel.is_rate:
        built.max(panel.high * factor)
    if panel.chart == "stacked":
        built.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL)).fill_opacity(40)
    if panel.log_first:
        built.scale_distribution(common.ScaleDistributionConfig().type(common_model.ScaleDistribution.LOG).log(10))
    levels = levels_of(panel, CONDITIONS)
    if levels and not panel.is_rate:
        built.thresholds(_steps(levels, factor))
        built.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_model.GraphTresholdsStyleMode.DASHED))
    return built


def _lines(title: str, asked: Iterable[Query], unit: str) -> timeseries.Panel:
    built = timeseries.Panel().title(title).datasource(SOURCE).unit(unit).span(8).height(8)
    built.legend(
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    built.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
    built.line_width(1).fill_opacity(5).show_points(common_model.VisibilityMode.NEVER)
    for letter, query in zip("ABCDEFGH", asked, strict=False):
        built.with_target(_target(query, letter))
        if query.is_limit:
            built.override_by_query(letter, [_DASH, model.DynamicConfigValue(id_val="custom.fillOpacity", value=0)])
    return built


def _steps(found: tuple[Level, ...], factor: float = 1.0) -> dashboard.ThresholdsConfig:
    if found[0].below:
        worst = list(reversed(found))
        colours = [_COLOURS[item.severity] for item in worst] + ["#73BF69"]
        values = [None, *(item.value * factor for item in worst)]
        steps = [model.Threshold(value=value, color=colour) for value, colour in zip(values, colours, strict=True)]
    else:
        steps = [model.Threshold(value=None, color="#73BF69")]
        steps += [model.Threshold(value=item.value * factor, color=_COLOURS[item.severity]) for item in found]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _stat(title: str, expression: str, unit: str) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .datasource(SOURCE)
        .unit(unit)
        .with_target(_target(Query(expression, title), "A"))
        .reduce_options(_last())
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .color_mode(common_model.BigValueColorMode.NONE)
    )


def _gauges(panel: Panel, spelling: Spelling, low: float, high: float) -> gauge.Panel:
    factor = queries.factor_of(panel, spelling)
    query = queries.queries_of(panel, spelling)[0]
    return (
        gauge.Panel()
        .title(panel.title)
        .datasource(SOURCE)
        .unit(queries.grafana_unit(panel, spelling))
        .min(low * factor)
        .max(high * factor)
        .thresholds(_steps(CONDITIONS.levels_of(*panel.key), factor))
        .with_target(_target(query, "A").instant())
        .reduce_options(_last())
        .show_threshold_markers(True)
    )


def _tiles(
    title: str, expression: str, unit: str, scheme: model.FieldColorModeId, link: dashboard.DashboardLink
) -> statushistory.Panel:
    """Time across, one row per GPU, the value as a colour."""
    return (
        statushistory.Panel()
        .title(title)
        .datasource(SOURCE)
        .unit(unit)
        .with_target(_target(Query(expression, "{{host}} GPU {{gpu}}"), "A"))
        .color_scheme(dashboard.FieldColor().mode(scheme))
        .show_value(common_model.VisibilityMode.NEVER)
        .max_data_points(120)
        .data_links([link])
    )


def _bars(
    title: str, expression: str, unit: str, link: dashboard.DashboardLink, legend: str = "{{host}} GPU {{gpu}}"
) -> bargauge.Panel:
    return (
        bargauge.Panel()
        .title(title)
        .datasource(SOURCE)
        .unit(unit)
        .with_target(_target(Query(expression, legend), "A").instant())
        .reduce_options(_last())
        .orientation(common_model.VizOrientation.HORIZONTAL)
        .display_mode(common_model.BarGaugeDisplayMode.GRADIENT)
        .no_value("none")
        .data_links([link])
        .span(8)
        .height(8)
    )


def _states(title: str, expression: str, legend: str) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .title(title)
        .datasource(SOURCE)
        .with_target(_target(Query(expression, legend), "A"))
        .show_value(common_model.VisibilityMode.NEVER)
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.CONTINUOUS_RD_YL_GR))
        .no_value("none")
        .span(8)
        .height(8)
    )


def _runs(spelling: Spelling) -> table.Panel:
    expression = 'trainvitals_run_state{project=~"$project",host=~"$host"} == 1'
    return (
        table.Panel()
        .title("Runs")
        .datasource(SOURCE)
        .with_target(_target(Query(expression, ""), "A").instant().format(PromQueryFormat.TABLE))
        .data_links(
            [
                dashboard.DashboardLink("Open this run").url(
                    f"/d/{_uid(TRAINING, spelling)}?var-run=${{__data.fields.run}}&${{__url_time_range}}"
                )
            ]
        )
        .span(24)
        .height(8)
    )


def _to_node(spelling: Spelling) -> dashboard.DashboardLink:
    return dashboard.DashboardLink("Open this machine").url(
        f"/d/{_uid(NODE, spelling)}?var-host=${{__field.labels.host}}&${{__url_time_range}}"
    )


def _alerts(chosen: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(SOURCE)
        .enable(True)
        .icon_color("#E24D42")
        .expr(f"trainvitals_alert_active{chosen} == 1")
    )
