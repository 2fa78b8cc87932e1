#include "tools/doctor/measure.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <utility>

#include "generator/gemm/cost.h"
#include "tools/bench/measurement.h"
#include "tools/bench/session.h"
#include "tools/bench/yardsticks.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

constexpr int kRounds = 20;
// A stream that mostly reads, as a GEMM does: 16 bytes for each that it writes, 1 GiB in all. The
// L2 caches of Hopper GPUs hold 60 MiB.
constexpr int kReads = 16;
constexpr int kWrites = 1;
constexpr std::int64_t kStreamBytes = std::int64_t{1} << 30;
constexpr std::int64_t kGemmExtent = 8192;  // m, n and k: bound by the tensor cores and their power

// Returns the time of the stream, with the bytes that it reads and writes.
Result<Record> time_stream(const BenchContext& context) {
  const GpuSession& gpu = context.gpu;
  auto kernel = StreamKernel::create(context.templates, kReads, kWrites, 1);
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  const std::int64_t units = kStreamBytes / (kReads + kWrites);
  const std::size_t in_bytes = kernel->in_bytes(units), out_bytes = kernel->out_bytes(units);
  auto in = gpu.allocate(in_bytes);
  if (!in) return tl::unexpected<Error>(in.error());
  auto out = gpu.allocate(out_bytes);
  if (!out) return tl::unexpected<Error>(out.error());
  if (Status ok = in->fill(0x5B, gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
  TimingOptions options;
  options.rounds = kRounds;
  const auto timings = measure(
      gpu,
      {{"stream", [&](int, CUstream stream) { return kernel->run(*in, *out, units, stream); }}},
      options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  Record record = new_record(context.tool, gpu);
  record.what = fmt::format("stream, {} bytes read for each written", kReads);
  record.protocol = replay_protocol(kRounds, true);
  record.unit = "us";
  record.values = measured(timings->front().rounds_us);
  record.details.set("bytes", in_bytes + out_bytes);
  return record;
}

Status measure_gemm(const BenchContext& context, DeviceMeasurement& to) {
  GemmProblem problem;
  problem.n = problem.k = kGemmExtent;
  auto result = bench(context, problem, kGemmExtent);
  if (!result) return tl::unexpected<Error>(result.error());
  if (!result->ok) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} is wrong on this device: {}",
                            to_text(with_tokens(problem, kGemmExtent)), result->check));
  }
  const auto config = parse_gemm_config(*result->details.at("config").string());
  if (!config) return tl::unexpected<Error>(config.error());
  to.device.clock_ghz = clock_of(*config, problem, kGemmExtent, result->values.median, to.assumed);
  result->details.set("clock_ghz", to.device.clock_ghz);
  to.records.push_back(std::move(*result));
  return {};
}

std::string now_text() {
  return fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

struct Row {
  const char* name;
  double assumed, measured;
};
std::array<Row, 3> rows(const DeviceMeasurement& m) {
  return {Row{"clock_ghz", m.assumed.clock_ghz, m.device.clock_ghz},
          Row{"dram_tbps", m.assumed.dram_tbps, m.device.dram_tbps},
          Row{"launch_us", m.assumed.launch_us, m.device.launch_us}};
}

}  // namespace

double clock_of(const GemmConfig& config, const GemmProblem& problem, std::int64_t tokens,
                double measured_us, DeviceSpec device) {
  const DeviceSpec assumed = device;
  double low = 0.1, high = 4;
  for (int i = 0; i < 40; ++i) {
    device.clock_ghz = (low + high) / 2;
    const double faster = device.clock_ghz / assumed.clock_ghz;
    device.fp8_tflops = assumed.fp8_tflops * faster;
    device.l2_tbps = assumed.l2_tbps * faster;
    (estimate_us(config, problem, tokens, device) > measured_us ? low : high) = device.clock_ghz;
  }
  return device.clock_ghz;
}

Result<DeviceMeasurement> measure_device(const std::string& device) {
  SessionOptions options;
  options.device = device;
  options.rounds = kRounds;
  auto session = BenchSession::open("doctor --measure", options, false);
  if (!session) return tl::unexpected<Error>(session.error());
  const GpuSession& gpu = session->gpu();
  DeviceMeasurement measured;
  measured.assumed = gpu.spec();
  measured.device.name = gpu.spec().name;
  measured.device.sm_count = gpu.spec().sm_count;
  measured.device.driver = gpu.driver()->version_text();
  measured.device.date = now_text();
  const BenchContext context = session->context();
  auto empty = time_empty_kernel(context);
  if (!empty) return tl::unexpected<Error>(empty.error());
  measured.device.launch_us = empty->values.median;
  auto stream = time_stream(context);
  if (!stream) return tl::unexpected<Error>(stream.error());
  measured.device.dram_tbps = tera_per_second(*stream, "bytes");
  measured.records = {std::move(*empty), std::move(*stream)};
  if (Status ok = measure_gemm(context, measured); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return measured;
}

Json to_json(const DeviceMeasurement& m) {
  Json document{{"name", m.device.name},
                {"full_name", m.assumed.full_name},
                {"sm_count", m.device.sm_count},
                {"driver", m.device.driver},
                {"date", m.device.date}};
  for (const Row& row : rows(m)) {
    document.add(row.name, {{"assumed", row.assumed}, {"measured", row.measured}});
  }
  Json records = Json::array();
  for (const Record& record : m.records) records.push_back(octile::to_json(record));
  return document.add("records", std::move(records));
}

std::string to_text(const DeviceMeasurement& m) {
  TextTable table({"<speed", ">assumed", ">measured"});
  for (const Row& row : rows(m)) {
    table.add_row(
        {row.name, fmt::format("{:.3f}", row.assumed), fmt::format("{:.3f}", row.measured)});
  }
  const Record& gemm = m.records.back();
  return fmt::format("{}, {} SMs: a GEMM of {}x{}x{} takes {:.1f} us, {:.0f} TFLOP/s\n\n{}",
                     m.assumed.full_name, m.device.sm_count, kGemmExtent, kGemmExtent, kGemmExtent,
                     gemm.values.median, tera_per_second(gemm, "flop"), table.render());
}

}  // namespace octile::tools
