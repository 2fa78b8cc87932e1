#include "tests/emulation/gemm_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "generator/families.h"
#include "runtime/driver/driver.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/families/gemm/resolve.h"
#include "runtime/launch/kernel_registry.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/squares.h"
#include "tests/emulation/cluster.h"
#include "tests/emulation/gemm_device.h"
#include "tests/support/gemm_call.h"

namespace octile::emulation {
namespace {

constexpr std::int64_t kGuard = 1024;
constexpr std::int64_t kAlignment = 128;

// ---- the driver: tensor maps of the fake one, and launches that the emulation runs --------------

struct Launcher {
  const GemmConfig* config = nullptr;
  std::uint64_t seed = 0;
  PrecedingKernel preceding;
  bool is_programmatic = true;  // else the preceding kernel has ended
  std::vector<std::string> faults;
};
Launcher* launcher = nullptr;

CUresult launch_emulated(const CUlaunchConfig* c, CUfunction kernel, void** parameters, void**) {
  ClusterLaunch launch;
  launch.grid = c->gridDimX;
  launch.threads = static_cast<int>(c->blockDimX);
  launch.smem_bytes = c->sharedMemBytes;
  launch.registers = static_cast<unsigned>(65536 / launcher->config->ctas_per_sm);
  launch.seed = launcher->seed;
  bool is_programmatic = false;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = c->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      launch.cluster = attribute.value.clusterDim.x;
    }
    is_programmatic =
        is_programmatic || attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  }
  if (is_programmatic != launcher->is_programmatic) return CUDA_ERROR_INVALID_VALUE;
  alignas(64) GemmKernelArgs args;
  std::memcpy(&args, parameters[0], sizeof args);
  const auto& emitted = *reinterpret_cast<const EmittedGemm*>(kernel);
  launcher->faults = run_clusters(
      launch, [&] { emitted.kernel(&args); },
      is_programmatic ? launcher->preceding : PrecedingKernel());
  return CUDA_SUCCESS;
}

const Driver& emulated_driver() {
  static const Driver driver = [] {
    Driver copy = **Driver::open(OCTILE_FAKE_DRIVER_PATH);
    // The table is const because all users share it. This copy has no other user.
    const_cast<DriverApi&>(copy.api()).cuLaunchKernelEx = launch_emulated;
    return copy;
  }();
  return driver;
}

// ---- operands -----------------------------------------------------------------------------------

// Returns the bits of an fp32 scale between 0.5 and 1.5.
std::uint32_t random_scale(Schedule& random) {
  return std::bit_cast<std::uint32_t>(0.5F +
                                      static_cast<float>(random.next() % 0x1000000) / 0x1000000);
}
// Returns those of 2^-8 to 2^7. If `special`, a quarter are any power of two from 2^-127, the least
// of a quantiser, to 2^56: sums of products stay finite.
std::uint32_t random_power(bool special, Schedule& random) {
  const bool any = special && random.next() % 4 == 0;
  const auto exponent = static_cast<std::uint32_t>(any ? random.next() % 184  //
                                                       : 119 + random.next() % 16);
  return exponent == 0 ? 0x00400000U : exponent << 23;
}
// Returns four exponents from -8 to 7.
std::uint32_t random_exponents(Schedule& random) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word = word << 8 | static_cast<std::uint32_t>(119 + random.next() % 16);
  }
  return word;
}

// Returns the codes of scales that the instruction multiplies, of one row: 2^-2 to 2^1, so that
// sums of small integers are exact. If `special`, all are moved by another power for each row, and
// one of many is NaN.
class ExponentsOfRow {
 public:
  ExponentsOfRow(bool special, Schedule& random)
      : first_(static_cast<std::uint32_t>(special ? 75 + random.next() % 96 : 125)),
        nans_(special ? 64 : 0) {}
  std::uint32_t next(Schedule& random) const {
    if (nans_ > 0 && random.next() % nans_ == 0) return 255;
    return first_ + static_cast<std::uint32_t>(random.next() % 4);
  }

 private:
  std::uint32_t first_;
  std::uint64_t nans_;
};

