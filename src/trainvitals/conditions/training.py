"""How the model learns, and how fast."""

from __future__ import annotations

from trainvitals.conditions.promql import RANK
from trainvitals.conditions.row import Colour, Condition, LiveRule, PrometheusRule, Threshold

_FORWARD = 'avg_over_time(training_phase_duration_seconds{phase="forward"}[1m])'

ROWS: tuple[Condition, ...] = (
    Condition(
        "loss_not_finite",
        "rank",
        "NaN or infinity in the loss",
        "critical",
        "Resume from a checkpoint before that step with half the learning rate, or clip gradients to 1.0; with fp16 "
        "try bf16; look at the batches just before it.",
        thresholds=(
            Threshold(
                "loss_not_finite_percent", 5, "%", "share of values that are not finite: critical though it recovers"
            ),
        ),
        live=LiveRule(
            "not isfinite(loss)", "Loss is {loss} at step {step}", clear="isfinite(loss)", clear_wait="20 steps"
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
        "spikes in the loss",
        "warning",
        "If it recovers, note the batches: if it returns there, it is the data. If spikes come often: clip gradients, "
        "lower Adam's beta2 to 0.95, or the learning rate.",
        thresholds=(
            Threshold("loss_spike_deviations", 8, "deviations", "a loss so far above the usual is a spike"),
            Threshold("loss_spike_count", 3, "", "so many spikes within 500 steps are worth a warning"),
        ),
        live=LiveRule(
            # Distances, not factors: a loss may be negative (a log-likelihood, a policy's).
            "deviation(loss, 200) > $loss_spike_deviations "
            "and loss - median(loss, 200) > 0.5 * abs(median(loss, 200)) "
            # Near zero a loss jumps by factors and means nothing: a spike is large against where the run was
            # farthest off.
            "and loss - median(loss, 200) > "
            "0.15 * at_least(abs(max(median(loss, 20), all)), abs(min(median(loss, 20), all)))",
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
        "a loss that rises and stays there",
        "critical",
        "Roll back to before it rose, reduce the learning rate by 25 to 50 %, and skip those batches.",
        thresholds=(
            Threshold("loss_divergence_percent", 10, "%", "a loss that stays so far above its best diverges"),
            Threshold("loss_divergence_critical_percent", 50, "%", "the same, critical in a finding"),
        ),
        live=LiveRule(
            "median(loss, 100) > min(median(loss, 100), all) + at_least("
            "abs(min(median(loss, 100), all)) * $loss_divergence_percent / 100, "
            "3 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
            "Loss rises and does not recover: {value:.4g} against {best:.4g} at its best",
            wait="100 steps",
            after="300 steps",
            clear="median(loss, 100) < min(median(loss, 100), all) + at_least("
            "abs(min(median(loss, 100), all)) * $loss_divergence_percent / 200, "
            "0.5 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
            clear_wait="50 steps",
            let={"best": "min(median(loss, 100), all)"},
        ),
        findings=("loss.divergence",),
    ),
    Condition(
        "loss_above_baseline",
        "rank",
        "a loss above its baseline",
        "warning",
        "Compare the two: trainvitals compare. Data order, learning rate and batch size first.",
        thresholds=(Threshold("loss_up_percent", 10, "%", "a loss so far above its baseline is too high"),),
        live=LiveRule(
            # Also by more than the loss of one batch usually lies off: a few noisy batches more move the median too.
            "median(loss, 100) > baseline(loss) + at_least(abs(baseline(loss)) * $loss_up_percent / 100, "
            "0.5 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
            "Loss {value:.4g} is over {base:.4g}, its baseline, by more than the limit",
            wait="100 steps",
            after="300 steps",
            clear="median(loss, 100) < baseline(loss)",
            let={"base": "baseline(loss)"},
        ),
    ),
    Condition(
        "loss_plateau",
        "rank",
        "no progress for half of the run",
        "info",
        "Done, or stuck: check the learning rate schedule, the order of the data, and frozen layers. If it is done, "
        "shorter runs cost less.",
        thresholds=(
            Threshold("loss_plateau_steps", 2000, "steps", "so long without progress is a plateau"),
            Threshold("loss_plateau_gain", 0.002, "share", "a loss that falls by less makes no progress"),
        ),
        live=LiveRule(
            "since_improved(median(loss, 200), $loss_plateau_gain) > at_least($loss_plateau_steps, 0.6 * step)",
            "Loss has not fallen for {since:.0f} steps",
            after="1000 steps",
            let={"since": "since_improved(median(loss, 200), $loss_plateau_gain)"},
        ),
        findings=("loss.plateau",),
    ),
    Condition(
        "loss_overfit",
        "run",
        "over-fitting",
        "warning",
        "Stop, or take the checkpoint of the best step; add regularisation or data.",
        thresholds=(
            Threshold("loss_overfit_percent", 2, "%", "a held-out loss so far above its best, while training improves"),
        ),
        findings=("loss.overfit",),
    ),
    Condition(
        "gradient_exploded",
        "rank",
        "gradient norms that are too large",
        "warning",
        "Clip gradients (torch.nn.utils.clip_grad_norm_ with 1.0), lower the learning rate, or lengthen the warm-up.",
        thresholds=(
            Threshold("grad_norm_exploded", 10, "", "a gradient norm above this is too large"),
            Threshold("grad_norm_critical", 100, "", "the same, critical"),
        ),
        live=LiveRule(
            "gradient_norm > $grad_norm_exploded and gradient_norm > 3 * median(gradient_norm, 200)",
            "Gradient norm is {gradient_norm:.4g} at step {step}",
            wait="3 steps",
            after="100 steps",
            clear="gradient_norm < 2 * median(gradient_norm, 200) or gradient_norm < $grad_norm_exploded",
            clear_wait="20 steps",
        ),
        colours=(Colour("training", "gradient_norm", "grad_norm_exploded", "grad_norm_critical"),),
    ),
    Condition(
        "gradient_outlier",
        "rank",
        "exploding gradients",
        "info",
        "Watch the loss over the next steps. If it comes again: clip the gradient norm at 1.0, lower the learning "
        "rate, check how the largest layer is initialised.",
        thresholds=(
            Threshold("gradient_outlier_factor", 10, "times", "a gradient norm of so many times the usual is far off"),
            Threshold("gradient_outlier_deviations", 8, "deviations", "and it lies so far above the usual"),
            Threshold("gradient_not_finite_percent", 5, "%", "share of the newest norms that are NaN or infinite"),
        ),
        live=LiveRule(
            "gradient_norm > $gradient_outlier_factor * median(gradient_norm, 200) "
            "and deviation(gradient_norm, 200) > $gradient_outlier_deviations "
            "and gradient_norm > 3 * early(gradient_norm)",
            "Gradient norm {gradient_norm:.4g} is far from its own history",
            wait="3 steps",
            after="200 steps",
            clear="gradient_norm < 3 * median(gradient_norm, 200)",
            clear_wait="20 steps",
        ),
        findings=("grad.explode",),
    ),
    Condition(
        "gradient_vanished",
        "rank",
        "gradients that have vanished",
        "warning",
        "Nothing is learned. Check for dead activations, a loss that is detached, or a loss scale of 0.",
        thresholds=(Threshold("grad_norm_vanished", 1e-7, "", "a gradient norm below this is nothing", below=True),),
        live=LiveRule(
            # Where the loss is exactly 0 nothing is left to learn, and the gradient is rightly 0.
            "gradient_norm < $grad_norm_vanished and (gradient_norm > 0 or loss != 0)",
            "Gradients have vanished: norm {gradient_norm:.3g}",
            wait="20 steps",
            clear="gradient_norm > 10 * $grad_norm_vanished",
        ),
        prometheus=PrometheusRule(
            "max_over_time(<training.gradient_norm>[<held>]) < $grad_norm_vanished",
            f"The gradients of {RANK} have vanished",
        ),
    ),
    Condition(
        "layer_nonfinite_weights",
        "layer",
        "layers whose weights are NaN or infinite",
        "critical",
        "The weights are lost: resume from a checkpoint before that step with half the learning rate, or clip "
        "gradients to 1.0; with fp16 try bf16.",
        noticed_by_watch=True,
    ),
    Condition(
        "layer_nonfinite_gradient",
        "layer",
        "layers whose gradient is NaN or infinite",
        "critical",
        "Clip gradients to 1.0 or lower the learning rate; with fp16 try bf16.",
        noticed_by_watch=True,
    ),
    Condition(
        "layer_exploding",
        "layer",
        "layers whose gradient explodes",
        "warning",
        "Clip the gradient norm at 1.0; lower the learning rate; check how this layer is initialised.",
        thresholds=(
            Threshold("layer_exploding_factor", 100, "times", "a gradient of so many times the layer's usual explodes"),
        ),
        noticed_by_watch=True,
    ),
    Condition(
        "layer_vanishing",
        "layer",
        "layers that learn nothing",
        "warning",
        "If they are not frozen on purpose: residual connections or normalisation, another activation, another "
        "initialisation; with fp16, a larger loss scale or bf16.",
        thresholds=(
            # A step of any sane size then rounds to nothing in single precision.
            Threshold(
                "layer_vanishing_ratio", 1e-7, "", "a gradient so small beside the weights is nothing", below=True
            ),
        ),
        findings=("grad.vanish",),
        noticed_by_watch=True,
    ),
    Condition(
        "layer_dead",
        "layer",
        "layers whose gradient is exactly 0",
        "warning",
        "If it is not frozen on purpose: look for units that never fire behind it, and for a detached tensor.",
        noticed_by_watch=True,
    ),
    Condition(
        "learning_rate_low",
        "rank",
        "a learning rate that is stuck at nothing",
        "warning",
        "Nothing, if its schedule has come to its end or these weights are frozen on purpose. Otherwise the schedule "
        "is shorter than the run, or was not restored on resume.",
        thresholds=(
            Threshold(
                "learning_rate_too_low", 1e-8, "", "at a learning rate below this nothing is learned", below=True
            ),
        ),
        live=LiveRule(
            # A schedule that decays to zero never stands still before it ends: only a rate that is stuck is meant.
            "max(learning_rate, 500) < $learning_rate_too_low and max(learning_rate, 500) == min(learning_rate, 500)",
            "The learning rate has stood at {learning_rate:.3g} for 500 steps: at this rate nothing is learned",
            after="500 steps",
            clear="learning_rate >= $learning_rate_too_low",
        ),
        colours=(Colour("training", "learning_rate", "learning_rate_too_low"),),
    ),
    Condition(
        "learning_rate_high",
        "rank",
        "a learning rate that is too high",
        "warning",
        "Usual ones are 1e-5 to 1e-1. If it is meant, raise alerts.thresholds.learning_rate_too_high.",
        thresholds=(Threshold("learning_rate_too_high", 1, "", "a learning rate above this is too high"),),
        live=LiveRule(
            "learning_rate > $learning_rate_too_high",
            "The learning rate is {learning_rate:.3g}",
            wait="10 steps",
            clear="learning_rate <= $learning_rate_too_high",
        ),
        prometheus=PrometheusRule(
            "min_over_time(<training.learning_rate>[<held>]) > $learning_rate_too_high",
            f"The learning rate of {RANK} is high",
        ),
    ),
    Condition(
        "throughput_low",
        "rank",
        "a throughput that has dropped",
        "warning",
        "Look at what changed: GPU clocks and heat, data loading, another job on the machine (trainvitals top).",
        thresholds=(Threshold("throughput_drop_percent", 50, "%", "a throughput so far below its baseline is low"),),
        live=LiveRule(
            "median(throughput_samples_per_sec, 50) < baseline(throughput_samples_per_sec) "
            "* (1 - $throughput_drop_percent / 100)",
            "Throughput is {value:.4g} samples/s, it was {base:.4g} at the start",
            wait="25 steps",
            clear="median(throughput_samples_per_sec, 50) > baseline(throughput_samples_per_sec) "
            "* (1 - $throughput_drop_percent / 200)",
            let={"base": "baseline(throughput_samples_per_sec)"},
        ),
    ),
    Condition(
        "steps_slower",
        "run",
        "steps that became slower",
        "warning",
        "If neither sequence length nor batch size changed there: look at clocks and temperatures of the GPUs, at "
        "other processes on the machine, at storage and network at that moment.",
        thresholds=(
            Threshold("step_slowdown_percent", 4, "%", "steps that take so much longer from one moment on are slower"),
        ),
        findings=("step.fail_slow",),
    ),
    Condition(
        "slow_steps",
        "run",
        "slow steps, and whether they are regular",
        "warning",
        "What happens then (evaluation, checkpoint, next shard, garbage collection)? Do it in the background or less "
        "often.",
        thresholds=(
            Threshold("slow_step_factor", 1.5, "times", "a step of so many times the usual is slow"),
            Threshold("slow_steps_percent", 1, "%", "share of the time that slow steps cost"),
            Threshold("slow_steps_high_percent", 5, "%", "the same, worth a warning"),
        ),
        findings=("step.outlier", "step.periodic"),
    ),
    Condition(
        "step_time_uneven",
        "rank",
        "steps of uneven length",
        "info",
        "If it is every N steps: what happens then (evaluation, logging, new data shard)? Else: trainvitals runs show "
        "latest.",
        thresholds=(Threshold("step_time_factor", 2, "times", "one step in seven takes so many times the usual"),),
        live=LiveRule(
            "quantile(batch_time, 0.85, 200) > $step_time_factor * median(batch_time, 200)",
            "More than one step in seven takes over {threshold:.3g} s, the usual one {usual:.3g} s",
            wait="100 steps",
            after="300 steps",
            clear="quantile(batch_time, 0.85, 200) < 1.25 * median(batch_time, 200)",
            let={"usual": "median(batch_time, 200)"},
        ),
    ),
    Condition(
        "straggler",
        "rank",
        "a rank that is slower than the others",
        "warning",
        "All ranks wait for it. Compare its GPU's clock, heat and PCIe link with the others', its host and its data; "
        "or leave it out.",
        thresholds=(
            Threshold(
                "straggler_factor", 1.25, "times", "a rank that takes so many times what the others take is slow"
            ),
            Threshold("straggler_steps_percent", 25, "%", "share of the steps in which it is"),
        ),
        live=LiveRule(
            # In data parallel training every rank waits for the slowest, so whole steps are equally long; what a rank
            # does before it has to wait tells them apart.
            "median(rank[*].forward_time, 50) > $straggler_factor * median(median(rank[*].forward_time, 50)) "
            "and count(median(rank[*].forward_time, 50)) > 2",
            "Rank {rank} is slower than the others: {value:.3g} s against {threshold:.3g} s",
            wait="30s",
            clear="median(rank[*].forward_time, 50) < 1.1 * median(median(rank[*].forward_time, 50))",
        ),
        prometheus=PrometheusRule(
            f"{_FORWARD} > on (run, project) group_left "
            f"$straggler_factor * quantile by (run, project) (0.5, {_FORWARD})"
            f" and on (run, project) count by (run, project) ({_FORWARD}) > 2",
            RANK + " is slower than the others",
        ),
        findings=("straggler.rank",),
    ),
    Condition(
        "data_bound",
        "rank",
        "waiting for data",
        "warning",
        "More loader workers, pin_memory and prefetch_factor; cache or pre-process the data, and store it nearer.",
        thresholds=(
            Threshold("data_share_notable_percent", 10, "%", "share of a step that waits for data, worth a finding"),
            Threshold("data_share_percent", 30, "%", "the same, worth an alert"),
        ),
        live=LiveRule(
            "mean(data_time, 100) > mean(batch_time, 100) * $data_share_percent / 100",
            "{share:.0f} % of each step is waiting for data",
            wait="100 steps",
            after="200 steps",
            clear="mean(data_time, 100) < mean(batch_time, 100) * $data_share_percent / 200",
            let={"share": "100 * mean(data_time, 100) / mean(batch_time, 100)"},
        ),
        findings=("data.bound",),
    ),
    Condition(
        "other_work",
        "run",
        "time outside of data and model",
        "info",
        "Logging, evaluation or checkpoints: do them less often, asynchronously, or not on the training thread.",
        thresholds=(
            Threshold("other_work_percent", 15, "%", "share of the time that goes to neither data nor the model"),
            Threshold("other_work_high_percent", 30, "%", "the same, worth a warning"),
        ),
        findings=("step.other",),
    ),
)
