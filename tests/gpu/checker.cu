// Kernels the GPU tests check GEMMs with: random operands, an FP64 product compared in place, guard
// zones. Plain and slow on purpose; the FP64 product is itself checked against the host's on
// small shapes. Compiled by NVRTC when the suite starts; nothing of it is in the library.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

__device__ u32 hash(u64 x) {  // splitmix64, upper half
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return static_cast<u32>((x ^ (x >> 31)) >> 32);
}

__device__ float uniform(u64 x) { return static_cast<float>(hash(x) >> 8) * (1.0f / 16777216.0f); }

__device__ double decode(u8 code, int e5m2) {
  const int mantissa_bits = e5m2 ? 2 : 3;
  const int bias = e5m2 ? 15 : 7;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code & 0x7F) >> mantissa_bits;
  double value;
  if (e5m2 && exponent == 31) {
    value = mantissa == 0 ? __longlong_as_double(0x7FF0000000000000ll)
                          : __longlong_as_double(0x7FF8000000000000ll);
  } else if (!e5m2 && (code & 0x7F) == 0x7F) {
    value = __longlong_as_double(0x7FF8000000000000ll);
  } else if (exponent == 0) {
    value = ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = ldexp(static_cast<double>(mantissa + (1 << mantissa_bits)),
                  exponent - bias - mantissa_bits);
  }
  return (code & 0x80) != 0 ? -value : value;
}

// Bytes from one buffer to another, as a kernel: a neighbour that programmatic launches can
// overlap.
extern "C" __global__ void copy_bytes(const unsigned char* from, unsigned char* to,
                                      long long bytes) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step) {
    to[i] = from[i];
  }
}

// The same, having let the stream's next kernel start and waited some 20 us: that one runs before
// anything is written.
extern "C" __global__ void copy_bytes_late(const unsigned char* from, unsigned char* to,
                                           long long bytes) {
  constexpr long long kCycles = 40000;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long begin = clock64();
  while (clock64() - begin < kCycles) {
  }
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step) {
    to[i] = from[i];
  }
}

// codes[rows][ld], by CodeMode of gemm_case.h. The lowest bit of the seed tells B from A.
extern "C" __global__ void fill_codes(u8* codes, i64 rows, i64 cols, i64 ld, u64 seed, int e5m2,
                                      int mode) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols;
       i += stride) {
    const i64 row = i / cols;
    const u64 key = seed * 0x10001ull + static_cast<u64>(i) * 4;
    u8 code;
    if (mode == 1) {
      code = static_cast<u8>(hash(key));
      const bool finite = e5m2 ? (code & 0x7F) < 0x7C : (code & 0x7F) != 0x7F;
      if (!finite) code = static_cast<u8>(hash(key + 1) & 0x3F);
    } else if (mode == 2) {
      const u8 largest = e5m2 ? 0x7B : 0x7E;
      code = (i - row * cols) % 128 == 37 ? largest : 0x01;
    } else if (mode == 3) {
      code = e5m2 ? 0x3C : 0x38;
    } else if (mode == 4) {
      const bool negative = (seed & 1) == 0 && (i - row * cols) % 2 == 1;
      code = static_cast<u8>((0x30 | (hash(key) & 0x0F)) | (negative ? 0x80 : 0));
    } else {
      const float normal =
          (uniform(key) + uniform(key + 1) + uniform(key + 2) + uniform(key + 3) - 2.0f);
      const float x = normal * (e5m2 ? 20000.0f : 180.0f);
      u16 pair;
      if (e5m2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
      } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
      }
      code = static_cast<u8>(pair & 0xFF);
    }
    codes[row * ld + (i - row * cols)] = code;
  }
}

// Scales as the problem stores them. The values of `format` are those of octile_scale_format.
struct Scales {
  const void* p;
  i64 ld;        // from one K-block to the next; 0: scales per row or per tensor
  i64 row_step;  // from one row to the next; 0: one scale
  int format;    // of E8M0, ld leads to the next row_step rows
};
constexpr int kPow2 = 2, kUe8m0x4 = 3, kE8m0 = 4;

