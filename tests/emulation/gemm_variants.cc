#include "tests/emulation/gemm_variants.h"

#include <cstdio>
#include <cstdlib>
#include <variant>

#include "generator/core/error.h"
#include "generator/families.h"

namespace octile::emulation {
namespace {

// The problems, each with configurations that it admits. Stages are few, so that rings wrap.
struct Configs {
  const char* problem;
  std::vector<const char*> texts;
};

const std::vector<Configs>& lists() {
  static const std::vector<Configs> all{
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
       {
           // few rows
           "tile=16x16x128 stages=3 wg=1 store=direct pdl=early",
           "tile=16x32x128 stages=4 wg=1 unroll=2 inflight=2 store=direct splits=4 pdl=early",
           "tile=16x64x128 stages=4 wg=1 raster=1 pdl=early",
           "tile=16x128x128 stages=3 wg=1 store=direct splits=8 pdl=early",
           "tile=32x48x128 stages=5 wg=1 unroll=4 inflight=4 ctas=2",
           "tile=32x64x128 stages=4 wg=1 unroll=2 store=direct splits=3",
           "tile=32x112x128 stages=4 wg=1 unroll=2 inflight=2 raster=3n",
           // 64 rows
           "tile=64x32x128 stages=5 wg=1 store=direct ctas=2",
           "tile=64x48x128 stages=5 wg=1 unroll=4 inflight=2 raster=2",
           "tile=64x64x128 stages=4 wg=1 unroll=4 inflight=4 pdl=early",
           "tile=64x64x128 stages=4 wg=1 cluster=2x1 pdl=early",
           "tile=64x80x128 stages=4 wg=1 unroll=2 inflight=2 ctas=2",
           "tile=64x96x128 stages=3 wg=1 store=direct splits=2 pdl=early",
           "tile=64x128x128 stages=4 wg=1 unroll=2 inflight=2 store=direct splits=4",
           "tile=64x176x128 stages=3 wg=1",
           "tile=64x208x128 stages=3 wg=1 raster=2n",
           // 128 rows
           "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2",
           "tile=128x128x128 stages=4 wg=1 store=direct splits=6 pdl=early",
           "tile=128x96x128 stages=5 wg=2 cluster=2x1 pdl=early",
           "tile=128x144x128 stages=3 wg=2 cluster=1x2",
           "tile=128x192x128 stages=3 wg=2 cluster=1x2 raster=2n",
           "tile=128x160x128 stages=3 wg=2 raster=3",
           // more
           "tile=192x128x128 stages=4 wg=3 tail_n=64",
           "tile=192x128x128 stages=3 wg=3 tail_n=64 raster=2n",
           "tile=192x96x128 stages=3 wg=3 cluster=2x1 unroll=2",
           "tile=256x128x128 stages=3 wg=2",
           "tile=256x96x128 stages=3 wg=2 cluster=2x1 inflight=2",
           "tile=256x96x128 stages=3 wg=2 cluster=1x2",
       }},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=32",
       {
           "tile=16x128x128 stages=3 wg=1 store=direct splits=2 pdl=early promote=32",
           "tile=128x96x128 stages=3 wg=2 inflight=2 promote=32",
       }},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=64",
       {
           "tile=32x64x128 stages=4 wg=1 pdl=early promote=64",
           "tile=128x96x128 stages=3 wg=2 unroll=2 inflight=2 promote=64",
           "tile=128x112x128 stages=3 wg=2 inflight=1 promote=64",
       }},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e5m2:128x128 d=bf16 acc=0 promote=128",
       {"tile=128x64x128 stages=4 wg=2 unroll=2 inflight=2"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
       {"tile=64x64x128 stages=4 wg=1 store=direct splits=2"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128 b=e5m2:128x128 d=bf16 acc=0 promote=128",
       {"tile=128x80x128 stages=4 wg=2 pdl=early"}},
      // other outputs
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=fp16 acc=0 promote=128 bias=bf16 "
       "sentry=squares",
       {"tile=128x128x128 stages=3 wg=2", "tile=64x32x128 stages=3 wg=1 store=direct splits=3"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=fp32 "
       "sentry=1",
       {"tile=192x128x128 stages=4 wg=3 tail_n=64",
        "tile=32x16x128 stages=4 wg=1 store=direct pdl=early"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=1 promote=128 sentry=squares",
       {"tile=128x96x128 stages=4 wg=2 unroll=2 inflight=2 store=direct"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=64 bias=fp32",
       {"tile=128x48x128 stages=4 wg=1 store=direct promote=64",
        "tile=128x64x128 stages=4 wg=2 promote=64"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=1 promote=128 bias=bf16 "
       "sentry=1",
       {"tile=64x64x128 stages=4 wg=1 store=direct splits=2 pdl=early"}},
      // FP8 with scales of its own
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
       {"tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2",
        "tile=16x128x128 stages=4 wg=1 pdl=early", "tile=64x128x128 stages=3 wg=1",
        "tile=128x128x128 stages=3 wg=2 cluster=1x2", "tile=192x128x128 stages=3 wg=3"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e5m2:1x128:pow2 acc=0 promote=128 "
       "bias=bf16 sentry=squares",
       {"tile=128x128x128 stages=3 wg=2", "tile=32x128x128 stages=4 wg=1"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128:pow2 acc=0 promote=64 "
       "sentry=1",
       {"tile=64x128x128 stages=4 wg=1 cluster=2x1 pdl=early promote=64"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=e5m2:1x128 acc=0 promote=128 "
       "sentry=squares",
       {"tile=256x128x128 stages=3 wg=2"}},
      // packed exponents
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e4m3:128x128 d=bf16 acc=0 promote=128",
       {"tile=128x96x128 stages=4 wg=2 unroll=2 inflight=2 cluster=1x2",
        "tile=64x64x128 stages=3 wg=1 store=direct splits=3",
        "tile=192x128x128 stages=4 wg=3 tail_n=64"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:ue8m0x4 b=e4m3:1x128:ue8m0x4 d=fp32 acc=1 promote=128",
       {"tile=192x112x128 stages=3 wg=3 store=direct", "tile=256x96x128 stages=3 wg=2 scales=held",
        "tile=64x64x128 stages=3 wg=1 store=direct splits=2"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e5m2:1x128:ue8m0x4 d=fp32 acc=0 promote=128",
       {"tile=64x80x128 stages=3 wg=1 store=direct", "tile=128x96x128 stages=3 wg=2"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:ue8m0x4 b=e5m2:1x128 d=fp32 acc=0 promote=64 sentry=1",
       {"tile=128x96x128 stages=3 wg=2 cluster=2x1 promote=64"}},
      // MX
      {"gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=32",
       {"tile=128x128x128 stages=3 wg=2 promote=32",
        "tile=128x96x128 stages=4 wg=2 promote=32 raster=2n",
        "tile=16x64x128 stages=4 wg=1 store=direct splits=4 pdl=early promote=32",
        "tile=32x16x128 stages=3 wg=1 store=direct pdl=early promote=32",
        "tile=64x48x128 stages=3 wg=1 promote=32"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32",
       {"tile=128x128x128 stages=3 wg=2 promote=32",
        "tile=64x96x128 stages=3 wg=1 store=direct splits=2 promote=32",
        "tile=16x32x128 stages=4 wg=1 store=direct pdl=early promote=32"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x32 b=e4m3:32x32 d=fp16 acc=0 promote=32 bias=fp32 "
       "sentry=squares",
       {"tile=128x64x128 stages=3 wg=2 promote=32", "tile=32x64x128 stages=3 wg=1 promote=32"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32",
       {"tile=128x128x128 stages=3 wg=2 promote=32", "tile=128x64x128 stages=3 wg=1 promote=32"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e5m2:1x32 d=fp32 acc=1 promote=32 bias=bf16 sentry=1",
       {"tile=64x64x128 stages=3 wg=1 store=direct splits=2 promote=32"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=1 promote=32 sentry=squares",
       {"tile=128x64x128 stages=3 wg=2 store=direct promote=32"}},
      // one scale a row or a tensor, and sums of several K-blocks on the tensor core
      {"gemm m=? n=7168 k=7168 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none",
       {"tile=128x256x128 stages=3 wg=2 promote=none",
        "tile=256x128x128 stages=3 wg=2 cluster=1x2 promote=none",
        "tile=192x144x128 stages=3 wg=3 promote=none",
        "tile=16x64x128 stages=4 wg=1 store=direct splits=4 pdl=early promote=none",
        "tile=64x64x128 stages=4 wg=1 ctas=2 promote=none"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none",
       {"tile=128x208x128 stages=3 wg=2 cluster=2x1 promote=none",
        "tile=32x96x128 stages=4 wg=1 pdl=early promote=none",
        "tile=64x112x128 stages=3 wg=1 store=direct splits=3 promote=none"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:row b=e5m2:row d=fp16 acc=0 promote=512 bias=fp32 sentry=1",
       {"tile=128x128x128 stages=3 wg=2 promote=512",
        "tile=128x64x128 stages=3 wg=1 store=direct splits=2 pdl=early promote=512"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:tensor b=e4m3:tensor d=bf16 acc=1 promote=256 sentry=squares",
       {"tile=192x96x128 stages=3 wg=3 store=direct promote=256",
        "tile=256x96x128 stages=3 wg=2 store=direct promote=256"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:tensor b=e5m2:tensor d=bf16 acc=0 promote=128 bias=bf16",
       {"tile=192x128x128 stages=4 wg=3 tail_n=64",
        "tile=128x96x128 stages=4 wg=2 unroll=2 inflight=2"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:row b=e4m3:row d=bf16 acc=0 promote=128",
       {"tile=128x128x128 stages=4 wg=2 cluster=1x2", "tile=192x128x128 stages=4 wg=3 tail_n=64",
        "tile=64x80x128 stages=4 wg=1 unroll=2 inflight=2 ctas=2",
        "tile=128x80x128 stages=4 wg=1 store=direct splits=3"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:row:pow2 b=e4m3:row:pow2 d=fp32 acc=1 promote=128",
       {"tile=192x128x128 stages=3 wg=3", "tile=256x96x128 stages=3 wg=2"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:tensor b=e4m3:tensor d=fp32 acc=1 promote=none sentry=1",
       {"tile=128x160x128 stages=3 wg=2 store=direct promote=none"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:row b=e4m3:row d=fp32 acc=0 promote=256",
       {"tile=128x160x128 stages=3 wg=2 promote=256",
        "tile=64x64x128 stages=3 wg=1 store=direct splits=2 promote=256"}},
      // weight gradients
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128",
       {"tile=192x112x128 stages=3 wg=3 store=direct",
        "tile=256x112x128 stages=3 wg=2 store=direct scales=held",
        "tile=256x128x128 stages=3 wg=2 scales=held", "tile=192x128x128 stages=3 wg=3",
        "tile=256x96x128 stages=3 wg=2 scales=held raster=2n", "tile=128x160x128 stages=3 wg=2",
        "tile=128x128x128 stages=3 wg=2 cluster=1x2", "tile=64x64x128 stages=3 wg=1 pdl=early",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2",
        "tile=128x112x128 stages=3 wg=2 cluster=2x1 store=direct",
        "tile=64x48x128 stages=4 wg=1 unroll=4 inflight=4 store=direct",
        "tile=32x64x128 stages=4 wg=1 store=direct splits=3 pdl=early"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 sentry=squares",
       {"tile=192x96x128 stages=3 wg=3 store=direct"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=32 bias=fp32",
       {"tile=128x128x128 stages=3 wg=2 promote=32"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e5m2:1x128 d=fp32 acc=0 promote=64 sentry=1",
       {"tile=64x96x128 stages=3 wg=1 inflight=2 promote=64"}},
      // weight gradients whose scales are powers of two
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
       {"tile=128x128x128 stages=3 wg=2 factors=mma",
        "tile=128x96x128 stages=3 wg=1 factors=mma raster=2n",
        "tile=128x96x128 stages=4 wg=2 unroll=2 cluster=2x1 factors=mma",
        "tile=64x80x128 stages=4 wg=1 store=direct splits=3 pdl=early factors=mma",
        "tile=128x112x128 stages=3 wg=2 store=direct factors=mma",
        "tile=128x128x128 stages=3 wg=2"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=1 promote=128 "
       "bias=fp32 sentry=squares",
       {"tile=128x80x128 stages=3 wg=2 store=direct factors=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e5m2:1x128:pow2 d=e4m3:1x128:pow2 acc=0 "
       "promote=128",
       {"tile=128x128x128 stages=3 wg=2 factors=mma"}},
      // groups of rows
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 "
       "group=contiguous groups=8",
       {"tile=16x64x128 stages=3 wg=1 pdl=early", "tile=32x32x128 stages=4 wg=1 store=direct",
        "tile=64x48x128 stages=3 wg=1 unroll=2 inflight=2 ctas=2",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2 cluster=2x1",
        "tile=128x160x128 stages=3 wg=2 raster=2n", "tile=192x128x128 stages=3 wg=3 raster=2n",
        "tile=256x96x128 stages=3 wg=2 raster=2", "tile=128x96x128 stages=3 wg=2 cluster=2x1",
        "tile=64x64x128 stages=3 wg=1 cluster=2x1 raster=2"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128:ue8m0x4 b=e4m3:128x128 d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1", "tile=16x32x128 stages=3 wg=1 store=direct"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=1 promote=64 sentry=squares "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1 store=direct promote=64"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 group=masked "
       "groups=8",
       {"tile=16x64x128 stages=3 wg=1 pdl=early", "tile=64x96x128 stages=3 wg=1",
        "tile=192x128x128 stages=3 wg=3 raster=2n", "tile=32x16x128 stages=3 wg=1 store=direct",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2 cluster=2x1"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e4m3:128x128 d=fp16 acc=0 promote=128 "
       "sentry=1 group=masked groups=8",
       {"tile=64x64x128 stages=3 wg=1"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none group=contiguous "
       "groups=8",
       {"tile=64x64x128 stages=3 wg=1 promote=none",
        "tile=128x96x128 stages=3 wg=2 cluster=2x1 promote=none",
        "tile=16x32x128 stages=3 wg=1 store=direct promote=none"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=128 group=masked "
       "groups=8",
       {"tile=64x96x128 stages=3 wg=1", "tile=192x128x128 stages=3 wg=3"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:tensor b=e5m2:tensor d=fp16 acc=0 promote=256 "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1 promote=256"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none group=masked "
       "groups=8",
       {"tile=64x64x128 stages=3 wg=1 promote=none"}},
      // groups of rows, FP8 D
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x128x128 stages=3 wg=1", "tile=192x128x128 stages=3 wg=3",
        "tile=128x128x128 stages=3 wg=2 cluster=2x1"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e4m3:128x128 d=e5m2:1x128:pow2 acc=0 "
       "promote=64 sentry=squares group=contiguous groups=8",
       {"tile=64x128x128 stages=3 wg=1 promote=64"}},
      // groups of K
      {"gemm m=7168 n=7168 k=? a=e5m2:tensor b=e4m3:tensor d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1", "tile=64x48x128 stages=3 wg=1 store=direct"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=192x128x128 stages=3 wg=3", "tile=256x128x128 stages=3 wg=2 scales=held",
        "tile=64x48x128 stages=3 wg=1 store=direct",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=128x128x128 stages=3 wg=2 factors=mma",
        "tile=128x80x128 stages=3 wg=2 store=direct factors=mma"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 "
       "group=contiguous groups=8",
       {"tile=128x96x128 stages=3 wg=2", "tile=64x32x128 stages=3 wg=1 store=direct"}},
      // batches
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=8",
       {"tile=16x64x128 stages=3 wg=1 pdl=early", "tile=32x32x128 stages=4 wg=1 store=direct",
        "tile=64x48x128 stages=3 wg=1 unroll=2 inflight=2 ctas=2",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2",
        "tile=128x160x128 stages=3 wg=2 raster=2n", "tile=192x128x128 stages=3 wg=3 raster=2n",
        "tile=256x96x128 stages=3 wg=2 raster=2"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128:ue8m0x4 b=e4m3:128x128 d=fp32 acc=1 promote=128 "
       "batch=8",
       {"tile=64x64x128 stages=3 wg=1", "tile=16x32x128 stages=3 wg=1 store=direct"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=1 promote=64 sentry=1 "
       "batch=8",
       {"tile=64x64x128 stages=3 wg=1 store=direct promote=64"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=8",
       {"tile=192x128x128 stages=3 wg=3", "tile=256x128x128 stages=3 wg=2 scales=held",
        "tile=64x48x128 stages=3 wg=1 store=direct"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 promote=128 "
       "batch=8",
       {"tile=128x128x128 stages=3 wg=2 factors=mma",
        "tile=64x96x128 stages=3 wg=1 pdl=early factors=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e5m2:1x128:ue8m0x4 d=fp16 acc=0 promote=128 "
       "sentry=squares batch=8",
       {"tile=128x96x128 stages=3 wg=2", "tile=64x32x128 stages=3 wg=1 store=direct"}},
      // sums over batches
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=8 sum=1",
       {"tile=192x128x128 stages=3 wg=3", "tile=256x128x128 stages=3 wg=2 scales=held",
        "tile=64x48x128 stages=3 wg=1 store=direct"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 promote=128 "
       "batch=8 "
       "sum=1",
       {"tile=128x128x128 stages=3 wg=2 factors=mma",
        "tile=128x128x128 stages=4 wg=2 unroll=2 inflight=2"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:tensor b=e4m3:tensor d=bf16 acc=0 promote=256 batch=8 sum=1",
       {"tile=64x64x128 stages=3 wg=1 promote=256"}},
      // copies by cp.async
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
       {"tile=16x32x128 stages=4 wg=1 store=direct unit=mma copies=cp_async",
        "tile=32x48x128 stages=3 wg=1 ctas=2 store=direct unit=mma copies=cp_async",
        "tile=128x80x128 stages=3 wg=2 raster=2n store=direct unit=mma copies=cp_async"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:row b=e4m3:row d=fp16 acc=0 promote=256 bias=fp32 "
       "sentry=squares",
       {"tile=64x64x128 stages=3 wg=1 store=direct promote=256 unit=mma copies=cp_async",
        "tile=16x32x128 stages=3 wg=1 store=direct promote=256 unit=mma copies=cp_async"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:ue8m0x4 b=e4m3:1x128 d=fp32 acc=1 promote=64",
       {"tile=64x48x128 stages=3 wg=1 store=direct promote=64 unit=mma copies=cp_async",
        "tile=16x96x128 stages=3 wg=1 store=direct promote=64 unit=mma copies=cp_async"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e5m2:1x32 d=bf16 acc=0 promote=32",
       {"tile=16x32x128 stages=3 wg=1 store=direct promote=32 unit=mma copies=cp_async",
        "tile=64x64x128 stages=3 wg=1 store=direct promote=32 unit=mma copies=cp_async"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 sentry=1 "
       "group=contiguous groups=8",
       {"tile=64x32x128 stages=3 wg=1 store=direct unit=mma copies=cp_async"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:tensor b=e5m2:tensor d=bf16 acc=0 promote=none group=masked "
       "groups=8",
       {"tile=16x64x128 stages=3 wg=1 store=direct promote=none unit=mma copies=cp_async"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x32x128 stages=3 wg=1 store=direct unit=mma copies=cp_async"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=8",
       {"tile=64x32x128 stages=3 wg=1 store=direct unit=mma copies=cp_async"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 batch=8 sum=1",
       {"tile=64x32x128 stages=3 wg=1 store=direct unit=mma copies=cp_async"}},
      // warps that multiply by themselves
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
       {"tile=16x64x128 stages=3 wg=1 pdl=early unit=mma",
        "tile=32x32x128 stages=3 wg=1 store=direct splits=3 pdl=early unit=mma",
        "tile=64x48x128 stages=3 wg=1 ctas=2 unit=mma",
        "tile=128x128x128 stages=3 wg=2 store=direct raster=2n unit=mma_scaled",
        "tile=128x64x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128 b=e4m3:128x128 d=fp16 acc=0 promote=64 bias=fp32 "
       "sentry=squares",
       {"tile=64x96x128 stages=3 wg=1 promote=64 unit=mma",
        "tile=16x96x128 stages=3 wg=1 promote=64 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e5m2:128x128 d=fp32 acc=0 promote=32 "
       "sentry=1",
       {"tile=64x32x128 stages=3 wg=1 promote=32 unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
       {"tile=64x128x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none",
       {"tile=128x112x128 stages=3 wg=2 store=direct promote=none unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:tensor b=e5m2:tensor d=bf16 acc=1 promote=256",
       {"tile=64x64x128 stages=3 wg=1 store=direct promote=256 unit=mma",
        "tile=32x80x128 stages=3 wg=1 store=direct splits=2 promote=256 unit=mma"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32",
       {"tile=64x48x128 stages=3 wg=1 store=direct promote=32 unit=mma",
        "tile=16x48x128 stages=3 wg=1 store=direct promote=32 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32 bias=bf16 sentry=1",
       {"tile=128x64x128 stages=3 wg=2 promote=32 unit=mma_scaled",
        "tile=32x96x128 stages=3 wg=1 promote=32 unit=mma"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128",
       {"tile=64x64x128 stages=3 wg=1 unit=mma", "tile=128x32x128 stages=3 wg=2 unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 group=masked "
       "groups=8",
       {"tile=16x48x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 "
       "group=contiguous groups=8",
       {"tile=64x32x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=8",
       {"tile=64x64x128 stages=3 wg=1 unit=mma"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=8 sum=1",
       {"tile=64x48x128 stages=3 wg=1 store=direct unit=mma"}},
      // scales inside the instruction
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none",
       {"tile=16x64x128 stages=3 wg=1 pdl=early promote=none unit=mma_scaled",
        "tile=32x32x128 stages=3 wg=1 store=direct splits=3 pdl=early promote=none unit=mma_scaled",
        "tile=64x48x128 stages=3 wg=1 ctas=2 promote=none unit=mma_scaled",
        "tile=128x128x128 stages=3 wg=2 store=direct raster=2n promote=none unit=mma_scaled",
        "tile=128x64x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x128:ue8m0x4 b=e4m3:128x128:pow2 d=fp16 acc=0 promote=none "
       "bias=fp32 sentry=squares",
       {"tile=64x96x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e5m2:128x128:pow2 d=e4m3:1x128:pow2 acc=0 "
       "promote=none",
       {"tile=64x128x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=none",
       {"tile=64x64x128 stages=3 wg=1 promote=none unit=mma_scaled",
        "tile=128x32x128 stages=3 wg=2 promote=none unit=mma_scaled"}},
      {"gemm m=7168 n=7168 k=? a=e5m2:1x128:ue8m0x4 b=e4m3:1x128:ue8m0x4 d=bf16 acc=1 promote=none "
       "sentry=1",
       {"tile=64x48x128 stages=3 wg=1 store=direct promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none "
       "group=contiguous groups=8",
       {"tile=64x64x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none "
       "group=masked groups=8",
       {"tile=16x48x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=none "
       "group=contiguous groups=8",
       {"tile=64x32x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none "
       "batch=8",
       {"tile=64x64x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 promote=none "
       "batch=8 sum=1",
       {"tile=64x48x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=none",
       {"tile=128x64x128 stages=3 wg=1 promote=none unit=mma_scaled",
        "tile=32x32x128 stages=3 wg=1 store=direct splits=3 pdl=early promote=none "
        "unit=mma_scaled"}},
      {"gemm m=? n=7168 k=7168 a=e5m2:1x32 b=e4m3:1x32 d=fp16 acc=0 promote=none bias=fp32 "
       "sentry=squares",
       {"tile=16x48x128 stages=3 wg=1 promote=none unit=mma_scaled"}},
      {"gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e5m2:1x32 d=fp32 acc=1 promote=none",
       {"tile=128x32x128 stages=3 wg=2 promote=none unit=mma_scaled"}},
  };
  return all;
}

template <typename T>
T or_exit(const Result<T>& result, const char* text) {
  if (result) return *result;
  std::fprintf(stderr, "%s: %s\n", text, result.error().message.c_str());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): the emitter has one thread
}

}  // namespace

std::vector<GemmVariant> gemm_variants() {
  std::vector<GemmVariant> variants;
  for (const auto& [problem, texts] : lists()) {
    const auto parsed = std::get<GemmProblem>(or_exit(parse_problem(problem), problem));
    for (const char* text : texts) {
      variants.push_back({parsed, or_exit(parse_gemm_config(text), text)});
    }
  }
  return variants;
}

}  // namespace octile::emulation
