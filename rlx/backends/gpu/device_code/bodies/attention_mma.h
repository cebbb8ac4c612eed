// Attention by matrix instructions: attention_matrix.h with one of three ways to keep the scores, as SCORES says. GLSL
// has no registers of known layout, and keeps them in shared memory.
#include "bodies/attention_matrix.h"
#ifdef __cplusplus
#if SCORES == 0
#include "bodies/attention_softmax.h"
#include "bodies/attention_registers.h"
#elif SCORES == 1
#include "bodies/attention_opaque.h"
#else
#include "bodies/attention_softmax.h"
#include "bodies/wgmma.h"
#include "bodies/attention_wgmma.h"
#endif
#else
#include "bodies/attention_opaque.h"
#endif
