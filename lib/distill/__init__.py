"""Distillation: every method of Table 4 of Yuan & Tao and every control of Table 5."""

from lib.distill.auxiliary import LayerFeatures
from lib.distill.certificates import Certificate, Certificates, certify_batch
from lib.distill.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from lib.distill.config import TrainingConfig
from lib.distill.distributed import joined_processes
from lib.distill.dto import DtoWeights, dto_weights, layer_feature_loss
from lib.distill.dual_head import align_gradients
from lib.distill.evaluation import measure, predict
from lib.distill.examples import Examples, ImageExamples, TensorExamples, TokenExamples
from lib.distill.mechanism import Blocking, HeadSteps, blocking_summary, exact_head_steps
from lib.distill.methods import OBJECTIVES, Objective
from lib.distill.native import Continuation, NativePairs, continue_run, native_pairs
from lib.distill.objectives import combine_gradients, objective_loss, objective_losses
from lib.distill.optimisers import AdamWeightDecay, learning_rate, parameter_groups
from lib.distill.order import batch_at, micro_batches
from lib.distill.recipes import find_setting
from lib.distill.run_files import read_result
from lib.distill.runs import make_student, prepare, train
from lib.distill.settings import TrainingResult, TrainingSettings
from lib.distill.states import RunState, fixed_batches, head_problem, split_pool
from lib.distill.streams import stream, stream_seed
from lib.distill.sweeps import sweep
from lib.distill.teacher_cache import cached_logits, model_digest
from lib.distill.trainer import Trainer, TrainingError
from lib.distill.training import train_student
from lib.distill.views import fixed_views

__all__ = [
    "OBJECTIVES",
    "AdamWeightDecay",
    "Blocking",
    "Certificate",
    "Certificates",
    "CheckpointError",
    "Continuation",
    "DtoWeights",
    "Examples",
    "HeadSteps",
    "ImageExamples",
    "LayerFeatures",
    "NativePairs",
    "Objective",
    "RunState",
    "TensorExamples",
    "TokenExamples",
    "Trainer",
    "TrainingConfig",
    "TrainingError",
    "TrainingResult",
    "TrainingSettings",
    "align_gradients",
    "batch_at",
    "blocking_summary",
    "cached_logits",
    "certify_batch",
    "combine_gradients",
    "continue_run",
    "dto_weights",
    "exact_head_steps",
    "find_setting",
    "fixed_batches",
    "fixed_views",
    "head_problem",
    "joined_processes",
    "layer_feature_loss",
    "learning_rate",
    "make_student",
    "measure",
    "micro_batches",
    "model_digest",
    "native_pairs",
    "objective_loss",
    "objective_losses",
    "parameter_groups",
    "predict",
    "prepare",
    "read_checkpoint",
    "read_result",
    "split_pool",
    "stream",
    "stream_seed",
    "sweep",
    "train",
    "train_student",
    "write_checkpoint",
]
