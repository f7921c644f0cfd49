"""How the model learns, and how fast."""

from __future__ import annotations

from trainvitals.conditions.promql import RANK
from trainvitals.conditions.row import Colour, Condition, LiveRule, PrometheusRule, Threshold

_OWN_WORK = 'sum without (phase) (avg_over_time(training_phase_duration_seconds{phase=~"data|transfer|forward"}[1m]))'
_PEERS = "by (run, project, role)"

# The loss of a policy gradient has no floor and no trend: what it is at one step means little.
_CROSSES_ZERO = "(quantile(loss, 0.1, 200) < 0 and quantile(loss, 0.9, 200) > 0)"
_NOT_CLIPPED = "count(gradient_clip_norm, all) == 0"
# The larger the returns, the larger the errors of whoever estimates them.
_EARNS_NO_MORE = "(count(reward, all) < 25 or mean(reward, 50 values) <= mean(reward, all) + 0.5 * std(reward, all))"
_RISEN = "risen(loss, $loss_divergence_percent / 100)"
_RISEN_SINCE = "step - since_risen(loss, $loss_divergence_percent / 100)"
_ROLL_BACK = "Roll back to before it rose, reduce the learning rate by 25 to 50 %, and skip those batches."
_LOAD_FASTER = (
    "Use more loader workers, pin_memory and prefetch_factor; cache or preprocess the data; store it closer to the "
    "machine."
)


# What a rank does before it has to wait: in data parallel training every rank waits for the slowest, so whole steps are
# equally long. Where not all of that is known, as without a loader, the forward pass must do.
_BEFORE_IT_WAITS = "median(rank[*].data_time + rank[*].transfer_time + rank[*].forward_time, 50)"
_FORWARD = "median(rank[*].forward_time, 50)"
_ELSE = f"or not (count({_BEFORE_IT_WAITS}) > 0) and"

