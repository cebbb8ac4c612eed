// The mean of a column of columns.h as two floats (see row_mean.h): near the first element and the mean of what the
// first sixteenth differs from it by; then the mean of what is left.
#define COLUMN_MEAN(VALUE, origin, start, n, len, share, mean, rest)                                          \
    const uint most = (n + 15u) / 16u;                                                                        \
    const uint few = len < most ? len : most;                                                                 \
    for (uint j = start; j < few; j += ALONG) mean += VALUE(j) - origin;                                      \
    mean = origin + column_sum(mean) * p_recip_f(float(most));                                                \
    for (uint j = start; j < len; j += ALONG) rest += VALUE(j) - mean;                                        \
    rest = column_sum(rest) * share;
