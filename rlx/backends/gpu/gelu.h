// gelu for trees whose results end in 16 bits, within 2^-17 as the functions of half32.h are.
#include "half32.h"
#ifndef RLX_GELU_H
#define RLX_GELU_H

// x Phi(x). The normal distribution's lower tail is Phi(-a) = 2^(a q(a) - 1), q fitted up to 7, where it is 1e-12, a
// sixteenth as closely from 5.4 on, where an f16 is 2^-24 or 0. Beyond, the power goes to 0 faster than Phi.
RLX_FN float p_gelu_h(const float x) {
    const float a = RLX_ABS(x);
    float q = -1.777845569e-06f;
    q = RLX_MAD(q, a, 6.045567352e-05f);
    q = RLX_MAD(q, a, -9.214234888e-04f);
    q = RLX_MAD(q, a, 8.471323177e-03f);
    q = RLX_MAD(q, a, -5.388241634e-02f);
    q = RLX_MAD(q, a, -4.585474432e-01f);
    q = RLX_MAD(q, a, -1.151213050e+00f);
    const float tail = RLX_FLUSHED_EXP2(RLX_MAD(q, a, -1.0f));
    const float rest = 1.0f - tail;
    return x * (x < 0.0f ? tail : rest);
}
#endif
