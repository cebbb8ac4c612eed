"""A custom op: soft shrinkage, sign(x)·max(|x| - t, 0), in NumPy, in CUDA C++ and in GLSL.

The NumPy function alone is enough: it runs on the CPU, and on a GPU as a host step that `report()` shows. The GLSL is
compiled by glslangValidator (Debian: glslang-tools) where that is installed; a program that is to run elsewhere too
brings the compiled module, as `spirv`.
"""

from __future__ import annotations

import argparse
import shutil

import numpy as np

import rlx

CUDA = """
extern "C" __global__ void soft_shrink(const float* x, float* y, unsigned n, float t) {
    unsigned i = (blockIdx.x + blockIdx.y * gridDim.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = copysignf(fmaxf(fabsf(x[i]) - t, 0.0f), x[i]);
}
"""
GLSL = """
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x = 256) in;
layout(buffer_reference, scalar) buffer F32 { float v[]; };
layout(push_constant, scalar) uniform Args { F32 x; F32 y; uint n; float t; };
void main() {
    uint i = (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * 256u + gl_LocalInvocationID.x;
    if (i < n) y.v[i] = sign(x.v[i]) * max(abs(x.v[i]) - t, 0.0);
}
"""


def shrink(x, *, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0).astype(x.dtype)


def gradient(node, grads):
    x, t = node.inputs[0], node.attrs["t"]
    return (rlx.where(rlx.abs(x) > t, grads[0], 0.0),)


soft_shrink = rlx.custom_op(
    "soft_shrink",
    shrink,
    infer=lambda types, attrs: types[0],
    vjp=gradient,
    cuda=CUDA,
    glsl=GLSL if shutil.which("glslangValidator") else None,
    arguments=lambda types, attrs: [float(attrs["t"])],
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    for info in rlx.devices():
        g = rlx.Graph("shrink")
        g.output("y", soft_shrink(g.input("x", x.shape), t=0.75) * 2)
        with rlx.Session(device=info.id).compile(g) as exe:
            print(f"{info.id:10} {exe.run({'x': x})['y']}  {exe.report().counts}")
    print("gradient  ", rlx.grad(lambda x: rlx.sum(soft_shrink(x, t=0.75)), device="cpu")(x))


if __name__ == "__main__":
    main()