// Fills scales of blocks that are powers of two with those. Those of the padding stay NaN.
void fill_exponents(const TensorType& type, const QuantizedLayout& layout, bool special,
                    Schedule& random, std::byte* scales) {
  // A 1x128 scale's row of the tensor is a column of the array, of others a row.
  const bool by_columns = type.granularity == Granularity::k1x128;
  const std::int64_t rows = by_columns ? layout.scale_cols : layout.scales.outer;
  const std::int64_t blocks = by_columns ? layout.scales.outer : layout.scale_cols;
  for (std::int64_t row = 0; row < rows; ++row) {
    const ExponentsOfRow exponents(special, random);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t at =
          by_columns ? block * layout.scales.ld + row : row * layout.scales.ld + block;
      if (type.scale == ScaleFormat::kE8M0) {
        scales[at] = static_cast<std::byte>(exponents.next(random));
      } else {
        std::uint32_t word = exponents.next(random) << 23;
        if (type.scale == ScaleFormat::kUe8m0x4) {
          word = 0;
          for (int i = 0; i < 4; ++i) word = word << 8 | exponents.next(random);
        }
        std::memcpy(scales + at * 4, &word, sizeof word);
      }
    }
  }
}

// Fills E8M0 scales with 2^-8 to 2^7. If `special`, a quarter have any code, 0 and 255 among them.
// Those of the padding stay NaN.
void fill_e8m0(const QuantizedLayout& layout, bool special, Schedule& random, std::byte* scales) {
  for (std::int64_t row = 0; row < layout.scales.outer; ++row) {
    for (std::int64_t i = 0; i < layout.scale_cols; ++i) {
      const bool any = special && random.next() % 4 == 0;
      scales[row * layout.scales.ld + i] =
          static_cast<std::byte>(any ? random.next() % 256 : 119 + random.next() % 16);
    }
  }
}

// Makes `tensors` operands of rows x k, one behind the other. If a scale serves a tensor, there is
// one for each of `groups`.
EmulatedOperand operand(const TensorType& type, std::int64_t tensors, std::int64_t groups,
                        std::int64_t rows, std::int64_t k, bool inside, bool special,
                        Schedule& random) {
  const std::int64_t ld = round_up(k, 16) + 16;
  QuantizedLayout layout = quantized_layout(type, rows, k, ld).value();
  layout.data.outer *= tensors;
  layout.scales.outer *= type.granularity == Granularity::kPerTensor ? groups : tensors;
  EmulatedOperand o{GuardedBytes(layout.data.bytes()), GuardedBytes(layout.scales.bytes()),
                    layout.data, layout.scales};
  for (std::int64_t row = 0; row < tensors * rows; ++row) {
    for (std::int64_t i = 0; i < k; ++i) {
      const auto value = static_cast<float>(static_cast<int>(random.next() % 7) - 3);
      o.codes.data()[row * ld + i] = std::byte{reference::to_fp8(value, type.dtype)};
    }
  }
  if (inside) {
    fill_exponents(type, layout, special, random, o.scales.data());
    return o;
  }
  if (type.scale == ScaleFormat::kE8M0) {
    fill_e8m0(layout, special, random, o.scales.data());
    return o;
  }
  // Those of the padding stay NaN.
  const auto random_bits = [&] {
    if (type.scale == ScaleFormat::kUe8m0x4) return random_exponents(random);
    const bool is_power = type.scale == ScaleFormat::kF32Pow2;
    return is_power ? random_power(special, random) : random_scale(random);
  };
  auto* scales = reinterpret_cast<std::uint32_t*>(o.scales.data());
  for (std::int64_t row = 0; row < layout.scales.outer; ++row) {
    for (std::int64_t i = 0; i < layout.scale_cols; ++i) {
      scales[row * layout.scales.ld + i] = random_bits();
    }
  }
  return o;
}

Watched watch(const GuardedBytes& bytes, const ArrayShape& shape) {
  return {reinterpret_cast<const char*>(bytes.data()), shape.outer,
          shape.inner * shape.element_bytes, shape.ld * shape.element_bytes};
}

