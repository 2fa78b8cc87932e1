#include "tools/peers/cublaslt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <utility>

#include "cache/shared_library.h"
#include "runtime/base/environment.h"
#include "runtime/families/gemm/arguments.h"
#include "tools/peers/cublaslt_types.h"

namespace octile::tools {
namespace {

using namespace lt;  // NOLINT(google-build-using-namespace): the library's own words

constexpr std::size_t kOldestVersion = 120900;

int operand_type(DType dtype) { return dtype == DType::kE5M2 ? kE5M2 : kE4M3; }

int output_type(DType dtype) {
  if (dtype == DType::kFP32) return kF32;
  return dtype == DType::kFP16 ? kF16 : kBF16;
}

bool has_fp32_scales(const TensorType& type) {
  return type.scale == ScaleFormat::kF32 || type.scale == ScaleFormat::kF32Pow2;
}

// Returns true if cuBLASLt has the pair of scalings.
bool has_scalings(const GemmProblem& p) {
  switch (scheme_of(p)) {
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      return p.a.granularity == p.b.granularity;
    case Scheme::kBlockB:
    case Scheme::kRowB:
      return p.a.granularity == Granularity::k1x128;
    case Scheme::kMx:
      break;
  }
  return false;
}

std::int32_t scale_mode(const TensorType& type) {
  switch (type.granularity) {
    case Granularity::kPerTensor:
      return kScaleScalar;
    case Granularity::kPerRow:
      return kScaleOuterVec;
    case Granularity::k1x128:
      return kScaleVec128;
    default:
      return kScaleBlock128x128;
  }
}

}  // namespace

struct CublasLt::Api {
#define OCTILE_MEMBER(member, name, result, parameters) result(*member) parameters = nullptr;
  OCTILE_CUBLASLT_FUNCTIONS(OCTILE_MEMBER)
#undef OCTILE_MEMBER

  // Returns the first function that is missing, or null.
  const char* resolve(void* library) {
#define OCTILE_RESOLVE(member, name, result, parameters)                \
  member = reinterpret_cast<decltype(member)>(::dlsym(library, #name)); \
  if (member == nullptr) return #name;
    OCTILE_CUBLASLT_FUNCTIONS(OCTILE_RESOLVE)
#undef OCTILE_RESOLVE
    return nullptr;
  }

  Status check(StatusCode code, const char* call) const {
    if (code == kSuccess) return {};
    return fail(ErrorCode::kDeviceError, fmt::format("{}: {}", call, status_name(code)));
  }
};

CublasLt::CublasLt() : api_(std::make_unique<Api>()) {}
CublasLt::~CublasLt() = default;

// The library is never unloaded, because its kernels outlive every handle.
Result<std::shared_ptr<const CublasLt>> CublasLt::load(const std::string& path) {
  const auto library = cache::open_library(path);
  if (!library)
    return fail(ErrorCode::kUnsupported,
                fmt::format("cuBLASLt \"{}\" cannot be opened: {}", path, library.error()));
  std::shared_ptr<CublasLt> opened(new CublasLt);
  opened->path_ = path;
  if (const char* missing = opened->api_->resolve(*library); missing != nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("cuBLASLt \"{}\" has no {}", path, missing));
  }
  opened->version_ = opened->api_->version();
  if (opened->version_ < kOldestVersion) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("cuBLASLt \"{}\" is version {}; block scales need {} or newer", path,
                            opened->version_, kOldestVersion));
  }
  return opened;
}

Result<std::shared_ptr<const CublasLt>> CublasLt::open() {
  if (const auto named = environment_path("OCTILE_LIBCUBLASLT")) return load(*named);
  auto newer = load("libcublasLt.so.13");
  if (newer) return newer;
  auto older = load("libcublasLt.so.12");
  if (older) return older;
  return fail(ErrorCode::kUnsupported, fmt::format("{}; {}; OCTILE_LIBCUBLASLT may name one",
                                                   newer.error().message, older.error().message));
}

