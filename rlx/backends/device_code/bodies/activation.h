// The activation applied to a product's result. ACTIVATION: 0 none, 1 relu, 2 gelu, 3 gelu by tanh, 4 silu, 5 tanh, 6
// sigmoid.
#include "prims.h"

RLX_FN float activated(const float x) {
    if (ACTIVATION == 1u) return p_max_f(x, 0.0f);
    if (ACTIVATION == 2u) return 0.5f * x * (1.0f + p_erf_f(x * 0.70710678118654752f));
    if (ACTIVATION == 3u) {
        const float inner = 0.79788456080286536f * (x + 0.044715f * (x * x * x));
        return 0.5f * x * (1.0f + p_tanh_f(inner));
    }
    if (ACTIVATION == 4u) return p_div_f(x, 1.0f + p_exp_f(-x));
    if (ACTIVATION == 5u) return p_tanh_f(x);
    if (ACTIVATION == 6u) return p_recip_f(1.0f + p_exp_f(-x));
    return x;
}
