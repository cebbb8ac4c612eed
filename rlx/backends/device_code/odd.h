// Integers to the f32 on either side whose last bit is 1, unless an f32 holds them, as p_odd_d_f of prims64.h does for f64:
// a later rounding to fewer bits sees on which side of a tie they lie. Bits that the f32 has no room for become one before
// the conversion, which then rounds nothing: not every device rounds it to nearest even.
#include "prelude.h"
#ifndef RLX_ODD_H
#define RLX_ODD_H

RLX_FN float p_odd_i_f(const int x) {
    const int rest = x & 255;
    const bool near = rest == 0 || uint(x) + 0x1000000u <= 0x2000000u;
    return float(near ? x : x - rest + 128);
}
RLX_FN float p_odd_l_f(const rlx_i64 x) {
    const int high = int(x >> 32u);
    const bool far = (high >> 15) != (high >> 31);  // beyond 2^47
    const uint low = uint(x);
    const uint middle = (low >> 16) | uint(high) << 16;
    const int wide = far ? high | (low != 0u ? 1 : 0) : int(middle) | ((low & 0xffffu) != 0u ? 1 : 0);
    return high == int(low) >> 31 ? p_odd_i_f(int(low)) : p_odd_i_f(wide) * (far ? 4294967296.0f : 65536.0f);
}
#endif
