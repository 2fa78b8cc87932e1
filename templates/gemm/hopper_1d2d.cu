// clang-format off
// D[m,n] bf16 = sum over K-blocks b of (sum over K in b of A[m,k] * B[n,k]) * sa[b,m] * sb[n/128,b]
//
// A: FP8 [m][lda], scales fp32 [ceil(k/128)][scale_a_ld], m contiguous (1x128).
// B: FP8 [n][ldb], scales fp32 [ceil(n/128)][scale_b_ld] (128x128).
// Each K-block of 128 (or less: kPromote) is summed by the tensor core from zero and then added in
// fp32: acc = fma(partial, sa * sb, acc), in K order. The tensor core keeps about 14 bits of an FP8
// sum, which is why the partial sums are promoted, and why the scales enter inside the K loop.
//
//            n0            n0 + kBlockN          Warp roles (C warpgroups of 4 warps, then 4 more):
//         +---------------------+                  warpgroups 0 .. C-1   WGMMA, promotion, epilogue
//   m0    | warpgroup 0         |                  warp 4C, one lane     feeds the ring
//         | kBlockM / C rows    |                  warp 4C + 1           writes B's scales into it
//         +---------------------+
//         | warpgroup 1         |                Each consumer owns kBlockM / C rows as strips of 64
//         |                     |                (a tile of 16 or 32 rows is one strip, of which
//         +---------------------+                only those rows are loaded and stored).
//
// Shared memory, from a 1024-byte aligned base (offsets: cfg, from GemmSmemLayout):
//   A ring       kStages x kBlockM x 128 bytes, 128-byte swizzle
//   B ring       kStages x kBlockN x 128 bytes, 128-byte swizzle
//   D staging    kBlockM x kBlockN x 2 bytes (kTmaStore), one region a strip; or, with kSplits > 1,
//                the partial sums of this rank's columns from every rank, fp32
//   A scales     kStages x kBlockM x 4 bytes
//   B scales     kStages x 16 bytes or more: one a segment of columns that lies in one block
//   barriers     full[kStages], empty[kStages], begun, then gathered, taken (kSplits > 1); 8 bytes
//                each
//
// Barriers    arrivals                                       completes when
//   full[s]   producer (expect_tx) + scale warp + bytes      both operands and scales are here
//   empty[s]  4 warps x consumers x CTAs that share          every reader in the cluster is done
//   begun     producer                                       the kernels before this one have ended
//   gathered  thread 0 (expect_tx) + bytes                   every rank's sums of my columns are here
//   taken     4 warps x consumers x ranks                    no rank still reads what I sent it
//
// Narrow tiles: with kTailN the last columns of D are tiles of half the width (scheduler.cuh).
//
// Cluster: with kClusterN = 2 the two CTAs share an A tile (each loads half of it and multicasts),
// with kClusterM = 2 a B tile. A cluster walks tiles together, so both run the same number of
// steps; a CTA whose tile lies outside D computes on zeros and stores nothing. With kSplits > 1 the
// ranks of a cluster work on one tile, each on its range of K-blocks; then each sums its share of
// the columns over all ranks, in rank order, which is K order.
//
// Programmatic dependent launch: with kPdlEarly the next kernel of the stream may start as
// soon as this one's CTAs leave room. Of ours each waits for the end of this one before it touches
// memory, but for the weights of early_stages stages, where overlap is asked for (0 where not).
// Where it is not, those of prefetched_stages are asked into L2 meanwhile.
//
// Ladder (H200; us; numbers of one line are of one run, lines are not comparable: cards and clocks
// differ by 10 %):
//   v1   one product at a time: wait<0>, promote. Predicted within 15 % of the peers at m >= 4096.
//        64x2112x7168 12.1, 64x4096x7168 14.1, 64x7168x16384 36.2. Kept as kUnroll = 1.
//   v2   arrive on a peer's `empty` at CTA scope instead of cluster scope. Predicted: clusters stop
//        paying a MEMBAR.ALL.GPU a K-block. 4096x24576x1536, 256x128, cluster 1x2: 346 -> 269. Kept.
//   v3   kUnroll K-blocks a pass, kInFlight partial sums. Predicted -30 % a K-block where one
//        consumer works alone. 64x2112x7168 12.1 -> 9.9, 64x4096x7168 14.1 -> 11.6. Kept.
//   v4   flat promotion loop, scales of straddling tiles picked from two or three rows. Predicted:
//        tiles of 192 leave local memory. 128x24576x1536 at 128x192 95 -> 15.0. Kept.
//   v5   a product is issued as soon as one is promoted, not a group after a group. Predicted -15 %
//        a K-block. The consumer alone at 64x64: 149 ns (two a group) -> 123 ns (4 blocks, 2 in
//        flight). Kept. 256x128, kUnroll 1 -> 2: 4096x24576x1536 300 -> 288.
//   v6   K split over a cluster, sums exchanged by st.async onto the receiver's barrier. Predicted
//        64x2112x7168 9.9 -> 6.5. 10.3 -> 8.1: the rest is the first byte's latency. Kept.
//   v7   weights of the first stages before griddepcontrol.wait. Predicted -1 to -2. 64x2112x7168
//        8.7 -> 7.3, 64x7168x2048 7.0 -> 5.9, 64x4096x7168 11.5 -> 10.2. Kept (OCTILE_RUN_B_READY).
//   v8   in an ordinary launch A before B: B of all stages first holds A back by the copy engine's
//        queue. 64x7168x2048 8.0 -> 7.0. Kept.
//   v9   B's scales through shared memory: without any, 4 to 6 % less (ablation). By the producer's
//        whole warp: 64x2112x7168 11.2 -> 21.3, each TMA in a loop over lanes; dropped. By a warp of
//        their own: 4096x7168x2048 106.8 -> 103.4, 4096x24576x1536 288 -> 281. Kept.
//   v10  the producer's addresses advanced, not computed. Predicted: small tiles are bound by its
//        instructions. 64x2112x7168 unsplit 14.0 -> 11.7. Kept. The ring unrolled besides: 11.6 to
//        12.4, and 60 % more code; dropped.
//   v11  two CTAs an SM. Predicted: one's start and end hide behind the other. 64x32768x512 9.8 ->
//        8.3, 64x24576x1536 13.3 -> 13.1. Kept.
//   v12  four K-blocks of B asked for at a time, for longer DRAM bursts. 64x7168x16384 33.2 -> 33.0,
//        64x24576x1536 13.8 -> 14.1; dropped. Loads without any product take 31 to 32: the limit.
//   v13  tiles of 16 and 32 rows. Predicted: half of the loads. 16x4096x7168 11.5 -> 11.1. Kept.
//   v14  B's scales 32 K-blocks at a time, with barriers of their own. Predicted -1 %: one arrival
//        less a stage. 256x128 +1 %, 64x32 -1 %; dropped.
//   v15  two consumers take turns (named barriers; a product starts when 3/4, 1/2 or 1/4 of the
//        other's is done). Predicted -6 %: those that start together also promote together.
//        4096x4096x7168 197 -> 203, 206, 207. One of them started half a product late: 203. Dropped.
//   v16  `full` of the next stage tested before the promotion; descriptors by one addition. Predicted
//        -5 %: by stall samples that wait takes 83 of the 1165 cycles of a K-block of 256x128.
//        4096x4096x7168 197.1 -> 195.2, 8192x2112x7168 at 192x128 212 -> 209. Kept. All that the next
//        product needs before the promotion: 828 -> 834, its moves stand in the way; dropped. The
//        loop unrolled: twice -1 %, four times -2 % in a cluster, else nothing; twice is kUnroll.
//   v17  192x128, three consumers with 128 sums in 160 registers. Predicted -6 %: two keep the tensor
//        core busy for 88 % of the cycles. 8192x7168x16384 1639 -> 1522 (1503 without promotion),
//        8192x2112x7168 235 -> 209. Kept.
//   v18  in a small tile's cluster of 2 or 4, A loaded once: 64x7168x16384 33.0 -> 33.5, overlapped
//        32.5 -> 31.4; the weights beyond the ring asked into L2 before griddepcontrol.wait: nothing;
//        a shared operand loaded whole by one CTA instead of in halves: 828 -> 834. Dropped.
//   v19  ranks that split K meet in their first exchange, not before their first load. Predicted
//        -0.5. 64x2112x7168 7.98 -> 7.91, 64x7168x16384 34.3 -> 33.8. Kept.
//   v20  one walk over the tiles a role, unsigned divisions, staging addresses by XOR: for the sake of
//        its compilation (128x128 158 -> 149 ms). Predicted: nothing else. 64x32768x512 -1 to -6 %,
//        4096x7168x2048 at 256x128 -5 %; where K is long +1 to +3 %, because B's scales were no more
//        asked for 32 K-blocks ahead. Kept with that put back.
//   v21  what the walk divides by from the host, a pass of its own for early weights instead of a
//        second loop, B asked for before A within a stage. Predicted: 128x128 compiles in 4 % fewer
//        instructions, nothing else. 1069 -> 1003 million (with the statements of v22); 4096x32768x512
//        -6 % (192x128, 256x128), 8192x24576x1536 -2 to -5 %, 64x2112x7168 -3 to -6 %, 64x32 unsplit
//        +1 %: the walk stood between two tiles of a consumer. Kept. A computed stage instead of
//        StageCursor: 64x32 +30 %, 192x128 +3 %; B's scales by cp.async, from the producer's thread
//        (one role less, 917 million) +2 to +20 %, from a thread of their own +1 to +5 %; test_wait
//        instead of try_wait: 64x32 +25 %; expect_tx behind the copies: +-1 %. Dropped.
//   v22  products' registers "=f", conversion and stmatrix one statement: for compilation, the same
//        SASS. Kept where a warpgroup owns one strip (256x128 spills).
//   v23  the first product of the next tile issued before the epilogue. Predicted -4 % at k <= 2048.
//        192x128 4096x32768x512 +16 %, 4096x7168x2048 +6 %, 128x128 +4 %; all K-blocks' loop got a
//        branch, and the other consumers kept the tensor core busy before. Dropped.
//   v24  no rows outside the tensor: the last tile of rows begins earlier. 128x128 in clusters of two
//        along m took 26.9 us at 512x4096x8192, 46.2 at 384, 51.7 at 300, 58.4 at 257: 5.6 ns for
//        every 128-byte row that the copy engine had to make up. Predicted: 384 and below as 512.
//        300x4096x8192 31.7 -> 23.6 (by 64x128), 24 problems of other models 2.7 % in the mean. Kept.
//   v25  nor where m is less than a tile's rows: A's box of the rows there are. Predicted: -10 %.
//        100x4096x14336 by 128x64 28.3 -> 26.0 (of 128 rows 26.2 before), 33 by 64x112 19.1 -> 18.8.
//        Kept. B's boxes of 64 columns where n is no multiple of a tile's, predicted -5 % for
//        4096x2112x7168 (2176 columns take as long): 92.1 -> 92.6, by clusters of two 96.0 -> 98.5.
//        Dropped.
//   v26  every launch programmatic; without overlap all roles that read wait first, and let nothing
//        start before the end. Predicted -0.5. 16x4096x14336 by 16x64 20.1 -> 19.2, 64x2112x7168 1.239
//        -> 1.285 times as fast as a peer, 64x7168x2048 1.044 -> 1.089. Kept.
//   v27  128x256: a consumer loads its 64 rows of A into registers once a K-block (ldmatrix) and
//        multiplies two panels of 128 columns by them, or four of 64 with two in flight; 230
//        registers at most, no spill. Predicted -3 %, by power too: a product reads 10 % fewer bytes
//        of shared memory. Against the tuned choices, four panels, three stages, cluster 2x1:
//        4096x4096x7168 173 -> 175, 8192x4096x7168 352 -> 349, 4096x7168x16384 729 -> 740,
//        8192x7168x16384 1411 -> 1531 (+-6 %: the clock falls from 1980 to 1400 MHz within a run);
//        two panels, 4096x24576x1536 244 -> 256, 8192x32768x512 254 -> 277. Eight panels 5 to 24 %
//        behind two; D staged in halves, which makes room for a fourth stage, +2 to +4 %; half of D
//        stored while the last product runs, or no cluster: no better. Dropped.
//   v28  stream-K through a workspace, deterministic (commit a48bc88 and the next). The tiles of the
//        last whole wave and of the ragged one in runs of equal length: predicted -4 to -16 %.
//        192x128: 5000x2560x8192 177 -> 166 (162 behind the whole waves instead of before them; best
//        whole tile 167), 4096x4096x7168 185 -> 185 (181; 175), 8192x2112x7168 188 -> 199 (194; 185).
//        7 us of it are the exchange; without any, still 159, 178, 192: runs begin at any K-block, so
//        tiles side by side no longer ask L2 for the same at once. Only what fills half a wave, in up
//        to four pieces that begin together: 164, 182 and, of 8192x7168x16384, 1367 -> 1394. At the
//        power cap SMs idle in the last wave leave their power to the others. In a search on a warm
//        card it won 1 of 12 products of 1000 to 8192 rows, by 2 and 5 %. Dropped.
//   v29  L2 sectors of 128 bytes of a weight that is read once, not 256. Predicted -3 % (loads without
//        products: 7168x16384 30.2 -> 28.7, 32768x14336 111.3 -> 107.7). 64 and 128 rows -0.8 % in the
//        mean of 16, 4096 and 8192 rows +0.4 %: kept up to 256 rows. B shared by a cluster of two
//        64-row tiles, predicted -5 % at 128 rows for half of L2's reads: 128x7168x16384 by 64x112
//        32.8 -> 33.2, 128x4096x7168 by 64x64 10.8 -> 11.3. Dropped.
//   v30  the next kernel may start beside this one (kPdlEarly). By ablation 64 tokens take,
//        beyond reading their weights, 0 to 0.3 us for A (7168x16384: 2.6), 0.2 to 0.7 for products,
//        0.5 to 1.3 for the epilogue, nothing for scales; the rest is one kernel's end and the next
//        one's start. Predicted -0.4: 64x2112x7168 6.90 -> 6.34, 64x24576x1536 12.1 -> 11.6,
//        64x32768x512 7.19 -> 6.66, 64x7168x2048 6.10 -> 5.74. But its CTAs land where SMs become
//        free: of a grid of 75 on 132 SMs side by side (64x7168x16384 by 64x96 32.9 -> 43.4), or
//        apart where they read the same of B (128x4096x7168 10.9 -> 11.9, 4096x7168x2048 93 -> 95).
//        So the search decides. Clusters of two 64-row tiles, which keep B's readers together:
//        128x4096x7168 10.7, 128x7168x2048 6.70 -> 6.41. Rings of 16 stages, not 12: 64x4096x7168
//        9.76 -> 9.60. Searched anew, 144 products of 1 to 256 tokens take 4.6 to 7.4 % less in the
//        mean of a token count. Kept. A shared by clusters of two narrow tiles: 64x4096x7168 10.1 ->
//        11.3, 64x7168x16384 32.9 -> 33.4; dropped. All quantisers started so: tensors of 128 rows
//        -0.1 in the median and +0.7 in the 90th percentile; dropped.
//   v31  the host's share. A grid of tiles rounded up to whole clusters had a cluster too few where
//        a row of tiles is no whole number of them, which then ran behind another: 300x4096x8192 by
//        128x96 in clusters of two columns 41.2 -> 25.8. (In v24 384 and 300 rows by clusters of
//        two along m missed clusters too: not all of that was rows made up.) Weights asked for
//        before the kernel before has ended (v7) by as many bytes as suit, not by the whole ring,
//        behind which A came late: 8 to 120 KB a CTA tried. 64x2112x7168, where A is most of what
//        is read, loses by any (6.27 without, 6.47 with 8 KB, 7.63 with all); 64x7168x2048 5.62
//        with all, 5.27 with 80 KB; 128x24576x1536 13.7, 12.6 with 32 KB; 128x7168x2048 6.69, 6.25.
//        Predicted: never behind a launch without; held but for two that share B, whose launches
//        are the same either way and were 5 and 9 % apart in one run, 0 and 2 in another. Twelve
//        products of 64 and 128 rows beside a peer that overlaps too 1.215 -> 1.279 (1.259
//        without). Kept.
//   v32  a scale of B for every segment of columns that lies in one block of 128, written into the
//        stage by the scales' warp; tiles whose width does not divide 128 picked between two or
//        three rows' scales behind the wait for a product (v4; 112 columns: 24 of the 254
//        instructions of two K-blocks). Predicted: -3 % where compute bounds, nothing for few
//        tokens. 128x160 4096x7168x2048 97.8 -> 95.8, 5000x2560x8192 167.4 -> 163.8; 128x192
//        4096x7168x2048 97.4 -> 95.6, 8192x4096x7168 360 -> 353; 128x112 2048x7168x2048 55.8 ->
//        54.7, 128x96 in clusters 58.5 -> 56.4; few tokens -0.3 to +0.9 %. Kept. The K-blocks of
//        neighbouring tiles in rotated order, so that they ask L2 for other rows of A at a time:
//        predicted -3 % at 64 and 128 rows; +0.5 to +29 %: L2 seems to answer those that ask for the
//        same at once together. Dropped. 128x176, which divides 2112 columns and needs 8 % fewer
//        rounds at 8192 rows: 185.5 (192x128) -> 189.6.
//   v33  ptxas by -O1, for the sake of its compilation (5 to 12 % less; -O2 gives -O3's code).
//        Predicted: slower everywhere. Two consumers with products in flight: 128x128 -1.1 to +0.1
//        %, 128x112 -1.5, 128x96 -0.5 and +1.2, 128x64 -10 with four K-blocks a pass, +2.2 with two.
//        One product at a time, or one consumer: 0 to +4.4 % (in a search 192x128 in a cluster,
//        unrolled, was 12 behind the best, by -O3 on another card 5), 64x80 -5. Kept for the first,
//        which are most large products' choice.
//   v34  tiles in bands of columns, across which the index runs fastest, beside the bands of 8 rows
//        of all versions before: neighbours in the order then read the same 192 rows of A, not the
//        same 128 columns of B. Predicted -1 %. 192x128 on a card that was not yet warm, eight rows
//        -> so many columns: 8192x2112x7168 184.3 -> 178.7 (17, all), 4096x2112x7168 92.5 -> 91.3,
//        8192x24576x1536 462 -> 454 (16), 8192x32768x512 246.5 -> 241.6 (16), 8192x7168x16384 1361
//        -> 1340 (12; 16 1348), 8192x7168x2048 178.4 -> 174.7 (56, all). 128x128 in clusters of two
//        along m: 8 rows of clusters and 16 columns the same, others 1 to 6 % slower. Kept: columns
//        for tall tiles, and six rasters tried for the fastest two of a search.
//   v35  the weights that v31 loads before the kernel before has ended, asked into L2 where overlap
//        is not asked for, by a thread of their own until the wait returns: what is written there
//        later is what L2 has. Predicted: half of what overlap gains, -1 to -5 %. 64x24576x1536 11.5
//        -> 10.9, 64x32768x512 6.66 -> 6.37, 128x32768x512 8.13 -> 7.74, 64x7168x2048 5.74 -> 5.54,
//        128x24576x1536 13.2 -> 12.8; twelve products of 64 and 128 rows -2.0 % in the mean, 17 more
//        of 1 to 512 rows -1.1 %, none above +0.4 %; behind a kernel that lets nothing start early
//        -0.2 %. Kept. The same stages whether the wait has returned or not: 128x7168x2048 +7 %,
//        behind such a kernel up to +8 %. A as well, every CTA the rows it will load: +5 to +20 %;
//        each a share of A: nothing, but -1.5 % at k = 512; B's scales: nothing. Dropped.
//   v36  for the sake of its compilation: the early pass (v7) only where anything may be early, the
//        walk's divisions by the upper half of a 32-bit product, a serial consumer's wait and the
//        test that spares it in one statement of assembly, no loop entered by K-blocks that may be
//        none where there is one, a product's text for one interval. Predicted: 128x128 -8 %, nothing
//        else. 1,165 -> 1,083 million instructions with NVRTC's start, on the GPU's host 157 -> 148
//        ms; 16 products of 128 to 8192 rows +0.3 % in the mean (192x96 1500x3072x4096 +2.0, 128x160
//        5000x2560x8192 -0.7). Kept. Every wait so: two consumers with products in flight, whose SASS
//        differs by two or three uniform instructions between a product's fence and its start, +3 to
//        +6 %; a shift for the division of K by 128, +3 to +4 there (with one, -4 million); the last
//        promotion of a pass and of a K-block left by the same instructions (-10 % of a compile), +1
//        to +5; four K-blocks a pass of 128x128, which drains half as often, +3 to +4; a product in
//        flight from one pass to the next: ptxas serialises them (C7514). Dropped.
//   v37  the last columns in tiles of half the width, which even out a ragged last round (kTailN).
//        A prototype of two kernels, the second beside the end of the first, took 4.4 % less of
//        8192x2112x7168. Predicted, by rounds of 192x128 (6 -> 5.5): -5 % there, at the power cap.
//        223.4 -> 212.9; 5000x2112x7168 145.5 -> 134.1, 1500x7168x2048 48.7 -> 45.0, 1500x7168x16384
//        323 -> 296, 8192x7168x16384 1513 -> 1487, 6000x9216x4096 373 -> 368; 8192x4096x4096 and
//        x1536, 5000x7168x2048 0 to +1 %; 3000x32768x512, of four K-blocks, +2.8 %. Kept for 192x128
//        and left to search and model. By 128x128, alone and one product at a time, -5.6 % of
//        8192x2112x7168, but 5 % behind. Tiles of 56 and 72 columns, by which 7168 and 9216 make 128:
//        128x7168x16384 by 128x56 39.1 -> 44.4, 64x7168x16384 by 64x56 34.2 -> 34.0, 64x7168x2048
//        +3.7 %, 64x9216x4096 by 64x72 the same; half an SM for a CTA, so that the next kernel's
//        fits beside it: +9 to +38 %, two of one kernel share an SM while others have none. Dropped.
//        What 128x7168x16384 takes, 35.9: without its exchange 33.9, its products 34.8, A 35.1,
//        products and A 32.6, all three 30.6.
// clang-format on
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/output.cuh"
#include "gemm/producer.cuh"
#endif

