#!/usr/bin/env bash
# Claim: torch.export's ExportedProgram.run_decompositions() drops detach() and torch.no_grad(), so that the program's
#   gradients are no longer the module's.
# A good guess says: decompositions replace operators by others of the same meaning; where no gradient passes stays so,
#   as it does in torch.export.export's own result, whose graph has aten.detach and a region for no_grad.
# What is so (torch 2.13.0): export().module() has the module's gradient. After run_decompositions() detach is an alias
#   through which gradients pass, the no_grad region is inlined, and nothing warns. Values stay equal, so that a
#   comparison of outputs does not notice.
# Why it matters: runtimes that read the core ATen graph and train it (stop-gradient targets, straight-through
#   estimators, frozen teachers) learn something else. A reader has to mark the places before it decomposes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0" "numpy==2.3.5" 2>/dev/null ||
    venv/bin/pip install -q "torch==2.13.0" "numpy==2.3.5"
cat >see.py <<'P'
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x):
        y = x * self.w
        with torch.no_grad():
            scale = (x * self.w).sum()
        return (y * y.detach() * scale).sum()


x = torch.tensor([3.0, 5.0])
net = Net()
exported = torch.export.export(net, (x,))
decomposed = exported.run_decompositions()
print("torch", torch.__version__)
values, gradients = {}, {}
for name, module in (("the module", net), ("export", exported.module()), ("run_decompositions", decomposed.module())):
    weight = dict(module.named_parameters())["w"]
    weight.grad = None
    out = module(x)
    out.backward()
    values[name], gradients[name] = out.item(), weight.grad.tolist()
    print(f"{name:19} value {out.item():8.1f}   gradient of w {weight.grad.tolist()}")
assert len(set(values.values())) == 1, values
assert gradients["export"] == gradients["the module"], gradients
assert gradients["run_decompositions"] != gradients["the module"], "run_decompositions now keeps detach and no_grad"
print("equal values, another gradient after run_decompositions")
P
venv/bin/python see.py