struct Operands {
  EmulatedOperand a, b;
  GuardedBytes d;
  std::int64_t ldd = 0;
  GuardedBytes bias, sentry, groups;  // empty if the problem has none
  GuardedBytes d_scale;               // empty unless D is FP8
  ArrayShape d_scale_shape;
};

float random_value(Schedule& random) {
  return static_cast<float>(random.next() % 0x1000000) / 0x10000 - 128;
}

// Writes n values of the type.
void fill_values(std::byte* to, DType type, std::int64_t n, Schedule& random) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = random_value(random);
    const std::uint16_t bits = reference::float_to_bf16(value);
    if (type == DType::kFP32) {
      std::memcpy(to + 4 * i, &value, 4);
    } else {
      std::memcpy(to + 2 * i, &bits, 2);
    }
  }
}

std::int64_t tokens_of(const GemmProblem& problem, const EmulatedGemm& call) {
  return has_tokens_in_k(problem) ? call.k : call.m;
}

// Makes what a call has beside A and B. Padding and a D that is overwritten are NaN.
void add_outputs(const GemmProblem& problem, const EmulatedGemm& call, Schedule& random,
                 Operands& o) {
  const int element = size_of(problem.d.dtype);
  o.ldd = round_up(call.n, 16) + 16;
  const std::int64_t rows = matrices_of(problem, tokens_of(problem, call)).d_rows;
  o.d = GuardedBytes(rows * o.ldd * element);
  for (std::int64_t row = 0; problem.accumulate && row < rows; ++row) {
    fill_values(o.d.data() + row * o.ldd * element, problem.d.dtype, call.n, random);
  }
  if (is_fp8(problem.d.dtype)) {
    o.d_scale_shape = quantized_layout(problem.d, call.m, call.n).value().scales;
    o.d_scale_shape.ld += 4;
    o.d_scale = GuardedBytes(o.d_scale_shape.bytes());
  }
  if (problem.bias) {
    o.bias = GuardedBytes(call.n * size_of(*problem.bias));
    fill_values(o.bias.data(), *problem.bias, call.n, random);
  }
  if (!has_sentry(problem)) return;
  o.sentry = GuardedBytes(problem.sentry == Sentry::kSquares ? sizeof(octile_squares) : 4);
  std::fill_n(o.sentry.data(), o.sentry.size(), std::byte{0});
}

// Sets the scale of A to 2^exponent: for a row and the last K-block, or for all of them if A has
// one.
void set_scale(const GemmProblem& problem, const EmulatedGemm& call, std::int64_t row, int exponent,
               Operands& o) {
  if (problem.a.granularity == Granularity::kPerTensor) row = 0;
  const std::int64_t block = scales_at_end(scheme_of(problem)) ? 0 : ceil_div(call.k, 128) - 1;
  const std::int64_t ld = o.a.scale_shape.ld;
  if (scheme_of(problem) == Scheme::kMx) {
    o.a.scales.data()[row * ld + ceil_div(call.k, 32) - 1] = static_cast<std::byte>(exponent + 127);
  } else if (problem.a.scale == ScaleFormat::kUe8m0x4) {
    o.a.scales.data()[(block / 4 * ld + row) * 4 + block % 4] =
        static_cast<std::byte>(exponent + 127);
  } else {
    reinterpret_cast<float*>(o.a.scales.data())[block * ld + row] = std::ldexp(1.0F, exponent);
  }
}

template <typename T>
T* null_or(const GuardedBytes& bytes) {
  auto* p = const_cast<std::byte*>(bytes.data());
  return bytes.size() == 0 ? nullptr : reinterpret_cast<T*>(p);
}

