"""Settings: everything that runs of one comparison share, with every number in one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lib.distill.auxiliary import LayerFeatures
from lib.distill.examples import Examples
from lib.distill.methods import OBJECTIVES
from lib.distill.settings import TrainingSettings

Progress = Callable[[Iterable, str], Iterable]
Table = Mapping[str, Any]

SETTINGS: dict[str, Setting] = {}
DEFAULTS = {
    ("quick", "vision"): "digits",
    ("quick", "text"): "phrases",
    ("cpu", "vision"): "cifar100-stage",
    ("cpu", "text"): "clinc150-l0",
    ("gpu", "vision"): "cifar100-resnet",
    ("gpu", "text"): "clinc150-l6",
    ("paper", "vision"): "paper-vision",
    ("paper", "text"): "paper-text",
}  # the setting of a profile and a domain
COMMON = {
    "batch_size": 64,
    "micro_batch": 64,
    "optimiser": "sgd",
    "momentum": 0.9,
    "schedule": "constant",
    "warmup": 0,
    "clip": None,
    "precision": "float32",
    "options": {},  # method -> its options, where they differ from Appendix E.1
    "snapshots": [],  # steps after which CE's state is kept, for Tables 1 to 3
    "log_every": 50,
    "checkpoint_every": 200,
}  # entries that a table may leave out
DKD_WARMUP = {"vision": 20 / 60, "text": 2 / 4}  # share of the epochs, as in Appendix E.1
HEADS = {"vision": "nonlinear", "text": "linear"}  # DHKD's second head
_MODULES = ("recipes_vision", "recipes_text", "recipes_paper")
_MAY_BE_NONE = ("clip", "teacher_clip")  # entries for which None means something
_COUNTS = ("train", "test")  # entries that must be at least 1
_NO_RESULT = ("checkpoint_every",)  # entries that change no result


@dataclass(frozen=True)
class Materials:
    """What all runs of a setting with one teacher share.

    Attributes:
        examples: what is trained on.
        test: what is measured at the end.
        teacher: (V, n, K) logits of the teacher for the examples.
        test_teacher: (1, m, K) logits of the teacher for the test examples.
        facts: what is worth telling about the teacher, in numbers.
        assets: other tensors, from which the student is made.
    """

    examples: Examples
    test: Examples
    teacher: Tensor = field(repr=False)
    test_teacher: Tensor = field(repr=False)
    facts: Mapping[str, float] = field(default_factory=dict)
    assets: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Setting:
    """A comparison of methods: data, teacher, student, and how long they learn.

    Attributes:
        name: of the setting.
        domain: "vision" or "text"; decides the rules of Appendix E.1 that apply to a method.
        profile: "quick", "cpu", "gpu" or "paper": what it takes.
        says: what data, teacher and student are, for captions.
        table: every number.
        data: the table -> name of a file -> SHA-256 of all data and weights that are read.
        prepare: (table, teacher, progress, device) -> `Materials`; expensive parts are kept.
        student: (table, materials, seed) -> the student before training.
        layers: (table, materials, teacher, student, device) -> the layers whose states DTO-KD
            compares if the table has a "feature_weight"; None where it compares logits only.
        seconds: estimate of the processor time of a run by "one pass" and "two passes", and of the
            "materials", in seconds on one core.
    """

    name: str
    domain: str
    profile: str
    says: str
    table: Table
    data: Callable[[Table], Mapping[str, str]]
    prepare: Callable[..., Materials]
    student: Callable[[Table, Materials, int], nn.Module]
    seconds: Mapping[str, float]
    layers: Callable[..., LayerFeatures] | None = None

    def estimate(self, method: str, table: Table) -> float:
        """Return the documented estimate of a run in seconds, in proportion to its iterations."""
        passes = "one pass" if OBJECTIVES[method].backward_passes == 1 else "two passes"
        return self.seconds[passes] * table["iterations"] / self.table["iterations"]


def register(setting: Setting) -> Setting:
    """Add a setting to `SETTINGS`.

    Args:
        setting: whose name is not taken, unless by itself.

    Returns:
        The setting.

    Raises:
        ValueError: if another setting has the name.

    Example:
        >>> register(find_setting("digits")).name
        'digits'
    """
    if SETTINGS.setdefault(setting.name, setting) is not setting:
        raise ValueError(f"name must be new, got {setting.name!r}, which is a setting already")
    return setting


def find_setting(name: str) -> Setting:
    """Return a setting by name.

    Args:
        name: one of `SETTINGS`.

    Returns:
        The setting.

    Raises:
        ValueError: if there is no such setting.

    Example:
        >>> find_setting("digits").domain
        'vision'
    """
    load_settings()
    if not isinstance(name, str) or name not in SETTINGS:
        raise ValueError(f"setting must be one of {', '.join(SETTINGS)}, got {name!r}")
    return SETTINGS[name]


def load_settings() -> dict[str, Setting]:
    """Return `SETTINGS` with all settings of this package in it.

    Example:
        >>> "clinc150-l0" in load_settings()
        True
    """
    for module in _MODULES:
        importlib.import_module(f"lib.distill.{module}")
    return SETTINGS


def resolve_table(setting: Setting, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting's table with every entry, some of them overridden.

    Args:
        setting: whose table it is.
        overrides: entries that differ.

    Returns:
        Name -> value.

    Raises:
        ValueError: if an entry is unknown or a value has another type.

    Example:
        >>> table = resolve_table(find_setting("digits"), {"iterations": 40})
        >>> table["iterations"], table["batch_size"]
        (40, 64)
    """
    table = COMMON | dict(setting.table)
    for name, value in overrides.items():
        if name not in table:
            raise ValueError(
                f"overrides of {setting.name!r} must be among {', '.join(table)}; got {name!r}"
            )
        if not ((value is None and name in _MAY_BE_NONE) or _alike(table[name], value)):
            raise ValueError(
                f"overrides[{name!r}] must be of the type of {table[name]!r}, got {value!r}"
            )
        if name in _COUNTS and value < 1:
            raise ValueError(f"overrides[{name!r}] must be >= 1, got {value!r}")
    _check_options(overrides.get("options", {}))
    return table | dict(overrides)