// The scale of an element: 1x128 scales [ceil(k/128)][ld], or words of four exponents; E8M0 scales
// [..][ld] of 32 of k and row_step rows; or one for each row, or for all.
__device__ double scale_of_row(const Scales& s, i64 row, int k) {
  if (s.format == kE8m0) {
    const int code = static_cast<const u8*>(s.p)[row / s.row_step * s.ld + k / 32];
    return code == 255 ? __longlong_as_double(0x7FF8000000000000ll) : ldexp(1.0, code - 127);
  }
  const i64 at = k / 128 * s.ld + row * s.row_step;
  if (s.format != kUe8m0x4) return static_cast<const float*>(s.p)[at];
  const u32 word = static_cast<const u32*>(s.p)[k / 512 * s.ld + row];
  return ldexp(1.0, static_cast<int>(word >> (8 * (k / 128 % 4)) & 0xFF) - 127);
}

// words[count]: scales of 2^[-spread, spread], times [1, 2) unless the format is of powers of two.
extern "C" __global__ void fill_scales(u32* words, i64 count, u64 seed, int spread, int format) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const u64 key = seed * 0x20003ull + static_cast<u64>(i) * 5;
    const auto exponent = [&](int j) {
      return static_cast<int>(hash(key + j) % static_cast<u32>(2 * spread + 1)) - spread;
    };
    if (format == kUe8m0x4 || format == kE8m0) {
      words[i] = 0;
      for (int j = 0; j < 4; ++j) words[i] |= static_cast<u32>(127 + exponent(j)) << (8 * j);
    } else {
      const float significand = format == kPow2 ? 1.0f : 1.0f + uniform(key + 1);
      words[i] = __float_as_uint(ldexpf(significand, exponent(0)));
    }
  }
}

// p[count] of bf16 (`type` as in octile_dtype) or fp32, in [-4, 4).
extern "C" __global__ void fill_bias(void* p, i64 count, u64 seed, int type) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float value = 8.0f * uniform(seed * 0x30001ull + static_cast<u64>(i)) - 4.0f;
    if (type == 3) {
      static_cast<u16*>(p)[i] = static_cast<u16>(__float_as_uint(value) >> 16);
    } else {
      static_cast<float*>(p)[i] = value;
    }
  }
}

struct Verdict {
  u64 violations;  // elements outside the tolerance
  i64 first;       // linear index of one of them
  u32 worst_c;     // bits of the largest c an element would need
  u32 worst_rel;   // bits of the largest |D - R| / S
};

// The outputs and options of a GEMM. The values of `d_type` and `bias_type` are those of
// octile_dtype.
struct Output {
  const void* d;
  i64 ldd;
  int d_type;
  int bias_type;  // 0: none
  const void* bias;
  double initial_d;  // every element of D before the call; 0 if it is overwritten
};
constexpr int kBf16 = 3, kFp16 = 4;

__device__ double element(const void* p, int type, i64 at) {
  if (type == kBf16) {
    return __uint_as_float(static_cast<u32>(static_cast<const u16*>(p)[at]) << 16);
  }
  if (type == kFp16) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<const u16*>(p)[at]));
    return value;
  }
  return static_cast<const float*>(p)[at];
}

__device__ double ulp_of(int type, double r) {
  const int mantissa_bits = type == kBf16 ? 7 : type == kFp16 ? 10 : 23;
  const int least = type == kFp16 ? -14 : -126;
  const int exponent = r == 0 ? least : ilogb(r);
  return ldexp(1.0, (exponent < least ? least : exponent) - mantissa_bits);
}

// An infinite D counts as the first value that rounds to it.
__device__ double finite_of(int type, double d) {
  if (!isinf(d)) return d;
  const double largest = type == kFp16 ? 65504.0 : type == kBf16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
  return copysign(largest + 0.5 * ulp_of(type, largest), d);
}