// Says where the matrices of a batch are. Packed and side by side, they fill the same memory.
void place_batch(const GemmProblem& problem, const Operands& o, const EmulatedGemm& call,
                 GemmArguments& args) {
  if (call.side_by_side) {
    const auto place = [&](std::int64_t row, std::int64_t& ld, std::int64_t& stride) {
      ld = problem.batch * row;
      stride = row;
    };
    place(args.lda, args.lda, args.batch.a_stride);
    place(args.ldb, args.ldb, args.batch.b_stride);
    if (problem.sums_batch) return;
    place(args.ldd, args.ldd, args.batch.d_stride);
    place(o.a.scale_shape.ld, args.a_scale_ld, args.batch.a_scale_stride);
    place(o.b.scale_shape.ld, args.b_scale_ld, args.batch.b_scale_stride);
  }
  if (call.shared_b) args.batch.b_stride = args.batch.b_scale_stride = OCTILE_BATCH_SHARED;
}

GemmArguments arguments(const GemmProblem& problem, const Operands& o, std::byte* d,
                        std::byte* d_scale, const EmulatedGemm& call) {
  GemmArguments args;
  args.tokens = tokens_of(problem, call);
  const auto* groups = null_or<const std::int32_t>(o.groups);
  (problem.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets) = groups;
  if (problem.bias) args.bias = null_or<void>(o.bias);
  if (has_sentry(problem)) args.monitor.sentry = null_or<std::uint32_t>(o.sentry);
  args.a = o.a.codes.data();
  args.lda = o.a.data_shape.ld;
  args.a_scale = reinterpret_cast<const float*>(o.a.scales.data());
  args.b = o.b.codes.data();
  args.ldb = o.b.data_shape.ld;
  args.b_scale = reinterpret_cast<const float*>(o.b.scales.data());
  args.d = d;
  args.ldd = o.ldd;
  if (is_fp8(problem.d.dtype)) {
    args.d_scales.scale = reinterpret_cast<float*>(d_scale);
    args.d_scales.scale_ld = o.d_scale_shape.ld;
  }
  if (call.b_ready) args.flags |= OCTILE_RUN_B_READY;
  if (is_batched(problem)) place_batch(problem, o, call, args);
  return args;
}

// Zeros in the columns between a group's tokens and the next multiple of 128.
void clear_padding(const EmulatedGemm& call, EmulatedOperand& operand) {
  std::int64_t begin = 0;
  for (std::size_t g = 1; g < call.group_rows.size(); ++g) {
    const std::int64_t tokens = call.group_rows[g] - call.group_rows[g - 1];
    const std::int64_t end = begin + round_up(tokens, kGroupAlign);
    for (std::int64_t row = 0; row < operand.data_shape.outer; ++row) {
      std::byte* codes = operand.codes.data() + row * operand.data_shape.ld;
      std::fill(codes + begin + tokens, codes + end, std::byte{0});
    }
    begin = end;
  }
}

void add_groups(const GemmProblem& problem, const EmulatedGemm& call, Operands& o) {
  const std::size_t bytes = call.group_rows.size() * sizeof(std::int32_t);
  o.groups = GuardedBytes(static_cast<std::int64_t>(bytes));
  std::memcpy(o.groups.data(), call.group_rows.data(), bytes);
  if (!groups_k(problem) || call.breaks_rules) return;
  clear_padding(call, o.a);
  clear_padding(call, o.b);
}

Operands make_operands(const GemmProblem& problem, const EmulatedGemm& call) {
  Schedule random(call.seed);
  Operands o;
  const std::int64_t k = matrices_of(problem, tokens_of(problem, call)).k;
  const std::int64_t of_a = whole_gemms(problem);
  const std::int64_t of_b = groups_rows(problem) ? problem.groups : whole_gemms(problem);
  const std::int64_t groups = std::max<std::int64_t>(problem.groups, 1);
  const bool inside = has_scales_inside(problem);
  o.a = operand(problem.a, of_a, groups, call.m, k, inside, call.special, random);
  o.b = operand(problem.b, of_b, groups, call.n, k, inside, call.special, random);
  add_outputs(problem, call, random, o);
  if (is_grouped(problem)) add_groups(problem, call, o);
  // Infinite where the last K-block's sum is not zero; a scale beyond 2^127 is NaN in an
  // instruction.
  if (call.poisoned) set_scale(problem, call, call.m - 1, inside ? 128 : 127, o);
  if (call.faint) set_scale(problem, call, 0, -126, o);
  return o;
}

