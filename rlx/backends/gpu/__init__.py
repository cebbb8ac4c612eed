"""What CUDA and Vulkan share."""

_RULES = (
    "attention", "conv.forward", "index", "matmul", "movement", "norm.channels", "norm.rows", "pool", "reduce",
    "softmax",
)  # fmt: skip
# Modules that most programs need besides the device's own. They are imported while the driver opens the device.
PROGRAMS = (
    "rlx.driver.memory.planner",
    "rlx.backends.gpu.program.executable",
    *(f"rlx.backends.gpu.rules.{name}" for name in _RULES),
)