__device__ void judge(double r, double s, const Output& out, i64 row, i64 col, double c, i64 index,
                      Verdict* verdict) {
  const double d = element(out.d, out.d_type, row * out.ldd + col);
  if (out.bias_type != 0) r += element(out.bias, out.bias_type, col);
  r += out.initial_d;
  bool ok;
  if (isnan(r)) {
    ok = isnan(d);
  } else if (isinf(r)) {
    ok = d == r;
  } else {
    const double error = fabs(finite_of(out.d_type, d) - r);
    const double beyond = error - 0.5 * ulp_of(out.d_type, r);
    // Below S's own resolution (a product of zeros) only an exact result is right.
    const double needed = beyond <= 0 ? 0.0 : s > 0 ? beyond / s * 8192.0 : 1e30;
    ok = needed <= c;
    if (!isnan(needed)) atomicMax(&verdict->worst_c, __float_as_uint(static_cast<float>(needed)));
    if (s > 0 && !isnan(error)) {
      atomicMax(&verdict->worst_rel, __float_as_uint(static_cast<float>(error / s)));
    }
  }
  if (!ok) {
    atomicAdd(&verdict->violations, 1ull);
    verdict->first = index;
  }
}

constexpr int kTile = 64;
constexpr int kStep = 16;

// D[m,n] against the FP64 product of the dequantised operands. A has scales as scale_of_row reads
// them, and so does B if b_rows. Without b_rows B has 128x128 scales [ceil(n/128)][ld]. 256
// threads, a 64x64 tile, 4x4 elements a thread.
extern "C" __global__ void __launch_bounds__(256)
    check_product(const u8* a, i64 lda, Scales sa, const u8* b, i64 ldb, Scales sb, int b_rows,
                  Output out, int m, int n, int k, int a_e5m2, int b_e5m2, double c,
                  Verdict* verdict) {
  __shared__ double a_tile[kStep][kTile + 1];
  __shared__ double b_tile[kStep][kTile + 1];
  __shared__ double table_a[256];
  __shared__ double table_b[256];
  const int thread = threadIdx.x;
  table_a[thread] = decode(static_cast<u8>(thread), a_e5m2);
  table_b[thread] = decode(static_cast<u8>(thread), b_e5m2);
  __syncthreads();
  const int tiles_n = (n + kTile - 1) / kTile;
  const i64 row0 = static_cast<i64>(blockIdx.x / tiles_n) * kTile;
  const i64 col0 = static_cast<i64>(blockIdx.x % tiles_n) * kTile;
  const int ty = thread / 16;
  const int tx = thread % 16;
  double r[4][4] = {};
  double s[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += kStep) {
    for (int i = thread; i < kTile * kStep; i += 256) {
      const int line = i / kStep;
      const int step = i % kStep;
      const int kk = k0 + step;
      const i64 row = row0 + line;
      const i64 col = col0 + line;
      a_tile[step][line] =
          row < m && kk < k ? table_a[a[row * lda + kk]] * scale_of_row(sa, row, kk) : 0.0;
      double scale_b = 0.0;
      if (col < n && kk < k) {
        scale_b = b_rows != 0 ? scale_of_row(sb, col, kk)
                              : static_cast<const float*>(sb.p)[col / 128 * sb.ld + kk / 128];
      }
      b_tile[step][line] = col < n && kk < k ? table_b[b[col * ldb + kk]] * scale_b : 0.0;
    }
    __syncthreads();
    for (int step = 0; step < kStep; ++step) {
      double x[4];
      double y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = a_tile[step][ty + 16 * i];
        y[i] = b_tile[step][tx + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const double product = x[i] * y[j];
          r[i][j] += product;
          s[i][j] += fabs(product);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const i64 row = row0 + ty + 16 * i;
      const i64 col = col0 + tx + 16 * j;
      if (row < m && col < n) judge(r[i][j], s[i][j], out, row, col, c, row * n + col, verdict);
    }
  }
}

// Every byte of buffer[bytes] outside the rows x row_bytes window at `first` (rows stride_bytes
// apart) must still be `poison`.
extern "C" __global__ void check_guard(const u8* buffer, i64 bytes, i64 first, i64 rows,
                                       i64 row_bytes, i64 stride_bytes, int poison, u64* touched) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes; i += stride) {
    const i64 offset = i - first;
    const bool inside =
        offset >= 0 && offset / stride_bytes < rows && offset % stride_bytes < row_bytes;
    if (!inside && buffer[i] != poison) atomicAdd(touched, 1ull);
  }
}