struct LtMatmul::State {
  std::shared_ptr<const CublasLt> library;
  const CublasLt::Api* api = nullptr;
  Handle handle = nullptr;
  MatmulDesc desc = nullptr;
  MatrixLayout a = nullptr;  // our B, which cuBLASLt calls A
  MatrixLayout b = nullptr;  // our A
  MatrixLayout d = nullptr;
  Workspace workspace;
  bool scaled = true;
  float beta = 0;  // 1: D is added to
  std::vector<Algorithm> algorithms;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (MatrixLayout layout : {a, b, d}) {
      if (layout != nullptr) api->destroy_layout(layout);
    }
    if (desc != nullptr) api->destroy_desc(desc);
    if (handle != nullptr) api->destroy(handle);
  }

  template <typename T>
  Status set(int attribute, T value) const {
    return api->check(api->set_desc(desc, attribute, &value, sizeof value),
                      "cublasLtMatmulDescSetAttribute");
  }

  Status describe(const GemmProblem& p, std::int64_t tokens) {
    const auto [m, n, k] = shape_of(p, tokens);
    const auto [um, un, uk] =
        std::array{static_cast<std::uint64_t>(m), static_cast<std::uint64_t>(n),
                   static_cast<std::uint64_t>(k)};
    beta = p.accumulate ? 1.0F : 0.0F;
    Status ok = api->check(api->create(&handle), "cublasLtCreate");
    if (ok) ok = api->check(api->create_desc(&desc, kComputeF32, kF32), "cublasLtMatmulDescCreate");
    if (ok) ok = set(kTransA, kTranspose);
    if (ok) ok = set(kTransB, kNone);
    if (ok && scaled) ok = set(kAScaleMode, scale_mode(p.b));
    if (ok && scaled) ok = set(kBScaleMode, scale_mode(p.a));
    const int a_type = scaled ? operand_type(p.b.dtype) : kBF16;
    const int b_type = scaled ? operand_type(p.a.dtype) : kBF16;
    const char* call = "cublasLtMatrixLayoutCreate";
    if (ok) ok = api->check(api->create_layout(&a, a_type, uk, un, k), call);
    if (ok) ok = api->check(api->create_layout(&b, b_type, uk, um, k), call);
    if (ok) ok = api->check(api->create_layout(&d, output_type(p.d.dtype), un, um, n), call);
    return ok;
  }

  Status ask_heuristic() {
    Preference preference = nullptr;
    Status ok = api->check(api->create_preference(&preference), "cublasLtMatmulPreferenceCreate");
    if (!ok) return ok;
    const std::uint64_t bytes = kWorkspaceBytes;
    std::array<HeuristicResult, kChoices> results{};
    int found = 0;
    ok = api->check(api->set_preference(preference, kMaxWorkspaceBytes, &bytes, sizeof bytes),
                    "cublasLtMatmulPreferenceSetAttribute");
    if (ok) {
      ok = api->check(
          api->heuristic(handle, desc, a, b, d, d, preference, kChoices, results.data(), &found),
          "cublasLtMatmulAlgoGetHeuristic");
    }
    api->destroy_preference(preference);
    if (!ok) return fail(ErrorCode::kUnsupported, ok.error().message);
    for (int i = 0; i < found; ++i) {
      const HeuristicResult& result = results[static_cast<std::size_t>(i)];
      if (result.state == kSuccess) algorithms.push_back(result.algorithm);
    }
    if (!algorithms.empty()) return {};
    return fail(ErrorCode::kUnsupported, "cublasLtMatmulAlgoGetHeuristic offers no algorithm");
  }
};

LtMatmul::LtMatmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
LtMatmul::LtMatmul(LtMatmul&&) noexcept = default;
LtMatmul::~LtMatmul() = default;

Result<LtMatmul> LtMatmul::scaled(std::shared_ptr<const CublasLt> library, const GpuSession& gpu,
                                  const GemmProblem& problem, std::int64_t tokens) {
  if (!has_scalings(problem) || !has_fp32_scales(problem.a) || !has_fp32_scales(problem.b)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("'{}' is not a GEMM with fp32 scales of 1x128 by 128x128 or 1x128 blocks, "
                    "of rows, or of tensors",
                    to_text(Problem(problem))));
  }
  const auto workspace = make_workspace(gpu);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  return create(std::move(library), *workspace, problem, tokens, true);
}

Result<LtMatmul> LtMatmul::bf16(std::shared_ptr<const CublasLt> library, const Workspace& workspace,
                                const GemmProblem& problem, std::int64_t tokens) {
  return create(std::move(library), workspace, problem, tokens, false);
}

Result<LtMatmul::Workspace> LtMatmul::make_workspace(const GpuSession& gpu) {
  auto buffer = gpu.allocate(kWorkspaceBytes);
  if (!buffer) return tl::unexpected<Error>(buffer.error());
  return std::make_shared<const DeviceBuffer>(std::move(*buffer));
}

Result<LtMatmul> LtMatmul::create(std::shared_ptr<const CublasLt> library,
                                  const Workspace& workspace, const GemmProblem& problem,
                                  std::int64_t tokens, bool scaled) {
  if (problem.bias) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("'{}' has a bias, which is not passed on to cuBLASLt",
                            to_text(Problem(problem))));
  }
  auto state = std::make_unique<State>();
  state->library = std::move(library);
  state->api = state->library->api_.get();
  state->scaled = scaled;
  state->workspace = workspace;
  Status ok = state->describe(problem, tokens);
  // The heuristic refuses block scales without pointers; run() sets the real ones.
  if (ok && scaled) ok = state->set(kAScalePointer, state->workspace->pointer());
  if (ok && scaled) ok = state->set(kBScalePointer, state->workspace->pointer());
  if (ok) ok = state->ask_heuristic();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return LtMatmul(std::move(state));
}

int LtMatmul::choices() const { return static_cast<int>(state_->algorithms.size()); }

Status LtMatmul::run(int choice, const Operands& o, CUstream stream) const {
  const State& s = *state_;
  Status ok;
  if (s.scaled) ok = s.set(kAScalePointer, o.b_scale);
  if (ok && s.scaled) ok = s.set(kBScalePointer, o.a_scale);
  if (!ok) return ok;
  const float alpha = 1.0F;
  return s.api->check(s.api->matmul(s.handle, s.desc, &alpha, o.b, s.a, o.a, s.b, &s.beta, o.d, s.d,
                                    o.d, s.d, &s.algorithms[static_cast<std::size_t>(choice)],
                                    s.workspace->pointer(), kWorkspaceBytes, stream),
                      "cublasLtMatmul");
}

LtMatmul::Operands lt_operands(const DeviceTensor& a, const DeviceTensor& b,
                               const DeviceBuffer& d) {
  return {a.data.pointer(), a.scales.pointer(), b.data.pointer(), b.scales.pointer(), d.pointer()};
}

}  // namespace octile::tools
