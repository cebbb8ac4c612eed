// attention_dkv.h by matrix instructions, in one of three forms, which SCORES names: scores stay in registers, and each
// warp multiplies for itself (0), or four together (2); or they go through shared memory (1), since GLSL does not say
// which thread holds which element of a matrix.
#ifdef __cplusplus
#if SCORES == 1
#include "bodies/attention_dkv_opaque.h"
#else
#if SCORES == 0
#include "bodies/attention_slopes_registers.h"
#else
#define HOLDS_LEFT (WIDE == 4)
#include "bodies/attention_slopes_wgmma.h"
#endif
#include "bodies/attention_dkv_registers.h"
#endif
#else
#include "bodies/attention_dkv_opaque.h"
#endif
