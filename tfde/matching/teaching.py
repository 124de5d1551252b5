"""What a student of pairs learns from teachers beside its labels."""

from __future__ import annotations

from dataclasses import dataclass

from tfde.config.matching import TeachingWeights
from tfde.errors import ConfigError, naming, require
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.pair_model import PairScorer
from tfde.matching.state_losses import HiddenLoss, StateLoss, VirtLoss

# What layers of the first teacher teach: `NAME_weight` and `NAME_layers` of a `Teaching`.
_STATE_LOSSES: dict[str, type[StateLoss]] = {"virt": VirtLoss, "hidden": HiddenLoss}


@dataclass(frozen=True)
class Teaching(TeachingWeights):
    """What a student learns beside its labels; `TeachingWeights` says how it weighs.

    Args:
        teachers: Fine-tuned cross-encoders, a tuple or one, which training leaves as they are;
            attention and hidden states are those of the first one, the logits are the mean of all.
    """

    teachers: tuple[CrossEncoder, ...]

    def __post_init__(self) -> None:
        if isinstance(self.teachers, CrossEncoder):  # one, as people write it
            object.__setattr__(self, "teachers", (self.teachers,))
        require(len(self.teachers) > 0, "teachers", "not empty", self.teachers)
        for name in ("virt_weight", "hidden_weight", "logit_weight", "label_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        require(self.temperature > 0, "temperature", "above 0", self.temperature)
        if not self.virt_weight and not self.hidden_weight and not self.logit_weight:
            raise ConfigError(
                "a teacher needs `virt_weight`, `hidden_weight` or `logit_weight` above 0."
                " Received: 0, 0 and 0"
            )


def state_losses(student: PairScorer, teaching: Teaching) -> dict[str, StateLoss]:
    """Returns by name what compares a student's layers with those of the first teacher.

    Raises:
        ConfigError: the student has no layers, or other texts than the teacher.
    """
    found = {}
    for name, loss in _STATE_LOSSES.items():
        weight = f"{name}_weight"
        if not getattr(teaching, weight):
            continue
        where = student.encoder_and_apart()
        if where is None:
            raise ConfigError(
                f"`{weight}` is for Transformers, whose layers are compared. Received:"
                f" {getattr(teaching, weight)} for a student of another kind"
            )
        teacher = teaching.teachers[0]
        _check_texts(student, teacher, weight)
        encoder, apart = where
        with naming(f"{name}_layers"):
            layers = getattr(teaching, f"{name}_layers") or None
            found[name] = loss(encoder, teacher.encoder, apart=apart, layers=layers)
    return found


def _check_texts(student: PairScorer, teacher: CrossEncoder, weight: str) -> None:
    """Checks that both models read the same tokens of a text, which are compared one by one."""
    text, theirs = student.preprocessor.text_config, teacher.preprocessor.text_config
    prompts = [getattr(text, f"{side}_prompt", "") for side in ("query", "document")]
    if any(prompts) or "[SEP]" in text.document_template:
        raise ConfigError(
            f"`{weight}` needs texts as the teacher reads them: no prompts, and no [SEP] in the"
            f" template. Received: {prompts[0]!r}, {prompts[1]!r} and {text.document_template!r}"
        )
    template = theirs.document_template
    rule = f"{template!r}, the teacher's: `{weight}` compares token by token"
    require(text.document_template == template, "document_template", rule, text.document_template)
    own, first = student.preprocessor.tokenizer, teacher.preprocessor.tokenizer
    if first.fingerprint_bytes() != own.fingerprint_bytes():
        raise ConfigError(
            f"the teacher of `{weight}` must have the student's vocabulary: it is compared token by"
            f" token. Received: one of {first.vocabulary_size} tokens, not of"
            f" {own.vocabulary_size} or not the same"
        )


def check_teachers(student: PairScorer, teaching: Teaching, *, ranks: bool) -> None:
    """Finds teachers that cannot teach a student.

    Args:
        student: What learns.
        teaching: What from.
        ranks: Whether a pair is the better the higher its one logit.

    Raises:
        ConfigError: one is the student itself, or has other labels; to rank, one whose logit says
            what is not relevant.
    """
    for teacher in teaching.teachers:
        if teacher is student:
            raise ConfigError("a teacher must be another model than the student.")
        if teaching.logit_weight and teacher.num_labels != student.num_labels:
            raise ConfigError(
                f"a teacher must have the student's {student.num_labels} labels."
                f" Received: {teacher.num_labels}"
            )
        if teaching.logit_weight and teacher.labels and student.labels:
            rule = f"{', '.join(student.labels)}, in this order (`labels` of a run sets it)"
            same = teacher.labels == student.labels
            require(same, "labels of a teacher", rule, ", ".join(teacher.labels))
        if teaching.logit_weight and ranks and len(teacher.labels) == 2:
            said = teacher.labels[-1]  # what one logit is the logit of
            rule = "one whose logit says 1, or a score without labels, with ranking"
            require("1" not in teacher.labels or said == "1", "a teacher", rule, f"logit of {said}")