// Returns the rows [first, first + count) of a matrix.
Watched watch_rows(const GuardedBytes& bytes, std::int64_t first, std::int64_t count,
                   std::int64_t columns, std::int64_t ld, int element) {
  return {reinterpret_cast<const char*>(bytes.data()) + first * ld * element, count,
          columns * element, ld * element};
}

// The memory that a kernel may touch: of the padding only that of the scales, and no row outside of
// the groups.
void watch_operands(const GemmProblem& problem, const Operands& o, const EmulatedGemm& call,
                    int d_bytes) {
  const GemmMatrices all = matrices_of(problem, tokens_of(problem, call));
  readable = {watch(o.a.scales, o.a.scale_shape), watch(o.b.scales, o.b.scale_shape),
              watch_rows(o.b.codes, 0, all.b_rows, all.k, o.b.data_shape.ld, 1),
              watch(o.bias, {1, o.bias.size(), o.bias.size(), 1}),
              watch(o.groups, {1, o.groups.size(), o.groups.size(), 1})};
  writable.clear();
  const auto add_rows = [&](std::int64_t first, std::int64_t count) {
    readable.push_back(watch_rows(o.a.codes, first, count, all.k, o.a.data_shape.ld, 1));
    writable.push_back(watch_rows(o.d, first, count, call.n, o.ldd, d_bytes));
  };
  if (problem.grouping == Grouping::kMasked) {
    for (std::int64_t g = 0; g < problem.groups; ++g) {
      const auto rows = call.group_rows[static_cast<std::size_t>(g)];
      add_rows(g * call.m, std::clamp<std::int64_t>(rows, 0, call.m));
    }
  } else if (groups_rows(problem) && !call.breaks_rules) {
    add_rows(call.group_rows.front(), call.group_rows.back() - call.group_rows.front());
  } else {
    readable.push_back(watch_rows(o.a.codes, 0, all.a_rows, all.k, o.a.data_shape.ld, 1));
    writable.push_back(watch_rows(o.d, 0, all.d_rows, call.n, o.ldd, d_bytes));
  }
  if (o.d_scale.size() > 0) writable.push_back(watch(o.d_scale, o.d_scale_shape));
  if (problem.sentry == Sentry::kSquares) {
    writable.push_back(watch(o.sentry, {1, o.sentry.size(), o.sentry.size(), 1}));
  }
  readable.insert(readable.end(), writable.begin(), writable.end());
}

// Returns whether nothing was written next to a tensor.
bool guards_are_intact(const Operands& o) {
  for (const GuardedBytes* bytes : {&o.d, &o.d_scale, &o.a.codes, &o.a.scales, &o.b.codes,
                                    &o.b.scales, &o.bias, &o.sentry, &o.groups}) {
    if (bytes->size() > 0 && !bytes->guards_are_intact()) return false;
  }
  return true;
}

// Launches as a plan does, on a device that runs few clusters at once.
Status launch_call(const EmittedGemmVariant& v, const GemmProblem& problem, Operands& o,
                   const EmulatedGemm& call) {
  const auto completed =
      complete(problem, arguments(problem, o, o.d.data(), o.d_scale.data(), call));
  if (!completed) return tl::unexpected<Error>(completed.error());
  DeviceSpec device = device_of(v.config);
  launcher->is_programmatic = device.has_pdl;
  const int blocks = call.clusters * cluster_size(v.config) / v.config.ctas_per_sm;
  device.sm_count = blocks * 132 / 117 + 1;  // clusters do not reach all (resident_clusters)
  LoadedKernel loaded;
  loaded.kernel.in_primary = reinterpret_cast<CUfunction>(const_cast<EmittedGemm*>(&v.emitted));
  const LaunchSite site{emulated_driver(), nullptr, true};
  return enqueue(site, resolve(problem, v.config, device, loaded), *completed);
}

// ---- the expected D -----------------------------------------------------------------------------

void store_rounded(std::byte* d, DType type, std::int64_t at, float value) {
  if (type == DType::kFP32) {
    std::memcpy(d + at * 4, &value, 4);
  } else {
    const std::uint16_t bits =
        type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
    std::memcpy(d + at * 2, &bits, 2);
  }
}

