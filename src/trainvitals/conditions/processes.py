"""Whether the training lives and moves, and whether it is measured."""

from __future__ import annotations

from trainvitals.conditions.promql import RANK, has_grown
from trainvitals.conditions.row import Condition, LiveRule, PrometheusRule, Threshold

ROWS: tuple[Condition, ...] = (
    Condition(
        "training_stalled",
        "rank",
        "stalled ranks",
        "warning",
        "Nothing to do if so: after the rank continues, pauses this long are not reported again. Otherwise see the "
        "stacks of all threads in the run folder under stacks/. The setting stall_after is how long is too long.",
        live=LiveRule(
            'run[*].state == "stalled" or run[*].state == "hung"',
            "{Participant} has logged no step for {seconds_since_step:.0f} s{place}. "
            "It may be an evaluation or a checkpoint",
            wait="3s",  # by then it is usually known where it is
            clear='run[*].state == "running"',
            let={"cause": "run[*].cause"},
        ),
        prometheus=PrometheusRule(
            # A scrape that was missed is not the end of it.
            'last_over_time(trainvitals_run_state{state=~"stalled|hung"}[1m]) == 1',
            "{{ $labels.run }} is {{ $labels.state }}",
        ),
    ),
    Condition(
        "training_hung",
        "rank",
        "hung ranks",
        "critical",
        "The stacks of all threads are in the run folder under stacks/. If most ranks wait in a collective, look for "
        "the one that is somewhere else. If your evaluations take this long, raise stall_after.",
        live=LiveRule(
            'run[*].state == "hung"',
            "{Participant} has logged no step for {seconds_since_step:.0f} s{place}: longer than any earlier pause",
            clear='run[*].state == "running"',
            let={"cause": "run[*].cause"},
        ),
        prometheus=PrometheusRule(
            'last_over_time(trainvitals_run_state{state="hung"}[1m]) == 1',
            "{{ $labels.run }} is hung",
            name="RunHung",
        ),
    ),
    Condition(
        "process_died",
        "rank",
        "dead training processes",
        "critical",
        "Fix the cause and resume from the last checkpoint: init(resume=True). The last lines and stacks are in the "
        "run folder.",
        live=LiveRule(
            '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
            'and run[*].world_size == 1 and run[*].cause_kind != "interrupted"',
            "Training failed: {cause}",
        ),
        prometheus=PrometheusRule(
            # As long as it is served by default; a Pushgateway keeps it for ever.
            "time() - last_over_time"
            '(trainvitals_run_end_timestamp_seconds{status!="finished",cause!="interrupted"}[1m]) < 600',
            "{{ $labels.run }} {{ $labels.status }}: {{ $labels.detail }}",
            name="RunFailed",
        ),
        about_end=True,
    ),
    Condition(
        "rank_lost",
        "rank",
        "dead ranks",
        "critical",
        "The other ranks will wait for it in the next collective. Stop them and resume from the last checkpoint.",
        live=LiveRule(
            '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
            'and run[*].world_size > 1 and run[*].cause_kind != "interrupted"',
            "{Participant} died: {cause}",
        ),
        prometheus=PrometheusRule('trainvitals_alert_active{rule="rank_lost"} == 1', RANK + " died"),
        about_end=True,
        speaks_of_node=True,
    ),
    Condition(
        "checkpoint_overdue",
        "run",
        "overdue checkpoints",
        "warning",
        "Nothing to do if you save only the best: there was no new best. Otherwise check free disk space and the "
        "process that saves. If the run dies, all progress since then is lost.",
        thresholds=(
            Threshold("checkpoint_factor", 3, "times", "a checkpoint is overdue after this many usual intervals"),
        ),
        live=LiveRule(
            # Only where they come regularly can one be missed: the best of a run is saved when there is a new best.
            "stale(event[checkpoint].total) > $checkpoint_factor * median(event[checkpoint].interval, 10) + 60 "
            "and count(event[checkpoint].interval, 10) == 10 "
            "and max(event[checkpoint].interval, 10) < 1.5 * median(event[checkpoint].interval, 10)",
            "Last checkpoint {waited:.0f} s ago, usually every {usual:.0f} s",
            clear="stale(event[checkpoint].total) < 60",
            let={"usual": "median(event[checkpoint].interval, 10)", "waited": "stale(event[checkpoint].total)"},
        ),
    ),
    Condition(
        "trainvitals_down",
        "source",
        "unreachable exporters",
        "critical",
        "Start the agent on that machine and check it: trainvitals doctor.",
        prometheus=PrometheusRule('up{job="trainvitals"} == 0', "{{ $labels.instance }} is not responding", wait="1m"),
    ),
    Condition(
        "trainvitals_silent",
        "source",
        "silent pushers",
        "critical",
        "It ended without notice: check that the machine, its network and the agent are up "
        "(trainvitals doctor), that its clock is right, and that the server still accepts its token.",
        thresholds=(Threshold("push_silence", 120, "s", "a push is missed when it is this late"),),
        prometheus=PrometheusRule(
            "time() - last_over_time(trainvitals_next_push_timestamp_seconds[1h]) > $push_silence",
            "{{ $labels.instance }} has stopped pushing",
        ),
    ),
    Condition(
        "trainvitals_push_rejected",
        "source",
        "rejected and dropped pushes",
        "warning",
        "These samples are lost. Rejected: the agent's log has the server's words; mostly they are out of order or too "
        "old (clocks), or a limit is reached. Dropped: the server was away for longer than the spool of 64 MB lasts.",
        prometheus=PrometheusRule(
            " or ".join(
                has_grown(f'trainvitals_{kind}_requests_total{{outcome=~"rejected|dropped"}}', "10m")
                for kind in ("remote_write", "otlp")
            ),
            "Requests of {{ $labels.instance }} were {{ $labels.outcome }}",
        ),
    ),
    Condition(
        "trainvitals_source_down",
        "source",
        "failing sources",
        "warning",
        "Run trainvitals doctor on that machine to see why.",
        prometheus=PrometheusRule(
            "trainvitals_source_up == 0", "No data from {{ $labels.unit }} on {{ $labels.host }}", wait="2m"
        ),
    ),
)
