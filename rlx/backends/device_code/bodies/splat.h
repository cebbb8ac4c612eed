// What the kernels of Gaussian splatting share: sizes, and integers that stay within them.
#ifndef RLX_SPLAT_H
#define RLX_SPLAT_H
#define TILE 16u    // pixels along a side of a tile
#define FIELDS 9u   // numbers of a splat: x, y, the inverse covariance's xx, xy and yy, opacity, red, green, blue
#define COUNT_LIMIT 0x7fffffffu  // where counts of pairs stop

// The sum of two counts, which stops at COUNT_LIMIT; the smaller of two; and a number from a tensor, made one of 0 to
// `high`.
RLX_FN uint plus(const uint a, const uint b) { return a + b < COUNT_LIMIT ? a + b : COUNT_LIMIT; }
RLX_FN uint least(const uint a, const uint b) { return a < b ? a : b; }
RLX_FN uint bounded(const int a, const uint high) { return a < 0 ? 0u : least(UINT(a), high); }
#endif
