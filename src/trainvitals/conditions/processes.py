"""Whether the training lives and moves, and whether it is measured."""

from __future__ import annotations

from trainvitals.conditions.row import Condition, LiveRule, PrometheusRule, Threshold

ROWS: tuple[Condition, ...] = (
    Condition(
        "training_stalled",
        "rank",
        "ranks that log no step",
        "warning",
        "Nothing, if it is: once it has gone on, pauses as long as this are not told again. Otherwise the stacks of "
        "all threads are in the run folder under stacks/. How long is too long: stall_after.",
        live=LiveRule(
            'run[*].state == "stalled" or run[*].state == "hung"',
            "Rank {rank} has logged no step for {seconds_since_step:.0f} s{place}. "
            "It may be an evaluation or a checkpoint",
            wait="3s",  # by then it is usually known where it is
            clear='run[*].state == "running"',
            let={"cause": "run[*].cause"},
        ),
        prometheus=PrometheusRule(
            'trainvitals_run_state{state=~"stalled|hung"} == 1', "{{ $labels.run }} is {{ $labels.state }}"
        ),
    ),
    Condition(
        "training_hung",
        "rank",
        "ranks that log no step for longer than ever",
        "critical",
        "The stacks of all threads are in the run folder under stacks/. A collective waits for the rank that is "
        "elsewhere: look for the odd one out. If your evaluations take this long, raise stall_after.",
        live=LiveRule(
            'run[*].state == "hung"',
            "Rank {rank} has logged no step for {seconds_since_step:.0f} s{place}: "
            "longer than any pause it came back from",
            clear='run[*].state == "running"',
            let={"cause": "run[*].cause"},
        ),
        prometheus=PrometheusRule('trainvitals_run_state{state="hung"} == 1', "{{ $labels.run }} is hung"),
    ),
    Condition(
        "process_died",
        "rank",
        "a training that has died",
        "critical",
        "Fix the cause and resume from the last checkpoint: init(resume=True). The last lines and stacks are in the "
        "run folder.",
        live=LiveRule(
            '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
            'and run[*].world_size == 1 and run[*].cause_kind != "interrupted"',
            "The training has ended: {cause}",
        ),
    ),
    Condition(
        "rank_lost",
        "rank",
        "a rank that has died",
        "critical",
        "The other ranks wait for it in the next collective. Stop them and resume from the last checkpoint.",
        live=LiveRule(
            '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
            'and run[*].world_size > 1 and run[*].cause_kind != "interrupted"',
            "Rank {rank} is gone: {cause}",
        ),
    ),
    Condition(
        "checkpoint_overdue",
        "run",
        "checkpoints that no longer come",
        "warning",
        "Nothing, if only the best are saved: there was no new best. Otherwise check free disk space and the process "
        "that saves; what was trained since is lost if the run dies.",
        thresholds=(
            Threshold("checkpoint_factor", 3, "times", "a checkpoint is overdue after so many times the usual"),
        ),
        live=LiveRule(
            # Only where they come regularly can one be missed: the best of a run is saved when there is a new best.
            "stale(event[checkpoint].total) > $checkpoint_factor * median(event[checkpoint].interval, 10) + 60 "
            "and count(event[checkpoint].interval, 10) == 10 "
            "and max(event[checkpoint].interval, 10) < 1.5 * median(event[checkpoint].interval, 10)",
            "The last checkpoint was {waited:.0f} s ago; they used to come every {usual:.0f} s",
            clear="stale(event[checkpoint].total) < 60",
            let={"usual": "median(event[checkpoint].interval, 10)", "waited": "stale(event[checkpoint].total)"},
        ),
    ),
    Condition(
        "trainvitals_down",
        "source",
        "an exporter that does not answer",
        "critical",
        "Start the agent on that machine, and see what it says: trainvitals doctor.",
        prometheus=PrometheusRule('up{job="trainvitals"} == 0', "{{ $labels.instance }} does not answer", wait="1m"),
    ),
    Condition(
        "trainvitals_source_down",
        "source",
        "a source that is not measured",
        "warning",
        "See why on that machine: trainvitals doctor.",
        prometheus=PrometheusRule(
            "trainvitals_source_up == 0", "{{ $labels.unit }} of {{ $labels.host }} is not measured", wait="2m"
        ),
    ),
)