// to[rows][copies][width] bytes, each row `copies` times a row of from[rows][width]. Both begin at
// a multiple of 16 bytes.
extern "C" __global__ void repeat_rows(const u8* from, i64 rows, i64 width, i64 copies, u8* to) {
  const i64 step = static_cast<i64>(gridDim.x) * blockDim.x;
  const i64 first = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (width % 16 == 0) {
    const i64 words = width / 16;
    for (i64 i = first; i < rows * copies * words; i += step) {
      const i64 row = i / (copies * words);
      reinterpret_cast<uint4*>(to)[i] =
          reinterpret_cast<const uint4*>(from)[row * words + i % words];
    }
    return;
  }
  for (i64 i = first; i < rows * copies * width; i += step) {
    to[i] = from[i / (copies * width) * width + i % width];
  }
}

// Bytes at which two buffers differ.
extern "C" __global__ void count_differences(const u8* x, const u8* y, i64 bytes,
                                             u64* differences) {
  const i64 stride = static_cast<i64>(gridDim.x) * blockDim.x;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes; i += stride) {
    if (x[i] != y[i]) atomicAdd(differences, 1ull);
  }
}

// Evidence about compute-sanitizer's racecheck, not about Octile: the textbook ring of two stages,
// filled by cp.async.bulk and handed back on mbarriers. With one_arrival = 0 every reading lane
// arrives; with 1 the warp synchronises and lane 0 arrives for it, which is as well ordered (PTX
// memory model: bar.warp.sync and the release of the arrival are cumulative) and 32 times fewer
// arrivals. racecheck has nothing to say of the first and reports "Write access ... Read access"
// races of the second: it credits an arrival to the arriving lane alone. The same report on the
// GEMM's scale ring, which hands over in the second way, is not a finding. One warp produces, one
// consumes; out[32] gets the sums.
extern "C" __global__ void bulk_ring(const float* source, int turns, int one_arrival, float* out) {
  __shared__ alignas(128) float stage[2][32];
  __shared__ alignas(8) u64 barriers[4];  // full[2], empty[2]
  const u32 base = static_cast<u32>(__cvta_generic_to_shared(barriers));
  const u32 data = static_cast<u32>(__cvta_generic_to_shared(stage));
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(base + 8 * s) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(base + 16 + 8 * s),
                   "r"(one_arrival != 0 ? 1 : 32)
                   : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const auto wait = [](u32 barrier, u32 parity) {
    u32 done = 0;
    while (done == 0) {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  };
  if (threadIdx.x == 0) {
    for (int turn = 0; turn < turns; ++turn) {
      const int s = turn % 2;
      const u32 phase = turn / 2 % 2;
      wait(base + 16 + 8 * s, phase ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(base + 8 * s)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, "
          "[%2];" ::"r"(data + 128 * s),
          "l"(source + 32 * turn), "r"(base + 8 * s)
          : "memory");
    }
  } else if (threadIdx.x >= 32) {
    const int lane = threadIdx.x % 32;
    float sum = 0;
    for (int turn = 0; turn < turns; ++turn) {
      const int s = turn % 2;
      wait(base + 8 * s, turn / 2 % 2);
      sum += stage[s][lane];
      __syncwarp();
      if (one_arrival == 0 || lane == 0) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(base + 16 + 8 * s)
                     : "memory");
      }
    }
    out[lane] = sum;
  }
}
