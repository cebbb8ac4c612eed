// Where element `id` of a window lies in the tensor around it. meta: for each axis, the last first, its size in the
// window, its stride in the tensor and how far its start may go; before them the units that lie in a row. Starts are
// clamped. `axes` counts them; I is the dtype of the starts.
#include "indices.h"

RLX_FN uint around(const uint id, PTR(i32) starts, PTR(u32) meta, const uint axes) {
    const uint row = LOAD(u32, meta, 0u);
    uint at = id % row, rest = id / row;
    for (uint k = 0u; k < axes; k++) {
        const uint size = LOAD(u32, meta, 3u * k + 1u), stride = LOAD(u32, meta, 3u * k + 2u);
        const int limit = int(LOAD(u32, meta, 3u * k + 3u));
        const int start = RLX_JOIN(LOAD_PLACE_, I)(starts, axes - 1u - k);
        const uint first = uint(start < 0 ? 0 : start > limit ? limit : start);
        at += (first + rest % size) * stride;
        rest /= size;
    }
    return at;
}
