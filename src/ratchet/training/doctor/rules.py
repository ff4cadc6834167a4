"""The doctor's rules and findings: for each rule its severity, the problem and the fix."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

__all__ = ["RULES", "Finding", "Message", "Rule", "describe_finding"]

Severity = Literal["error", "warning"]
_MOST_NAMES = 4


@dataclass(frozen=True)
class Rule:
    """Templates of the text of a finding: format strings over its subject and values."""

    problem: str
    fix: str
    extra: dict[str, str] = field(default_factory=dict)  # value -> text appended where the finding has that value
    severity: Severity = "error"


@dataclass(frozen=True)
class Finding:
    """A certain or probable mistake in a training that is about to begin."""

    rule: str  # key of RULES and a row in docs/preflight.md
    subject: tuple[str, ...]  # names of the layers, tensors, settings, samples or splits concerned
    values: Mapping[str, object]  # measurements for the text
    severity: Severity  # a warning may be intended; preflight passes with it

    @classmethod
    def of(cls, rule: str, /, *subject: str, **values: object) -> "Finding":
        """Return a finding of `rule`, with its severity."""
        return cls(rule, subject, values, RULES[rule].severity)

    def warning_if(self, condition: bool) -> "Finding":
        return replace(self, severity="warning") if condition else self


class Message(NamedTuple):
    """Text of one finding."""

    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.problem}. Fix: {self.fix}"


def describe_finding(finding: Finding) -> Message:
    """Return the text of a finding."""
    rule = RULES[finding.rule]
    values = {**finding.values, "subject": finding.subject}
    problem = rule.problem + "".join(more for name, more in rule.extra.items() if values.get(name))
    return Message(*(_Formatter().vformat(template, (), values) for template in (problem, rule.fix)))


class _Formatter(string.Formatter):
    """Write a tuple of names as its first few, and a percentage with a space."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, tuple):
            more = len(value) - _MOST_NAMES
            return ", ".join(value[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        text = format(value, format_spec)
        return text.replace("%", " %") if format_spec.endswith("%") else text


_LOOP_SETS_MODE = "remove .eval() and .train() from forward(): the training loop sets the mode"

_MODEL = {
    "model-not-examined": Rule(
        "The doctor skips the checks of the model: {reason}",
        "keep locks, open files and generators out of the model's attributes, or give their class a __deepcopy__",
        severity="warning",
    ),
    "activation-before-loss": Rule(
        "In {mode} mode the model returns the output of a {function}, and training.loss {loss} applies another: "
        "gradients shrink and the loss cannot come near 0",
        "return logits from forward(), without the {function}",
    ),
    "bounded-numbers": Rule(
        "The outputs are those of a {function}: {share:.0%} of the targets are out of its range. A model predicts "
        "numbers in units of their standard deviation from their mean, which are negative too",
        "return the last layer's output from forward(), without the {function}",
    ),
    "redundant-log-softmax": Rule(
        "The model returns the output of a log-softmax, and training.loss cross-entropy applies another. It changes "
        "neither loss nor gradients, but takes time",
        "return logits from forward(), without the log-softmax",
        severity="warning",
    ),
    "bounded-logits": Rule(
        "In {mode} mode the logits are the output of a {function}: the loss cannot fall below {lowest_loss:.2g}",
        "return the last layer's output from forward(), without the {function}",
    ),
    "one-sided-logits": Rule(
        "In {mode} mode the logits are the output of a {function}: some of them have no gradient",
        "return the last layer's output from forward(), without the {function}",
    ),
    "logits-too-small": Rule(
        "In {mode} mode forward() multiplies the last layer's output by {factor:.3g}: hardly any gradient reaches the "
        "layers",
        "return the last layer's output unchanged",
    ),
    "logits-too-large": Rule(
        "In {mode} mode forward() multiplies the last layer's output by {factor:.3g}: the loss is huge at the start",
        "return the last layer's output unchanged",
    ),
    "mixed-samples": Rule(
        "In {mode} mode the outputs of a sample depend on other samples of the batch: replacing those changes them by "
        "{share:.2g} of the largest output",
        "look for a reshape, view or transpose that joins the batch axis with another, an operation over dim 0 (mean, "
        "softmax, norm), or a permutation of the samples",
        {"running_statistics": ". Batch norms used their running statistics in this test"},
    ),
    "other-function-in-eval": Rule(
        "The model computes another function in training than in eval mode: with running statistics and without "
        "dropout the outputs for the same samples differ by {share:.0%}",
        "look for `if self.training` in forward(), such as a factor, a flip or an order of channels in one mode only",
    ),
    "batch-axis-lost": Rule(
        "A batch of one sample gets outputs of shape {shape}, expected {expected}",
        "remove squeeze() from forward(), or name its axis; flatten(1) keeps the batch axis",
    ),
    "divided-by-batch-size": Rule(
        "Outputs are divided by the batch size: a sample alone gets {batch} times the outputs that it has in a batch "
        "of {batch}",
        "remove the division: the loss already takes the mean over the batch",
    ),
    "batch-size-dependence": Rule(
        "In eval mode a sample alone gets other outputs than in a batch of {batch} "
        "(largest difference {difference:.3g})",
        "look for len(batch), a statistic over dim 0, or a batch norm that always uses the statistics of the batch",
    ),
    "padding-dependence": Rule(
        "The outputs of a text depend on the padding behind it (largest difference {difference:.3g}), so on the "
        "longest text of its batch",
        "leave the padding, id 0, out of sums and means, and give attention a mask",
    ),
    "later-tokens": Rule(
        "The prediction of a token depends on later tokens (largest difference {difference:.3g}): the model sees the "
        "answers in training and has none when it writes",
        "use causal attention (is_causal=True), and pad convolutions on the left only",
    ),
    "unused-columns": Rule(
        "No output depends on the columns {subject}",
        "look for an index or a slice in forward() that leaves them out, or drop them with data.drop",
        severity="warning",
    ),
    "unused-channels": Rule(
        "No logit depends on channel {subject} of the images",
        "look for an index or a slice in forward() that leaves out channels",
        severity="warning",
    ),
    "unused-pixels": Rule(
        "No logit depends on {share:.0%} of the pixels",
        "look for an index or a slice in forward() that leaves them out",
        severity="warning",
    ),
    "constant-input": Rule(
        "In {mode} mode the first layer gets the same values for every image: no output depends on the images",
        "look for a factor of 0, or for a tensor that replaces the input in forward()",
    ),
    "input-scaled-again": Rule(
        "forward() scales its input again: the first layer gets the normalised images times {scale:.3g} plus "
        "{shift:+.3g}",
        "remove the normalisation, the division by 255 or the factor from forward(): images already have mean 0 and "
        "standard deviation 1, in training, validation and serving",
        {"only": ", in {only} mode, not in the other"},
    ),
    "changed-in-forward": Rule(
        "A forward pass in {mode} mode changes {subject}, without an optimizer step",
        "do not assign to weights or buffers in forward(): set initial weights in __init__, and update buffers in "
        "training mode only",
    ),
    "unseeded-forward": Rule(
        "In training mode two passes over the same samples, from the same weights and seed, give different outputs "
        "(largest difference {difference:.3g}): the model uses its own random generator, or counts its calls outside "
        "its buffers. A resumed run cannot restore that state",
        "call torch's random functions without generator=, and keep counters in buffers (register_buffer)",
    ),
    "seeding-in-forward": Rule(
        "forward() seeds {subject}: it draws the same numbers in every step",
        "remove the seeding: the training loop seeds each step",
    ),
    "training-mode-incomplete": Rule(
        "model.train() leaves {subject} in eval mode",
        "call super().train(mode) in an overridden train(), and switch every layer. Freezing batch norm needs "
        "pretrained weights (model.pretrained)",
        {"batch_norms": ": batch norms keep their initial statistics"},
    ),
    "eval-mode-incomplete": Rule(
        "model.eval() leaves {subject} in training mode",
        "call super() in an overridden train() or eval(), and switch every layer",
    ),
    "eval-mode-left": Rule("A forward pass in eval mode leaves {subject} in training mode", _LOOP_SETS_MODE),
    "training-mode-left": Rule("A forward pass in training mode leaves {subject} in eval mode", _LOOP_SETS_MODE),
    "random-in-eval": Rule(
        "In eval mode two passes over the same samples give different outputs",
        "write dropout as nn.Dropout, or pass training=self.training to the function",
    ),
    "no-running-statistics": Rule(
        "{subject} has no running statistics (track_running_stats=False): in eval mode the outputs of a sample "
        "depend on the other samples of its batch",
        "leave track_running_stats at its default, True, or use group or layer norm",
    ),
    "shared-batch-norm": Rule(
        "{subject} normalises the outputs of several layers in one pass: its running statistics, which eval mode uses, "
        "are a mean of them and fit none",
        "give each place a batch norm of its own",
        severity="warning",
    ),
    "frozen-running-statistics": Rule(
        "The running statistics of {subject} do not change in training: eval mode normalises with the initial mean 0 "
        "and variance 1",
        "set momentum to 0.1, and call the layer in forward()",
        {"momentum": " (momentum {momentum})"},
    ),
    "high-momentum": Rule(
        "{subject}: with this momentum the running statistics are those of the last batch",
        "use 0.01 to 0.1. PyTorch's momentum is the weight of the new batch: TensorFlow's 0.99 is 0.01 here",
        severity="warning",
    ),
    "high-dropout": Rule(
        "{subject}: dropout of 0.9 or more lets hardly any signal through in training",
        "set 0.1 to 0.5: the argument is the share that is dropped, not the share that is kept",
    ),
    "weight-decay-sensitive": Rule(
        "Weights that are {decay:g} smaller give completely different outputs, and training.weight_decay "
        "{weight_decay:g} makes weights smaller at each step",
        "set training.weight_decay: 0. For a layer of torch.nn.utils.parametrizations.orthogonal, "
        'orthogonal_map="matrix_exp" or "cayley" works with weight decay too',
    ),
    "dead-units": Rule(
        "No gradient reached these units in several steps: {subject}. Their output is constant or unused",
        "look for a large negative bias before a ReLU, weights of zero, or a mask that removes channels",
    ),
    "equal-weights": Rule(
        "Units of one layer have the same weights: {subject}. They get the same gradients and stay equal",
        "initialise weights at random, with the default or torch.nn.init. Only biases may be constant",
    ),
    "no-gradient": Rule(
        "In {steps} steps no gradient reached {subject}",
        "call the layer in forward(), without detach(), .data, .item(), NumPy or torch.no_grad() between it and the "
        "outputs; or remove it",
    ),
    "unregistered-parameters": Rule(
        "PyTorch does not see {subject}: no step changes them, no checkpoint holds them, and they are not moved to the "
        "device",
        "hold layers in nn.ModuleList or nn.ModuleDict instead of a list, tuple or dict, and tensors in nn.Parameter",
    ),
    "missing-from-optimizer": Rule(
        "The optimizer does not have {subject}: created in forward(), after the optimizer was built",
        "create every layer and parameter in __init__",
    ),
    "frozen-at-random": Rule(
        "{count} parameters have requires_grad off and keep their random initial values ({subject})",
        "load weights with model.pretrained, set requires_grad, or register them as buffers if they are constants",
    ),
    "first-loss-high": Rule(
        "The loss before the first step is {loss:.3g}; a model without knowledge has {formula}{chance:.3g}",
        "start the last layer from small weights, and do not scale in forward(): inputs are already normalised",
    ),
    "first-loss-low": Rule(
        "The loss before the first step is {loss:.3g}; a model without knowledge has {formula}{chance:.3g}",
        "look for the target in the inputs themselves, or for weights that were loaded from elsewhere",
    ),
    "cannot-overfit": Rule(
        "{steps} steps on the same {samples} samples, at learning rates {rates}, correct {learned:.0%} of the errors "
        "of a constant prediction",
        "look in the model for a constant, a detach(), a shape that mixes samples, or an activation that dies between "
        "input and output",
    ),
    "kept-graph": Rule(
        "{subject} keeps the autograd graph of every step so far: memory grows until it is used up",
        "keep tensor.detach(), or .item() of a single number",
    ),
    "nondeterministic": Rule("{problem}", "{fix}"),
    "step-fails": Rule("A training step on {samples} samples fails ({error})", "correct the model's forward()"),
}

_DATA = {
    "labels-out-of-range": Rule(
        "{count:,} labels in {split} are not 0 to {highest} ({meaning}): {subject}",
        "correct the labels and ingest again, or set training.ignore_index to the label of samples that do not count",
    ),
    "targets-not-finite": Rule(
        "{count:,} targets in {split} are not finite numbers (columns {subject}): the loss becomes NaN",
        "remove these samples or correct them, and ingest again",
    ),
    "constant-columns": Rule(
        "All rows of train have one value in the columns {subject}: nothing can be learned from them",
        "drop them with data.drop, or train on rows in which they differ",
        severity="warning",
    ),
    "labels-renumbered": Rule(
        "Classes are numbered differently in train and in validation ({subject}): a small classifier gets {train:.0%} "
        "of held-out train samples right and {validation:.0%} of validation; with these numbers it gets {restored:.0%}",
        "take the label numbers of both splits from one list of class names",
    ),
    "labels-of-neighbours": Rule(
        "Samples of {split} have the label of their neighbour in the list: a small classifier gets {own:.0%} right "
        "with their own labels and {neighbour:.0%} with those of the {which} sample",
        "look for an index that is off by one, or a list of labels whose order is not that of the images",
    ),
    "transformed-split": Rule(
        "The images of one split are {how}: a small classifier gets {train:.0%} of held-out train samples right and "
        "{validation:.0%} of validation; with validation images {how} it gets {restored:.0%}",
        "prepare both splits with the same code. Only augmentation is for train alone",
    ),
    "rescaled-split": Rule(
        "Images of validation have other values than those of train. Channel {channel}: in train mean {train_mean:.3g}"
        ", standard deviation {train_std:.3g} ({train_min:.3g} to {train_max:.3g}); in validation mean "
        "{validation_mean:.3g}, standard deviation {validation_std:.3g} ({validation_min:.3g} to {validation_max:.3g})",
        "scale both splits with the same code and the same constants",
    ),
    "repeated-images": Rule(
        "{count} samples of {split} are only {different} different images",
        "look for an index modulo a number, or a list that was joined with itself",
    ),
    "label-in-image": Rule(
        "Pixel values of {split} reveal the label at {count} of {of:,} positions; the first is channel {channel}, row "
        "{row}, column {column}",
        "look for code that writes the label, an index or a file name into the image",
    ),
    "leak-by-id": Rule(
        "{count:,} of {of:,} validation samples are also training samples, by their ids: validation metrics are too "
        "optimistic",
        "remove them from one of the two splits, and ingest again",
    ),
    "leak-by-pixels": Rule(
        "{count:,} images of validation are also in train, pixel for pixel: validation metrics are too optimistic",
        "remove them from one of the two splits, and ingest again",
    ),
    "leak-by-content": Rule(
        "{count:,} of {of:,} {parts} of validation are also in train, value for value: validation metrics are too "
        "optimistic",
        "remove them from one of the two splits, or keep samples that belong together in one split (data.group_column)",
    ),
    "augmented-validation": Rule(
        "data.factory: validation is augmented. {count} of {of} samples (numbers {subject}) depend on the seed, and "
        "metrics measure changed images",
        "augment only where the function is called with train",
    ),
    "unseeded-dataset": Rule(
        "data.factory: {count} of {of} samples (numbers {subject}) differ when read again from the same seed. They use "
        "a random generator of the Dataset, which is the same in all workers and is not restored when a run resumes; "
        "or reading changes the data",
        "use the functions of random, numpy.random or torch themselves, without a generator created in __init__: they "
        "are seeded for each sample and epoch",
    ),
    "seeding-in-dataset": Rule(
        "data.factory: __getitem__ seeds {subject}: it draws the same numbers in every epoch",
        "remove the seeding: each sample is seeded in each epoch",
    ),
    "in-place-change": Rule(
        "data.factory: __getitem__ changes its own data in split {split} ({subject} differs after a sample was read): "
        "a sample depends on how often it was read",
        "work on a copy: image = image.clone() or array.copy() before an operation that ends in _ or in =",
    ),
    "reused-buffer": Rule(
        "data.factory: {count} of {of} samples of {split} (numbers {subject}) change when another is read: __getitem__ "
        "returns one buffer for all",
        "return a copy of the buffer: image.clone()",
    ),
    "channels-last": Rule(
        "data.factory: images have shape {channels} x {rows} x {columns}, read as {channels} channels of {rows} x "
        "{columns} pixels. They seem to be channels last",
        "return image.permute(2, 0, 1), of shape {columns} x {channels} x {rows}",
    ),
}

_SHARE_OF_RUN = "the run of {steps:,} steps ({epochs:.3g} epochs)"
_SETTINGS = {
    "long-warmup": Rule(
        f"training.warmup_epochs {{warmup:g}} is more than half of {_SHARE_OF_RUN}: the learning rate is at "
        "training.learning_rate only briefly",
        "shorten the warm-up to a tenth of the run, or train longer",
    ),
    "endless-warmup": Rule(
        f"training.warmup_epochs {{warmup:g}} is as long as {_SHARE_OF_RUN} or longer: the learning rate never reaches "
        "training.learning_rate",
        "shorten the warm-up to a tenth of the run, or train longer",
    ),
    "late-step": Rule(
        f"training.step_epochs {{step_epochs}} is beyond {_SHARE_OF_RUN}: the learning rate never falls",
        "set it to a third of training.epochs, or set training.schedule: constant if that is intended",
    ),
    "late-plateau": Rule(
        f"training.plateau_patience {{patience}} reaches beyond {_SHARE_OF_RUN}: the learning rate never falls",
        "lower it, or set training.schedule: constant if that is intended",
    ),
    "low-learning-rate": Rule(
        f"For {{share:.0%}} of {_SHARE_OF_RUN} the learning rate is below a thousandth of training.learning_rate: "
        "hardly anything is learned there",
        "raise training.step_epochs or training.rate_factor, or train for fewer epochs",
    ),
    "small-micro-batch": Rule(
        "{norms} batch norms compute mean and variance of {samples} samples (training.batch_size {batch_size} in "
        "{accumulation} micro-batches, training.accumulation): both are mostly noise",
        "use micro-batches of at least {fewest} samples, or a model with group or layer norm",
    ),
    "transfer-without-weights": Rule(
        "No pretrained weights: {subject} hold back layers that start from random weights",
        "put a state dict in data/pretrained and name it in model.pretrained",
    ),
    "disk-space": Rule(
        "{count:,} checkpoints of {mib:,.1f} MiB need {need:,.1f} GiB, and {folder} has {free:,.1f} GiB free",
        "free some space, or lower training.keep_last and training.keep_best",
    ),
    "memory": Rule(
        "Training needs about {need:,.1f} GiB more {kind} ({weights:.2f} GiB of weights, gradients and optimizer "
        "{optimizer:.2f} GiB, {samples:,} samples at a time {batch:.2f} GiB), and {free:,.1f} GiB are free",
        "raise training.accumulation, lower training.batch_size or data.image_size, set "
        "training.gradient_checkpointing, or use a smaller model",
    ),
}

RULES = {**_MODEL, **_DATA, **_SETTINGS}
