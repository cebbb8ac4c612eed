"""The options of a session and of a run under ONNX Runtime's names; rlx reads few of them, from its classes or ours."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping
from typing import Any

from rlx.errors import UnsupportedOp
from rlx.records import Record, field


class GraphOptimizationLevel(enum.IntEnum):
    """Taken and ignored: rlx always optimizes, and never at the cost of accuracy."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken and ignored: rlx runs nodes in order."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions(Record, frozen=False, slots=False):
    """rlx reads `intra_op_num_threads`, the CPU's threads (0: all), the lengths given with
    `add_free_dimension_override_by_name`, and `enable_profiling` with `profile_file_prefix`. The others are taken for
    the sake of scripts, and change nothing here."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = 0
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    free_dimensions: dict[str, int] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, length: int) -> None:
        """Binds a symbolic dimension to a length, as `dims` of rlx.onnx.load."""
        self.free_dimensions[name] = length

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        return self.config[key]


class RunOptions(Record, frozen=False, slots=False):
    """Taken and ignored, but for `training_mode` and `terminate`, which are refused."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    training_mode: bool = False
    config: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.config[key] = value


def threads_of(options: Any) -> int | None:
    """The CPU's threads that options ask for; None for all."""
    return int(getattr(options, "intra_op_num_threads", 0) or 0) or None


def dims_of(options: Any) -> Mapping[str, int]:
    """The lengths that our options bind dimensions to; ONNX Runtime's do not tell theirs."""
    return getattr(options, "free_dimensions", {})


def check_options(options: Any) -> None:
    """Warns where a file is expected that rlx does not write."""
    path = getattr(options, "optimized_model_filepath", "")
    if path:
        warnings.warn(
            f"optimized_model_filepath: rlx saves no optimized model, {str(path)!r} is not written", stacklevel=3
        )


def check_run_options(options: Any) -> None:
    """Raises: UnsupportedOp for options that would change results."""
    if getattr(options, "training_mode", False):
        raise UnsupportedOp("run: training_mode is not supported; rlx runs models as they were exported")
    if getattr(options, "terminate", False):
        raise UnsupportedOp("run: terminate is set; rlx does not end a run that goes on, and this one does not begin")
