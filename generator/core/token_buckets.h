// Buckets of token counts. All counts of one bucket share a kernel, which is chosen for the largest
// of them.
#pragma once

#include <cstdint>

namespace octile {

// Upper edges are 1, 2, 4, ... 128, from there two in every doubling (192, 256, 384, ... 1024), and
// then four: 1280, 1536, 1792, 2048, 2560, ... Fewer buckets cost too much far below an edge. With
// one in a doubling, 300x4096x8192 had 0.669 of a peer's speed on an H200. With two,
// 5000x2560x8192 had 0.842: its kernel suits 6144 rows, of which it makes 4.85 waves.
inline constexpr int kTokenBuckets = 226;

// Returns the bucket of a token count of at least 0; counts 0 and 1 share bucket 0.
int bucket_of(std::int64_t tokens);

// Returns the largest token count of a bucket: the largest std::int64_t for the last bucket.
std::int64_t bucket_upper(int bucket);

}  // namespace octile
