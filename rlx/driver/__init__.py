"""The driver layer: memory plans, the arena contract, and the protocols that a backend implements.

`rlx.driver.memory.planner` makes the plans; the first program that is compiled imports it.
"""

from rlx.driver.device import Backend as Backend
from rlx.driver.device import Buffer as Buffer
from rlx.driver.device import BuildOptions as BuildOptions
from rlx.driver.device import Call as Call
from rlx.driver.device import Device as Device
from rlx.driver.device import DeviceInfo as DeviceInfo
from rlx.driver.device import Dispatch as Dispatch
from rlx.driver.device import Executable as Executable
from rlx.driver.device import Limits as Limits
from rlx.driver.device import Mark as Mark
from rlx.driver.memory.arena import DeviceArena as DeviceArena
from rlx.driver.memory.buffer_arena import BufferArena as BufferArena
from rlx.driver.memory.plan import CONST as CONST
from rlx.driver.memory.plan import LiveRange as LiveRange
from rlx.driver.memory.plan import MemoryPlan as MemoryPlan
from rlx.driver.memory.plan import Slot as Slot
from rlx.driver.memory.plan import align as align
from rlx.driver.memory.typed import read_typed_to_f32 as read_typed_to_f32
from rlx.driver.memory.typed import write_typed_from_f32 as write_typed_from_f32