def result_table(table: Table) -> dict[str, Any]:
    """Return the entries that decide the result of a run."""
    return {name: value for name, value in table.items() if name not in _NO_RESULT}


def training_settings(
    setting: Setting, method: str, seed: int, overrides: Mapping[str, Any] | None = None
) -> TrainingSettings:
    """Return how a method is trained in a setting.

    In vision the weight decay is the setting's, times the ratio of the method's own to the common
    one in Appendix E.1; on text it is the setting's. DKD's warm-up takes the paper's share of the
    epochs. It rises by epochs counted from one, so that there is none where that share is an epoch
    or less: in settings of three epochs or fewer in vision, of two or fewer on text.

    **Source**: Yuan & Tao, Appendix E.1; that shares and ratios are what scales is ours.

    Args:
        setting: the setting.
        method: one of `OBJECTIVES`.
        seed: integer >= 0.
        overrides: entries of the table that differ.

    Returns:
        The settings.

    Raises:
        ValueError: if a value does not fit.

    Example:
        >>> digits = find_setting("digits")
        >>> [training_settings(digits, name, 42).weight_decay for name in ("tpkd", "xe-kl")]
        [0.0001, 1e-05]
    """
    table = resolve_table(setting, overrides or {})
    objective = OBJECTIVES[method]
    decay = table["weight_decay"]
    if setting.domain == "vision":
        decay *= objective.vision_weight_decay / OBJECTIVES["ce"].vision_weight_decay
    taken = set(TrainingSettings.__dataclass_fields__) & set(table) - {"options", "weight_decay"}
    if method != "dto-kd":
        taken -= {"feature_weight"}
    return TrainingSettings(
        method=method,
        seed=seed,
        weight_decay=decay,
        options=_options(setting.domain, method, table),
        **{"auxiliary_head": HEADS[setting.domain]} | {name: table[name] for name in taken},
    )


def identity(config: Any) -> dict[str, Any]:
    """Return all that decides the result of a config, as JSON can hold it.

    Args:
        config: a `TrainingConfig`.

    Returns:
        Its fields, the table, the method's options and weight decay, and the data's hashes.

    Raises:
        NotHereError: if data that the setting reads are not here.
    """
    setting = find_setting(config.setting)
    table = resolve_table(setting, config.overrides)
    settings = training_settings(setting, config.method, config.seed, config.overrides)
    return {
        "method": config.method,
        "seed": config.seed,
        "teacher": config.teacher,
        "setting": config.setting,
        "table": result_table(table),
        "options": settings.fingerprint()["options"],
        "weight_decay": settings.decay,
        "data": dict(setting.data(table)),
    }


def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _options(domain: str, method: str, table: Table) -> dict[str, Any]:
    """The options of a method that are not its defaults."""
    objective = OBJECTIVES[method]
    found = {k: v for k, v in objective.text_options.items() if domain == "text"}
    if "warmup_epochs" in objective.rules:
        epochs = table["iterations"] * table["batch_size"] / table["train"]
        found["warmup_epochs"] = DKD_WARMUP[domain] * epochs
        found.pop("steps_per_epoch", None)  # comes from the number of examples
    return found | dict(table["options"].get(method, {}))


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a method that does not exist: they would be passed over in silence."""
    for method, values in options.items():
        if method not in OBJECTIVES or not isinstance(values, Mapping):
            raise ValueError(
                "overrides['options'] must map methods to their options, as "
                f'{{"kd": {{"temperature": 2}}}}, got {method!r}: {values!r}; methods are '
                f"{', '.join(OBJECTIVES)}"
            )


def _alike(old: object, new: object) -> bool:
    """Whether a new value has the type of the one it replaces; numbers may be whole or not."""
    if old is None:
        return True
    if isinstance(old, bool) or isinstance(new, bool):
        return type(old) is type(new)
    if isinstance(old, int | float):
        return isinstance(new, int if isinstance(old, int) else int | float)
    return (
        isinstance(new, list | tuple) if isinstance(old, list | tuple) else type(old) is type(new)
    )