// Completes an element as docs/numerics.md says: the bias, the old D, one rounding.
void finish_element(const GemmProblem& problem, const Operands& o, GuardedBytes& d, std::int64_t at,
                    std::int64_t column, float value) {
  if (problem.bias) value += reference::load_as_float(o.bias.data(), *problem.bias, column);
  if (problem.accumulate) value += reference::load_as_float(d.data(), problem.d.dtype, at);
  store_rounded(d.data(), problem.d.dtype, at, value);
  const float stored = reference::load_as_float(d.data(), problem.d.dtype, at);
  if (has_sentry(problem) && !std::isfinite(stored)) *null_or<std::uint32_t>(o.sentry) = 1;
  if (problem.sentry == Sentry::kSquares) {
    add_squares(*null_or<octile_squares>(o.sentry), value * value);
  }
}

// Each rank sums its K-blocks in order, and the ranks are added in order. The reference, which has
// no splits, sums one rank's blocks if the others' elements of A are zeros.
Status expect_of_splits(const GemmProblem& problem, int splits, const Operands& o,
                        const EmulatedGemm& call, GuardedBytes& d) {
  GemmProblem sums = problem;
  sums.d.dtype = DType::kFP32;
  sums.accumulate = false;
  sums.sentry = Sentry::kNone;
  sums.bias.reset();
  const std::int64_t blocks = ceil_div(call.k, 128);
  std::vector<float> total;
  for (int rank = 0; rank < splits; ++rank) {
    Operands part = o;
    for (std::int64_t row = 0; row < call.m; ++row) {
      std::byte* codes = part.a.codes.data() + row * part.a.data_shape.ld;
      const std::int64_t first = blocks * rank / splits * 128;
      const std::int64_t last = std::min(blocks * (rank + 1) / splits * 128, call.k);
      std::fill(codes, codes + std::min(first, call.k), std::byte{0});
      std::fill(codes + last, codes + call.k, std::byte{0});
    }
    std::vector<float> of_rank(static_cast<std::size_t>(call.m * call.n));
    GemmArguments args =
        arguments(sums, part, reinterpret_cast<std::byte*>(of_rank.data()), nullptr, call);
    args.ldd = call.n;
    const auto completed = complete(sums, args);
    if (!completed) return tl::unexpected<Error>(completed.error());
    if (Status s = run_on_host(sums, *completed); !s) return s;
    if (rank == 0) total = of_rank;
    for (std::size_t i = 0; rank > 0 && i < total.size(); ++i) total[i] += of_rank[i];
  }
  for (std::int64_t i = 0; i < call.m * call.n; ++i) {
    const std::int64_t at = i / call.n * o.ldd + i % call.n;
    finish_element(problem, o, d, at, i % call.n, total[static_cast<std::size_t>(i)]);
  }
  return {};
}

// D and its scales as they must be.
struct Expected {
  GuardedBytes d, d_scale;
};

// Writes the expected D into copies of the old one, and the expected sentry into the operands.
Status expect(const GemmProblem& problem, int splits, const Operands& o, const EmulatedGemm& call,
              Expected& to) {
  if (splits > 1) return expect_of_splits(problem, splits, o, call, to.d);
  const auto completed =
      complete(problem, arguments(problem, o, to.d.data(), to.d_scale.data(), call));
  if (!completed) return tl::unexpected<Error>(completed.error());
  return run_on_host(problem, *completed);
}

// Returns what the sentry says, and clears it. Words that it does not have are zero.
octile_squares take_sentry(Operands& o) {
  octile_squares seen{};
  std::memcpy(&seen, o.sentry.data(), static_cast<std::size_t>(o.sentry.size()));
  std::fill_n(o.sentry.data(), o.sentry.size(), std::byte{0});
  return seen;
}