namespace gemm {

__device__ __forceinline__ void consume(const SharedMemory& smem, const TensorMap* d_map, u16* d,
                                        i64 ldd, const Extents& e, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const Consumer self(smem);
  const KRange range = k_range(e.k_blocks(), rank);
  Ring ring;
  bool first_tile = true;
  u32 phase = 0;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, e, rank, m0, n0);
    if constexpr (kHasTail) {
      if (tiles.is_narrow()) {
        float acc[kStrips][kNarrowAccumulators] = {};
        accumulate(self, ring, range.last - range.first, acc);
        store_tile(self, d_map, d, ldd, e, m0, n0, acc);
        continue;
      }
    }
    float acc[kStrips][kAccumulators] = {};
    accumulate(self, ring, range.last - range.first, acc);
    if constexpr (cfg::kSplits > 1) {
      exchange(self, rank, first_tile, phase, acc);
      first_tile = false;
      store_share(self, rank, d, ldd, e, m0, n0);
      phase ^= 1;
    } else {
      store_tile(self, d_map, d, ldd, e, m0, n0, acc);
    }
  }
  // Shared memory must outlive the copy engine's reads of it.
  if (cfg::kTmaStore && thread % 128 == 0) tma::wait_stores_read<0>();
}

__device__ __forceinline__ void init_barriers(const SharedMemory& smem) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < cfg::kStages; ++stage) {
      mbarrier::init(smem.full(stage), 2);
      mbarrier::init(smem.empty(stage), 4 * cfg::kConsumerWarpgroups * kShareSize);
    }
    mbarrier::init(smem.begun(), 1);
    if constexpr (cfg::kSplits > 1) {
      mbarrier::init(smem.gathered(), 1);
      mbarrier::init(smem.taken(), 4 * cfg::kConsumerWarpgroups * cfg::kSplits);
    }
    mbarrier::fence_init();
  }
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else {
    // Ranks that split K meet in the first exchange: until then no one needs another's barriers.
    if constexpr (cfg::kSplits > 1) cluster_arrive();
    __syncthreads();
  }
}

