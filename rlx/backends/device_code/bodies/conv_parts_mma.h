// What conv_mma.h computes, of operands in f32 that are sums of PARTS parts in bf16: see there.
#define IN_PARTS
#define T bf16
#include "conv_mma.h"
