// How many elements a mean over [start, start + k) counts along an axis of n.
RLX_FN uint counted(const uint start, const uint k, const uint n, const uint before, const uint after) {
    const int low = int(start), high = low + int(k);
    const int least = PADDING_COUNTS ? -int(before) : 0, most = PADDING_COUNTS ? int(n + after) : int(n);
    return uint((high < most ? high : most) - (low > least ? low : least));
}