// A thread adds at most 128 squares in fp32, one after another, before its warp's tree does. Where
// the sum is beyond fp32's range, so may be a warp's, which is not finite then.
std::string difference_of_squares(const octile_squares& seen, const octile_squares& expected) {
  const double sum = sum_of_squares(seen), right = sum_of_squares(expected);
  if (std::isinf(sum) && right > std::numeric_limits<float>::max()) return "";
  if (sum == right || std::abs(sum - right) <= 0x1p-18 * right) return "";
  return fmt::format("the sum of squares is {} and not {}", sum, right);
}

// Returns true if elements of D are both zero, or NaNs of fp32 that are not the poison. Special
// scales make them: the device writes one NaN and the host others, and a sum that underflows to -0
// becomes 0 once a block behind the end of K is added.
bool are_alike(int element_bytes, std::uint32_t got, std::uint32_t wanted) {
  const std::uint32_t sign = element_bytes == 4 ? 0x80000000U : 0x8000U;
  const auto is_written_nan = [](std::uint32_t bits) {
    return (bits & 0x7FFFFFFFU) > 0x7F800000U && bits != 0xFFFFFFFFU;
  };
  return ((got | wanted) & ~sign) == 0 ||
         (element_bytes == 4 && is_written_nan(got) && is_written_nan(wanted));
}

// Returns where two arrays differ, padding included. `rows` and `cols`: those that exist.
std::string difference(const char* name, const GuardedBytes& actual, const GuardedBytes& expected,
                       const ArrayShape& shape, std::int64_t rows, std::int64_t cols,
                       bool special = false) {
  const int element = shape.element_bytes;
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t at = 0; at < actual.size(); at += element) {
    if (std::memcmp(actual.data() + at, expected.data() + at, static_cast<std::size_t>(element)) ==
        0)
      continue;
    std::uint32_t got = 0, wanted = 0;
    std::memcpy(&got, actual.data() + at, static_cast<std::size_t>(element));
    std::memcpy(&wanted, expected.data() + at, static_cast<std::size_t>(element));
    if (special && are_alike(element, got, wanted)) continue;
    const std::int64_t row = at / element / shape.ld, column = at / element % shape.ld;
    if (wrong++ == 0)
      first = fmt::format("{}[{}][{}] is {:#x}, expected {:#x}{}", name, row, column, got, wanted,
                          row < rows && column < cols ? "" : " (outside)");
  }
  return wrong == 0 ? "" : fmt::format("{} elements differ; {}", wrong, first);
}

// ---- the kernel before --------------------------------------------------------------------------

// A buffer that the preceding kernel still writes: its contents appear when that kernel ends.
struct LateBytes {
  explicit LateBytes(GuardedBytes& bytes) : target(&bytes), contents(bytes) {}
  GuardedBytes* target;
  GuardedBytes contents;
  void hide() const { std::fill_n(target->data(), target->size(), kPoison); }
  void show() const { std::copy_n(contents.data(), contents.size(), target->data()); }
};

PrecedingKernel preceding_kernel_of(Operands& o, bool b_ready, bool& wrote_early) {
  std::vector<LateBytes> late{LateBytes(o.a.codes), LateBytes(o.a.scales)};
  if (!b_ready) {
    late.emplace_back(o.b.codes);
    late.emplace_back(o.b.scales);
  }
  if (o.bias.size() > 0) late.emplace_back(o.bias);
  if (o.groups.size() > 0) late.emplace_back(o.groups);
  static GuardedBytes before, scales_before;
  PrecedingKernel kernel;
  kernel.begins = [late, &o] {
    for (const LateBytes& bytes : late) bytes.hide();
    before = o.d;
    scales_before = o.d_scale;
  };
  kernel.ends = [late = std::move(late), &o, &wrote_early] {
    for (const LateBytes& bytes : late) bytes.show();
    for (const auto& [now, then] :
         {std::pair(&o.d, &before), std::pair(&o.d_scale, &scales_before)})
      wrote_early =
          wrote_early || !std::equal(now->data(), now->data() + now->size(), then->data());
  };
  return kernel;
}

}  // namespace

GuardedBytes::GuardedBytes(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes + 2 * kGuard + kAlignment), kPoison), size_(bytes) {
  begin_ = kGuard;
  while (reinterpret_cast<std::uintptr_t>(bytes_.data() + begin_) % kAlignment != 0) ++begin_;
}