// Before a CTA ends: its shared memory must outlive its peers' multicasts and arrivals. Ranks that
// split one tile and no more owe each other nothing after it: each has waited for all that it gets.
__device__ __forceinline__ void leave_cluster(const Extents& e) {
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else if constexpr (cfg::kSplits > 1) {
    Scheduler tiles = make_scheduler(e);
    tiles.advance();
    if (!tiles.valid()) return;
    if (threadIdx.x >= kConsumerThreads) cluster_wait();
    cluster_sync();
  }
}

}  // namespace gemm

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kCtasPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ TensorMap a_map,
                       const __grid_constant__ TensorMap b_map,
                       const __grid_constant__ TensorMap d_map, const float* scale_a,
                       const float* scale_b, void* d, i64 scale_a_ld, i64 scale_b_ld, i64 ldd,
                       int m, int n, int k, int early_stages, int prefetched_stages,
                       gemm::TileOrder order) {
  extern __shared__ __align__(1024) u8 tile_memory[];
  const gemm::SharedMemory smem{shared_address(tile_memory)};
  const gemm::Extents extents{m, n, k, order};
  const int rank = gemm::kClusterSize > 1 ? static_cast<int>(cluster_rank()) : 0;
  gemm::init_barriers(smem);
  if constexpr (cfg::kPdlEarly) let_next_kernel_start();

  if (threadIdx.x >= cfg::kConsumerWarpgroups * 128) {
    release_registers<cfg::kProducerRegisters>();
    const gemm::Source from{&a_map, &b_map, scale_a, scale_b, scale_a_ld, scale_b_ld};
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
    if (warp == cfg::kConsumerWarpgroups * 4) {
      if (elect_one()) {
        tma::prefetch_map(&a_map);
        tma::prefetch_map(&b_map);
        gemm::produce(smem, from, extents, rank, early_stages);
      }
      __syncwarp();
    } else if (warp == cfg::kConsumerWarpgroups * 4 + 1) {
      gemm::publish_scales(smem, from, extents, rank, early_stages);
      __syncwarp();
    } else if (cfg::kPdlEarly && warp == cfg::kConsumerWarpgroups * 4 + 2) {
      if (elect_one()) gemm::prefetch_weights(smem, from, extents, rank, prefetched_stages);
      __syncwarp();
    }
  } else {
    acquire_registers<cfg::kConsumerRegisters>();
    gemm::consume(smem, &d_map, static_cast<u16*>(d), ldd, extents, rank);
  }
  gemm::leave_cluster(extents);
}
