#include "runtime/tuner/gemm_bench.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<GpuWorkshop>> GpuWorkshop::open(Library& library, const GpuSession& gpu) {
  auto inspect = GemmGate::compile_inspector(gpu, DType::kBF16);
  if (!inspect) return tl::unexpected<Error>(inspect.error());
  return std::make_unique<GpuWorkshop>(library, gpu, std::move(*inspect));
}

Result<std::unique_ptr<GemmBench>> GemmBench::create(GpuWorkshop& shop, const GemmProblem& problem,
                                                     std::int64_t tokens,
                                                     std::vector<Ranked> shortlist,
                                                     std::uint64_t seed) {
  const GpuSession& gpu = shop.gpu;
  const int count = rotation_slots(gpu, bytes_of_call(problem, tokens));
  auto slots = make_gemm_slots(gpu, problem, tokens, count, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  std::unique_ptr<GemmBench> bench(
      new GemmBench(shop, problem, std::move(shortlist), std::move(*slots), std::move(*replayer)));
  const GemmSlot& first = bench->slots_.front();
  auto gate = GemmGate::create(gpu, shop.inspect_bf16, problem, first.a, first.b, seed);
  if (!gate) return tl::unexpected<Error>(gate.error());
  bench->gate_ = std::make_unique<GemmGate>(std::move(*gate));
  return bench;
}

const GemmConfig& GemmBench::config(int candidate) const {
  return std::get<GemmConfig>(shortlist_.at(static_cast<std::size_t>(candidate)).config);
}

void GemmBench::start_builds(std::span<const int> candidates) {
  for (const int candidate : candidates) shop_.builds.start(problem_, config(candidate));
}

std::optional<Result<BuildReport>> GemmBench::build(int candidate, double seconds) {
  auto built = shop_.builds.wait(problem_, config(candidate), seconds);
  if (!built) return std::nullopt;
  if (!*built) return Result<BuildReport>(tl::unexpected<Error>(built->error()));
  const KernelBuild& kernel = *(*built)->kernel;
  const BuildReport report{kernel.spill_store_bytes + kernel.spill_load_bytes, kernel.stack_bytes};
  built_.emplace(candidate, std::move(**built));
  return Result<BuildReport>(report);
}

// Here and not where it is compiled: loading may stop the device for a moment.
Result<const FixedGemm*> GemmBench::load(int candidate) {
  const GpuSession& gpu = shop_.gpu;
  auto kernel = FixedGemm::load(shop_.library, gpu.driver(), gpu.ordinal(), gpu.spec(), problem_,
                                config(candidate), built_.at(candidate));
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return &kernels_.insert_or_assign(candidate, std::move(*kernel)).first->second;
}

Result<Verdict> GemmBench::gate(int candidate) {
  const auto kernel = load(candidate);
  if (!kernel) return Verdict{false, kernel.error().message, {}};
  return gate_->check(
      [&](const octile_gemm_args& args, CUstream stream) { return (*kernel)->run(args, stream); });
}

Contender GemmBench::contender(int candidate) const {
  return {to_text(config(candidate)), [this, candidate](int slot, CUstream stream) {
            const GemmSlot& s = slots_[static_cast<std::size_t>(slot)];
            return kernel(candidate).run(gemm_args(s.a, s.b, s.d.pointer()), stream);
          }};
}

Result<double> GemmBench::time(int candidate) {
  auto found = replays_.find(candidate);
  if (found == replays_.end()) {
    TimingOptions options;
    options.slots = static_cast<int>(slots_.size());
    auto replay = replayer_.prepare(contender(candidate), options);
    if (!replay) return tl::unexpected<Error>(replay.error());
    found = replays_.emplace(candidate, std::move(*replay)).first;
  }
  return replayer_.time(found->second);
}

}  // namespace octile::tuner
