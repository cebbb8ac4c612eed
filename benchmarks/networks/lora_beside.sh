#!/bin/sh
# The LoRA step of another tree beside that of this one, and torch's where PEFT is installed: first that the gradients
# of joined products are right on the device.
#
#     BASE=FOLDER sh benchmarks/networks/lora_beside.sh [--steps 10 …]
set -e
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here"
PYTHONPATH=. python -c "from tests.passes import test_join_narrow as t
t.test_devices_give_the_gradients_of_joined_products('cuda')
print('the gradients of joined products are right')"
cp benchmarks/networks/lora.py "$BASE/benchmarks/networks/lora.py"
echo "base"
(cd "$BASE" && python benchmarks/networks/lora.py --device cuda --alone --rounds 2 "$@")
echo "this tree"
python benchmarks/networks/lora.py --device cuda --rounds 2 "$@"