ROWS: tuple[Condition, ...] = (
    Condition(
        "loss_not_finite",
        "rank",
        "NaN or infinite loss",
        "critical",
        "Resume from a checkpoint before that step with half the learning rate, or clip gradients to 1.0; with fp16 "
        "try bf16; look at the batches just before it.",
        thresholds=(
            Threshold(
                "loss_not_finite_percent",
                5,
                "%",
                "a larger share of non-finite values is critical even if the loss recovers",
            ),
        ),
        live=LiveRule(
            "not isfinite(loss)", "Loss became {loss} at step {step}", clear="isfinite(loss)", clear_wait="20 steps"
        ),
        prometheus=PrometheusRule(
            "<training.loss> != <training.loss> or abs(<training.loss>) == Inf",
            f"The loss of {RANK} is " + "{{ $value }}",
        ),
        findings=("loss.nonfinite",),
    ),
    Condition(
        "loss_spike",
        "rank",
        "loss spikes",
        "warning",
        "If it recovers, note the batches: if the spike recurs there, it is the data. If spikes are frequent, clip "
        "gradients, lower Adam's beta2 to 0.95, or lower the learning rate.",
        thresholds=(
            Threshold("loss_spike_deviations", 8, "deviations", "a loss this far above the usual is a spike"),
            Threshold("loss_spike_count", 3, "", "this many spikes of several values within 500 steps are a warning"),
        ),
        live=LiveRule(
            # Distances, not factors: a loss may be negative (a log-likelihood, a policy's).
            "deviation(loss, 200) > $loss_spike_deviations "
            "and loss - median(loss, 200) > 0.5 * abs(median(loss, 200)) "
            # Near zero a loss jumps by factors and means nothing: a spike is large against where the run was
            # farthest off.
            "and loss - median(loss, 200) > "
            "0.15 * at_least(abs(max(median(loss, 20), all)), abs(min(median(loss, 20), all))) "
            f"and not {_CROSSES_ZERO}",
            "Loss spike: {loss:.4g} at step {step}",
            wait="3 steps",
            after="200 steps",
            clear="loss - median(loss, 200) <= 0.25 * abs(median(loss, 200)) "
            "or deviation(loss, 200) < $loss_spike_deviations / 2",
            clear_wait="10 steps",
        ),
        findings=("loss.spike",),
    ),
    Condition(
        "loss_diverging",
        "rank",
        "diverging loss",
        "warning",
        _ROLL_BACK,
        thresholds=(
            Threshold("loss_divergence_percent", 10, "%", "a loss that stays this far above its best diverges"),
            Threshold("loss_divergence_critical_percent", 50, "%", "the same, critical"),
        ),
        live=LiveRule(
            f"{_RISEN} > 0 and {_EARNS_NO_MORE}",
            "Loss has been rising since about step {since:.0f} without recovering: {loss:.4g}",
            clear=f"{_RISEN} == 0",
            let={"since": _RISEN_SINCE},
        ),
        findings=("loss.divergence",),
    ),
    Condition(
        "loss_diverged",
        "rank",
        "loss far above its best",
        "critical",
        _ROLL_BACK,
        live=LiveRule(
            f"{_RISEN} > $loss_divergence_critical_percent / 100 and {_EARNS_NO_MORE}",
            "Loss is {percent:.0f} % above its best, since about step {since:.0f}: {loss:.4g}",
            clear=f"{_RISEN} < $loss_divergence_critical_percent / 200",
            let={"since": _RISEN_SINCE, "percent": f"100 * {_RISEN}"},
        ),
        findings=("loss.divergence",),
    ),
    Condition(
        "loss_above_baseline",
        "rank",
        "loss above its baseline",
        "warning",
        "Compare the two runs: trainvitals compare. Start with data order, learning rate and batch size.",
        thresholds=(Threshold("loss_up_percent", 10, "%", "a loss this far above its baseline is too high"),),
        live=LiveRule(
            # Also by more than the loss of one batch usually lies off: a few noisy batches more move the median too.
            "median(loss, 100) > baseline(loss) + at_least(abs(baseline(loss)) * $loss_up_percent / 100, "
            "0.5 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
            "Loss {value:.4g} is well above its baseline of {base:.4g}",
            wait="100 steps",
            after="300 steps",
            clear="median(loss, 100) < baseline(loss)",
            let={"base": "baseline(loss)"},
        ),
    ),
    Condition(
        "loss_plateau",
        "rank",
        "loss plateau",
        "info",
        "Converged or stuck: check the learning rate schedule, the data order and frozen layers. If it has converged, "
        "shorter runs cost less.",
        thresholds=(
            Threshold("loss_plateau_steps", 2000, "steps", "this long without progress is a plateau"),
            Threshold("loss_plateau_gain", 0.002, "share", "a smaller drop of the loss is not progress"),
        ),
        live=LiveRule(
            "since_improved(median(loss, 200), $loss_plateau_gain) > at_least($loss_plateau_steps, 0.6 * step)",
            "Loss has not fallen for {since:.0f} steps",
            after="1000 steps",
            let={"since": "since_improved(median(loss, 200), $loss_plateau_gain)"},
        ),
        named=LiveRule(
            "since_improved(median(loss, 200), $loss_plateau_gain) > $loss_plateau_steps",
            "Loss has not fallen for {value:.0f} steps (limit {threshold:g})",
        ),
        findings=("loss.plateau",),
    ),
    Condition(
        "loss_overfit",
        "run",
        "overfitting",
        "warning",
        "Stop, or use the checkpoint of the best step; add regularization or data.",
        thresholds=(
            Threshold(
                "loss_overfit_percent", 2, "%", "a validation loss this far above its best while training loss improves"
            ),
        ),
        findings=("loss.overfit",),
    ),
    Condition(
        "never_learns",
        "run",
        "a loss that never falls",
        "warning",
        "Check that the labels belong to the inputs, that the optimizer holds the model's parameters, that the loss "
        "depends on them, and that the model can overfit a few batches; then raise or lower the learning rate.",
        thresholds=(
            Threshold("never_learns_steps", 500, "steps", "before so many steps a loss may be where it began"),
            Threshold("never_learns_gain", 0.02, "share", "a smaller drop since the beginning is none"),
        ),
        findings=("loss.never_learns",),
    ),
    Condition(
        "oscillation",
        "run",
        "an accuracy that goes up and down",
        "info",
        "Halve the learning rate or double the batch; if it is the held-out data, evaluate on more of it.",
        thresholds=(
            Threshold("oscillation_swing", 0.03, "share", "a change up and down again by this much is a swing"),
            Threshold("oscillation_percent", 20, "%", "share of the evaluations with a swing"),
        ),
        findings=("loss.oscillation",),
    ),
    Condition(
        "update_too_large",
        "run",
        "learning rate too high for the weights",
        "warning",
        "Divide the learning rate by 3 to 10 or warm it up; about 0.001 of the weights in a step is usual.",
        thresholds=(
            Threshold("update_ratio_high", 0.01, "", "a step that changes the weights by this share is large"),
            Threshold("update_ratio_critical", 0.1, "", "the same, critical"),
        ),
        findings=("lr.too_high",),
    ),
    Condition(
        "update_too_small",
        "run",
        "learning rate too low for the weights",
        "warning",
        "Raise the learning rate 3 to 10 times; about 0.001 of the weights in a step is usual. This can be "
        "normal for fine-tuning.",
        thresholds=(
            Threshold(
                "update_ratio_low", 1e-5, "", "a step that changes all weights by less is lost on them", below=True
            ),
            Threshold("update_too_small_gain", 0.2, "share", "a loss that fell by more is learning all the same"),
        ),
        findings=("lr.too_low",),
    ),
    Condition(
        "units_dead",
        "run",
        "units that are never active",
        "warning",
        "Lower the learning rate, use a leaky activation, or reinitialize the layer before it.",
        thresholds=(
            Threshold("dead_units_percent", 50, "%", "share of a layer's units that are never active"),
            Threshold("dead_units_high_percent", 80, "%", "the same, for a warning"),
        ),
        findings=("units.dead",),
    ),
    Condition(
        "loss_scale_collapsed",
        "run",
        "a loss scale that collapses",
        "warning",
        "The gradients overflow in fp16: use bf16, clip them, or lower the learning rate.",
        thresholds=(
            Threshold("loss_scale_halvings", 5, "times", "a loss scale halved this often within 200 steps collapses"),
        ),
        findings=("amp.scale_collapse",),
    ),
    Condition(
        "replicas_differ",
        "run",
        "ranks whose weights differ",
        "critical",
        "The ranks train different models: restart from a checkpoint before that step. Look for a rank that skipped an "
        "update, for parameters outside DistributedDataParallel, and for memory errors of its GPU.",
        thresholds=(
            Threshold(
                "replica_difference", 0.001, "share", "weights of two ranks that differ by more are not the same"
            ),
        ),
        findings=("replica.mismatch",),
    ),
    Condition(
        "loss_jumped_at_resume",
        "run",
        "a loss that is higher after a resume",
        "warning",
        "Save and restore the states of the optimizer, the learning-rate scheduler, the loss scaler and the random "
        "numbers, and continue at the same place of the data.",
        thresholds=(
            Threshold("resume_jump_percent", 10, "%", "a loss this much higher after a resume than before has jumped"),
        ),
        findings=("loss.resume",),
    ),
    Condition(
        "bad_batch",
        "run",
        "loss spikes that recur with the data",
        "info",
        "The same batches spike each time: look at their samples for wrong labels, empty or very long ones.",
        findings=("data.bad_batch",),
    ),
    Condition(
        "rank_zero_slow",
        "run",
        "rank 0 slower than the others",
        "info",
        "Rank 0 does more than the others: move logging, evaluation and checkpoints off its training thread.",
        thresholds=(Threshold("rank_zero_percent", 5, "%", "rank 0 takes this much longer than the others"),),
        findings=("straggler.rank_zero",),
    ),
    Condition(
        "gradient_exploded",
        "rank",
        "gradient norm too large",
        "warning",
        "Clip gradients (torch.nn.utils.clip_grad_norm_ with 1.0), lower the learning rate, or use a longer warmup.",
        thresholds=(
            Threshold("grad_norm_exploded", 10, "", "a gradient norm above this is too large"),
            Threshold("grad_norm_critical", 100, "", "the same, critical"),
        ),
        live=LiveRule(
            "gradient_norm > $grad_norm_exploded and gradient_norm > 3 * median(gradient_norm, 200) "
            f"and {_NOT_CLIPPED}",
            "Gradient norm is {gradient_norm:.4g} at step {step}",
            wait="3 steps",
            after="100 steps",
            clear="gradient_norm < 2 * median(gradient_norm, 200) or gradient_norm < $grad_norm_exploded",
            clear_wait="20 steps",
        ),
        named=LiveRule(
            "gradient_norm > $grad_norm_exploded",
            "Gradient norm is {gradient_norm:.4g} at step {step} (limit {threshold:g})",
            # The limit was asked for, so it holds for gradients that are clipped, too.
            advice="This is the norm before clipping. If gradients are not clipped, clip them "
            "(torch.nn.utils.clip_grad_norm_ with 1.0); if they are, see whether the loss rises as well. Lower the "
            "learning rate, or use a longer warmup.",
            wait="3 steps",
            clear="gradient_norm <= $grad_norm_exploded",
            clear_wait="20 steps",
        ),
        colours=(Colour("training", "gradient_norm", "grad_norm_exploded", "grad_norm_critical"),),
    ),
    Condition(
        "gradient_outlier",
        "rank",
        "exploding gradients",
        "info",
        "Watch the loss over the next steps. If it recurs, clip the gradient norm at 1.0, lower the learning rate, or "
        "check the initialization of the largest layer.",
        thresholds=(
            Threshold(
                "gradient_outlier_factor", 10, "times", "a gradient norm this many times the usual is an outlier"
            ),
            Threshold("gradient_outlier_deviations", 8, "deviations", "if it is also this far above the usual"),
            Threshold("gradient_not_finite_percent", 5, "%", "share of recent norms that are NaN or infinite"),
        ),
        live=LiveRule(
            "gradient_norm > $gradient_outlier_factor * median(gradient_norm, 200) "
            "and deviation(gradient_norm, 200) > $gradient_outlier_deviations "
            f"and gradient_norm > 3 * early(gradient_norm) and {_NOT_CLIPPED}",
            "Gradient norm {gradient_norm:.4g} is far above its usual range",
            wait="3 steps",
            after="200 steps",
            clear="gradient_norm < 3 * median(gradient_norm, 200)",
            clear_wait="20 steps",
        ),
        findings=("grad.explode", "grad.nonfinite"),
    ),
    Condition(
        "gradient_over_clip",
        "rank",
        "gradients far above the clipping",
        "warning",
        "Clipping bounds the updates, but the loss has risen as well: look at the batches just before it, lower the "
        "learning rate, or use a longer warmup.",
        thresholds=(
            Threshold(
                "gradient_over_clip_factor",
                30,
                "times",
                "a gradient norm this many times what it is clipped to, while the loss spikes too, is too large",
            ),
        ),
        live=LiveRule(
            # Norms of many times the limit are what clipping is for: only with the loss are they worth a message.
            "gradient_norm > $gradient_over_clip_factor * max(gradient_clip_norm, all) "
            "and gradient_norm > 3 * median(gradient_norm, 200) "
            f"and deviation(loss, 200) > $loss_spike_deviations and not {_CROSSES_ZERO}",
            "Gradient norm is {gradient_norm:.4g} before clipping, and the loss rose to {loss:.4g} at step {step}",
            wait="3 steps",
            after="100 steps",
            clear="gradient_norm < 2 * median(gradient_norm, 200)",
            clear_wait="20 steps",
        ),
    ),
    Condition(
        "gradient_vanished",
        "rank",
        "vanished gradients",
        "warning",
        "The model is not learning. Check for dead activations, a detached loss, or a loss scale of 0.",
        thresholds=(Threshold("grad_norm_vanished", 1e-7, "", "a gradient norm below this has vanished", below=True),),
        live=LiveRule(
            # Where the loss is exactly 0 nothing is left to learn, and the gradient is rightly 0.
            "gradient_norm < $grad_norm_vanished and (gradient_norm > 0 or loss != 0)",
            "Gradients vanished: norm {gradient_norm:.3g}",
            wait="20 steps",
            clear="gradient_norm > 10 * $grad_norm_vanished",
        ),
        prometheus=PrometheusRule(
            "max_over_time(<training.gradient_norm>[<held>]) < $grad_norm_vanished",
            f"Gradients of {RANK} vanished",
        ),
    ),
    Condition(
        "layer_nonfinite_weights",
        "layer",
        "layers with NaN or infinite weights",
        "critical",
        "The weights are lost: resume from a checkpoint before that step with half the learning rate, or clip "
        "gradients to 1.0; with fp16 try bf16.",
        noticed_by_watch=True,
    ),
    Condition(
        "layer_nonfinite_gradient",
        "layer",
        "layers with NaN or infinite gradients",
        "critical",
        "Clip gradients to 1.0 or lower the learning rate; with fp16 try bf16.",
        noticed_by_watch=True,
    ),
    Condition(
        "layer_exploding",
        "layer",
        "layers with exploding gradients",
        "warning",
        "Clip the gradient norm at 1.0; lower the learning rate; check the initialization of this layer.",
        thresholds=(
            Threshold(
                "layer_exploding_factor", 100, "times", "a gradient this many times the layer's usual is exploding"
            ),
        ),
        noticed_by_watch=True,
    ),
    Condition(
        "layer_vanishing",
        "layer",
        "layers that do not learn",
        "warning",
        "Unless they are frozen on purpose: add residual connections or normalization, change the activation or "
        "initialization; with fp16, use a larger loss scale or bf16.",
        thresholds=(
            # A step of any sane size then rounds to nothing in single precision.
            Threshold(
                "layer_vanishing_ratio",
                1e-7,
                "",
                "a gradient this small relative to the weights has vanished",
                below=True,
            ),
        ),
        findings=("grad.vanish",),
        noticed_by_watch=True,
    ),
    Condition(
        "layer_dead",
        "layer",
        "layers with zero gradients",
        "warning",
        "Unless it is frozen on purpose: look for dead units after it, and for a detached tensor.",
        noticed_by_watch=True,
    ),
    Condition(
        "learning_rate_low",
        "rank",
        "learning rate stuck near zero",
        "warning",
        "Nothing to do if the schedule has ended or these weights are frozen on purpose. Otherwise the schedule is "
        "shorter than the run, or was not restored on resume.",
        thresholds=(
            Threshold("learning_rate_too_low", 1e-8, "", "a learning rate below this is too low to learn", below=True),
        ),
        live=LiveRule(
            # A schedule that decays to zero is never constant before it ends: only a stuck rate is meant.
            "max(learning_rate, 500) < $learning_rate_too_low and max(learning_rate, 500) == min(learning_rate, 500)",
            "Learning rate has been {learning_rate:.3g} for 500 steps: too low to learn",
            after="500 steps",
            clear="learning_rate >= $learning_rate_too_low",
        ),
        colours=(Colour("training", "learning_rate", "learning_rate_too_low"),),
    ),
    Condition(
        "learning_rate_high",
        "rank",
        "learning rate too high",
        "warning",
        "Usual values are 1e-5 to 1e-1. If this is intended, raise alerts.thresholds.learning_rate_too_high.",
        thresholds=(Threshold("learning_rate_too_high", 1, "", "a learning rate above this is too high"),),
        live=LiveRule(
            "learning_rate > $learning_rate_too_high",
            "Learning rate is {learning_rate:.3g}",
            wait="10 steps",
            clear="learning_rate <= $learning_rate_too_high",
        ),
        prometheus=PrometheusRule(
            "min_over_time(<training.learning_rate>[<held>]) > $learning_rate_too_high",
            f"Learning rate of {RANK} is high",
        ),
    ),
    Condition(
        "learning_rate_jumped",
        "run",
        "jumps of the learning rate",
        "warning",
        "If the schedule is not meant to do this: restore the scheduler's state on resume, and look for a scheduler "
        "that is stepped twice or made again.",
        thresholds=(
            Threshold("learning_rate_jump_factor", 2, "times", "a learning rate this many times the last one jumped"),
        ),
        findings=("lr.jump",),
    ),
    Condition(
        "throughput_low",
        "rank",
        "throughput drops",
        "warning",
        "Look at what changed: GPU clocks and heat, data loading, another job on the machine (trainvitals top).",
        thresholds=(Threshold("throughput_drop_percent", 50, "%", "a throughput this far below its baseline is low"),),
        live=LiveRule(
            "median(throughput_samples_per_sec, 50) < baseline(throughput_samples_per_sec) "
            "* (1 - $throughput_drop_percent / 100)",
            "Throughput is {value:.4g} samples/s, down from {base:.4g} at the start",
            wait="25 steps",
            clear="median(throughput_samples_per_sec, 50) > baseline(throughput_samples_per_sec) "
            "* (1 - $throughput_drop_percent / 200)",
            let={"base": "baseline(throughput_samples_per_sec)"},
        ),
    ),
    Condition(
        "steps_slower",
        "run",
        "steps that got slower",
        "warning",
        "If neither sequence length nor batch size changed, check GPU clocks and temperatures, other processes on the "
        "machine, storage and network at that time.",
        thresholds=(
            Threshold(
                "step_slowdown_percent", 4, "%", "steps that take this much longer from some point on got slower"
            ),
        ),
        live=LiveRule(
            "shifted(batch_time, $step_slowdown_percent / 100) > 0",
            "Steps have been {percent:.0f} % slower since about step {since:.0f}",
            let={
                "percent": "100 * shifted(batch_time, $step_slowdown_percent / 100)",
                "since": "step - since_shifted(batch_time, $step_slowdown_percent / 100)",
            },
        ),
        findings=("step.fail_slow",),
    ),
    Condition(
        "slow_steps",
        "run",
        "slow steps, and whether they are periodic",
        "warning",
        "Find what happens at these steps (evaluation, checkpoint, next shard, garbage collection) and do it in the "
        "background or less often.",
        thresholds=(
            Threshold("slow_step_factor", 1.5, "times", "a step this many times the usual is slow"),
            Threshold("slow_steps_percent", 1, "%", "share of time lost to slow steps"),
            Threshold("slow_steps_high_percent", 10, "%", "the same, for a warning"),
        ),
        findings=("step.outlier", "step.periodic"),
    ),
    Condition(
        "step_time_uneven",
        "rank",
        "uneven step times",
        "info",
        "If it is every N steps, find what happens then (evaluation, logging, next data shard). Otherwise: "
        "trainvitals runs show latest.",
        thresholds=(Threshold("step_time_factor", 2, "times", "one step in seven takes this many times the usual"),),
        live=LiveRule(
            "quantile(batch_time, 0.85, 200) > $step_time_factor * median(batch_time, 200)",
            "More than one step in seven takes over {threshold:.3g} s (median {usual:.3g} s)",
            wait="100 steps",
            after="300 steps",
            clear="quantile(batch_time, 0.85, 200) < 1.25 * median(batch_time, 200)",
            let={"usual": "median(batch_time, 200)"},
        ),
    ),
    Condition(
        "straggler",
        "rank",
        "ranks slower than the others",
        "warning",
        "All ranks wait for it. Compare its GPU clock, temperature and PCIe link, its host and its data with the "
        "others', or run without it.",
        thresholds=(
            Threshold(
                "straggler_factor", 1.25, "times", "a rank that takes this many times as long as the others is slow"
            ),
            Threshold("straggler_steps_percent", 25, "%", "in at least this share of the steps"),
        ),
        live=LiveRule(
            f"{_BEFORE_IT_WAITS} > $straggler_factor * usual({_BEFORE_IT_WAITS}) "
            f"{_ELSE} {_FORWARD} > $straggler_factor * usual({_FORWARD})",
            "{Participant} is slower than the others: {value:.3g} s (limit {threshold:.3g} s)",
            wait="30s",
            clear=f"{_BEFORE_IT_WAITS} < 1.1 * usual({_BEFORE_IT_WAITS}) {_ELSE} {_FORWARD} < 1.1 * usual({_FORWARD})",
        ),
        prometheus=PrometheusRule(
            f"{_OWN_WORK} > on (run, project, role) group_left $straggler_factor * "
            f"(quantile {_PEERS} (0.5, {_OWN_WORK}) and count {_PEERS} ({_OWN_WORK}) > 2 "
            f"or min {_PEERS} ({_OWN_WORK}))",
            RANK + " is slower than the others",
        ),
        findings=("straggler.rank",),
        speaks_of_node=True,
    ),
    Condition(
        "straggler_host",
        "rank",
        "hosts slower than the others",
        "warning",
        "All ranks wait for those of this host. Compare its CPU governor, cooling, power, storage and network with the "
        "others'; drain it if nothing helps.",
        findings=("straggler.host",),
        speaks_of_node=True,
    ),
    Condition(
        "data_bound",
        "rank",
        "waiting for data",
        "warning",
        _LOAD_FASTER,
        thresholds=(
            Threshold("data_share_notable_percent", 10, "%", "share of a step spent waiting for data, for a finding"),
            Threshold("data_share_percent", 30, "%", "the same, for an alert"),
            Threshold("data_share_critical_percent", 50, "%", "the same, critical"),
        ),
        live=LiveRule(
            "mean(data_time, 100) > mean(batch_time, 100) * $data_share_percent / 100",
            "{share:.0f} % of each step is spent waiting for data",
            wait="100 steps",
            after="200 steps",
            clear="mean(data_time, 100) < mean(batch_time, 100) * $data_share_percent / 200",
            let={"share": "100 * mean(data_time, 100) / mean(batch_time, 100)"},
        ),
        findings=("data.bound",),
    ),
    Condition(
        "data_starved",
        "rank",
        "waiting for data most of the time",
        "critical",
        _LOAD_FASTER,
        live=LiveRule(
            "mean(data_time, 100) > mean(batch_time, 100) * $data_share_critical_percent / 100",
            "{share:.0f} % of each step is spent waiting for data",
            wait="100 steps",
            after="200 steps",
            clear="mean(data_time, 100) < mean(batch_time, 100) * $data_share_critical_percent / 125",
            let={"share": "100 * mean(data_time, 100) / mean(batch_time, 100)"},
        ),
        findings=("data.bound",),
    ),
    Condition(
        "transfer_bound",
        "rank",
        "waiting for the batch to get to the GPU",
        "warning",
        "Use pin_memory=True and batch.to(device, non_blocking=True), copy the next batch while the GPU computes, send "
        "bytes rather than floats (normalize on the GPU), and check the PCIe link of the GPU. Work on the batch "
        "between loading and the forward pass counts as well.",
        thresholds=(
            Threshold(
                "transfer_share_notable_percent", 15, "%", "share of a step spent on the transfer, for a finding"
            ),
            Threshold("transfer_share_percent", 30, "%", "the same, for a warning and an alert"),
        ),
        live=LiveRule(
            "mean(transfer_time, 100) > mean(batch_time, 100) * $transfer_share_percent / 100",
            "{share:.0f} % of each step is spent getting the batch to the GPU",
            wait="100 steps",
            after="200 steps",
            clear="mean(transfer_time, 100) < mean(batch_time, 100) * $transfer_share_percent / 200",
            let={"share": "100 * mean(transfer_time, 100) / mean(batch_time, 100)"},
        ),
        findings=("transfer.bound",),
    ),
    Condition(
        "communication_bound",
        "rank",
        "waiting for other ranks or the network",
        "warning",
        "Overlap it with the backward pass (larger buckets, gradient_as_bucket_view), synchronize less often "
        "(no_sync() with gradient accumulation), send less (bf16 gradients), and check the links: nvidia-smi topo -m, "
        "NCCL_DEBUG=INFO. One rank that is always late makes all others wait: look for a straggler first.",
        thresholds=(
            Threshold("communication_notable_percent", 15, "%", "share of a step spent on waiting for other ranks"),
            Threshold("communication_percent", 30, "%", "the same, for a warning and an alert"),
        ),
        live=LiveRule(
            "mean(communication_time, 100) > mean(batch_time, 100) * $communication_percent / 100",
            "{share:.0f} % of each step is spent waiting for other ranks or the network",
            wait="100 steps",
            after="200 steps",
            clear="mean(communication_time, 100) < mean(batch_time, 100) * $communication_percent / 200",
            let={"share": "100 * mean(communication_time, 100) / mean(batch_time, 100)"},
        ),
        findings=("comm.bound",),
    ),
    Condition(
        "checkpoint_bound",
        "run",
        "time spent saving checkpoints",
        "warning",
        "Save in the background (torch.distributed.checkpoint.async_save), save shards of each rank, write to a local "
        "disk and copy later, or save less often.",
        thresholds=(
            Threshold("checkpoint_notable_percent", 5, "%", "share of time spent saving checkpoints"),
            Threshold("checkpoint_percent", 15, "%", "the same, for a warning"),
        ),
        findings=("checkpoint.bound",),
    ),
    Condition(
        "evaluation_bound",
        "run",
        "time spent on evaluation",
        "info",
        "Evaluate less often or on part of the data, with a larger batch and torch.inference_mode(), or in another job "
        "on the saved checkpoints.",
        thresholds=(
            Threshold("evaluation_percent", 25, "%", "share of time spent on evaluation"),
            Threshold("evaluation_high_percent", 50, "%", "the same, for a warning"),
        ),
        findings=("evaluation.bound",),
    ),
    Condition(
        "logging_bound",
        "run",
        "time spent on logging",
        "warning",
        "Log less often, keep values on the GPU until then (no loss.item() at every step), and send pictures and "
        "histograms seldom.",
        thresholds=(
            Threshold("logging_notable_percent", 5, "%", "share of time spent on logging"),
            Threshold("logging_percent", 15, "%", "the same, for a warning"),
        ),
        findings=("logging.bound",),
    ),
    Condition(
        "other_work",
        "run",
        "time outside data loading and model",
        "info",
        "Logging, evaluation or checkpoints: do them less often, asynchronously, or off the training thread.",
        thresholds=(
            Threshold("other_work_percent", 15, "%", "share of time spent on neither data nor the model"),
            Threshold("other_work_high_percent", 30, "%", "the same, for a warning"),
        ),
        findings=("step.other",),
    ),
    Condition(
        "data_unseen",
        "run",
        "data loading that cannot be seen",
        "info",
        "If it is data loading, make it visible: for batch in watch.batches(source), or with watch.phase('data') "
        "around it (docs/watch.md).",
        findings=("data.unseen",),
    ),
)