bool GuardedBytes::guards_are_intact() const {
  const auto intact = [](std::byte b) { return b == kPoison; };
  return std::all_of(bytes_.begin(), bytes_.begin() + begin_, intact) &&
         std::all_of(bytes_.begin() + begin_ + size_, bytes_.end(), intact);
}

const std::vector<EmittedGemmVariant>& emitted_gemm_variants() {
  static const auto all = [] {
    std::vector<EmittedGemmVariant> variants;
    for (const EmittedGemm& e : emitted_gemms()) {
      variants.push_back({std::get<GemmProblem>(parse_problem(e.problem).value()),
                          parse_gemm_config(e.config).value(), e});
    }
    return variants;
  }();
  return all;
}

std::string to_text(const EmulatedGemm& call) {
  return fmt::format(
      "m={} n={} k={} clusters={} b_ready={} poisoned={} faint={} special={} seed={} groups={} "
      "batch={} side_by_side={} shared_b={}",
      call.m, call.n, call.k, call.clusters, call.b_ready, call.poisoned, call.faint, call.special,
      call.seed, fmt::join(call.group_rows, ","), call.batch, call.side_by_side, call.shared_b);
}

std::string run_gemm(const EmittedGemmVariant& v, const EmulatedGemm& call) {
  GemmProblem problem = v.problem;
  problem.n = call.n;
  (has_tokens_in_k(problem) ? problem.m : problem.k) = has_tokens_in_k(problem) ? call.m : call.k;
  const auto entries = static_cast<std::int64_t>(call.group_rows.size());
  problem.groups = problem.grouping == Grouping::kContiguous ? entries - 1 : entries;
  problem.batch = call.batch;
  Operands o = make_operands(problem, call);
  Expected expected{o.d, o.d_scale};
  if (const Status s = expect(problem, v.config.splits, o, call, expected); !s) {
    return s.error().message;
  }
  const octile_squares seen = take_sentry(o);
  if (call.poisoned && seen.sentry == 0) return "the poison does not reach D";

  watch_operands(problem, o, call, size_of(problem.d.dtype));
  bool wrote_early = false;
  // Small integers are right in all models of sums. Those of the unit that multiplies scales have
  // 25 bits.
  constexpr std::array kModels{tests::kExactSums, tests::kAdaSums,   tests::kExactSums,
                               tests::kHalfSums,  tests::kExactSums, tests::kBlackwellSums};
  mma_sums =
      has_scales_inside(problem) ? kModels[call.seed % 2 * 5] : kModels[call.seed % kModels.size()];
  Launcher run{&v.config, call.seed, preceding_kernel_of(o, call.b_ready, wrote_early), true, {}};
  launcher = &run;
  const Status launched = launch_call(v, problem, o, call);
  launcher = nullptr;
  const std::int64_t stray = std::exchange(stray_accesses, 0);
  const std::int64_t misaligned = std::exchange(misaligned_accesses, 0);
  if (!launched) return launched.error().message;
  if (!run.faults.empty()) return fmt::format("{}", fmt::join(run.faults, "\n"));
  if (stray != 0) return "a thread reads or writes outside a tensor";
  if (misaligned != 0) return "a thread's access is misaligned";
  if (wrote_early) return "D was written before the preceding kernel ended";
  if (!guards_are_intact(o)) return "memory next to a tensor was written";
  const octile_squares after = take_sentry(o);
  if (after.sentry != seen.sentry) return fmt::format("the sentry is not {}", seen.sentry);
  if (call.breaks_rules) return "";
  std::string wrong = difference_of_squares(after, seen);
  if (!wrong.empty()) return wrong;
  wrong = difference("D", o.d, expected.d, {call.m, call.n, o.ldd, size_of(problem.d.dtype)},
                     call.m, call.n, call.special);
  if (!wrong.empty() || !is_fp8(problem.d.dtype)) return wrong;
  return difference("the scales of D", o.d_scale, expected.d_scale, o.d_scale_shape,
                    ceil_div(call.n, std::int64_t{128}), call.m);
}

}  // namespace octile::emulation
