"""The README's example: a loop and its gradient on every device, beside the same in float64; then a graph."""

import argparse

import numpy as np

import rlx

argparse.ArgumentParser(description=__doc__).parse_args()


def swing(spring, friction):
    """Where a weight on a spring is at 100 times: a loop, which runs on the device."""

    def tick(state, _):
        place, speed = state
        speed = speed - 0.1 * (spring * place + friction * speed)
        place = place + 0.1 * speed
        return (place, speed), place

    return rlx.scan(tick, (rlx.ones_like(spring), rlx.zeros_like(spring)), length=100)[1]


def miss(spring, friction, seen):
    return rlx.mean((swing(spring, friction) - seen) ** 2)


exact = rlx.jit(swing, device="cpu")(np.float64(1.7), np.float64(0.2))  # the judge: the same function in float64
for device in rlx.devices():
    curve = rlx.jit(swing, device=device.id)(np.float32(1.7), np.float32(0.2))
    slope = rlx.grad(miss, device=device.id)  # backwards through the loop, on the device too
    guess = np.float32(1.2)
    for _ in range(20):
        guess -= np.float32(0.3) * slope(guess, np.float32(0.2), curve)
    print(f"{device.id}: {np.abs(curve - exact).max():.0e} from float64; the curve's spring is {guess:.3f}")

graph = rlx.Graph("swing")  # the same by hand: planned into one block of memory, compiled, run by name
graph.output("places", swing(graph.input("spring", ()), graph.input("friction", ())))
with rlx.Session(device="auto").compile(graph) as program:  # or "cpu", "vulkan", "vulkan:1", "cuda:0"
    print(program.run({"spring": 1.7, "friction": 0.2})["places"][:4])
    print(program.report())  # the plan, and how each node ran: natively, decomposed, or on the host
