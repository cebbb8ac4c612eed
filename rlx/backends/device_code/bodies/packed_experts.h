// Which rows of x a group multiplies by which packed matrix. GROUPED: rows belong to experts in their order, the first
// sizes[0] of them to expert 0, and so on (sizes below 0 count as 0, and a group ends with the rows), and rows after the
// last expert's give 0; else all belong to the one matrix.
struct Share {
    uint first, rows, expert;
};

RLX_FN uint max_experts(const uint experts) { return GROUPED ? experts : 1u; }

// How many shares of up to `many` rows there are at most: each expert may have one that is not full, and so may the rows
// after the last expert's.
RLX_FN uint shares_of(const uint m, const uint many, const uint experts) {
    return (m + many - 1u) / many + (GROUPED ? experts + 1u : 0u);
}

// The share of the group in place `slot`, of up to `many` rows; none for a place beyond the last share.
RLX_FN Share share_of(PTR(i32) sizes, const uint slot, const uint m, const uint many, const uint experts) {
    Share made;
    made.first = slot * many;
    made.rows = made.first >= m ? 0u : m - made.first < many ? m - made.first : many;
    made.expert = 0u;
    if (!GROUPED) return made;
    made.rows = 0u;
    uint start = 0u, seen = 0u;
    for (uint e = 0u; e <= experts; e++) {
        uint size = m - start;
        if (e < experts) {
            const int given = LOAD(i32, sizes, e);
            const uint asked = given > 0 ? uint(given) : 0u;
            size = asked < size ? asked : size;
        }
        const uint shares = (size + many - 1u) / many;
        if (slot < seen + shares) {
            const uint before = (slot - seen) * many;
            made.first = start + before;
            made.rows = size - before < many ? size - before : many;
            made.expert = e;
            return made;
        }
        seen += shares;
        start += size;
    }
    return made;
}
