#include "tools/doctor/times.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "tools/bench/measurement.h"
#include "tools/bench/session.h"

namespace octile::tools {
namespace {

constexpr int kTimedRounds = 20;

// Layers of Llama-3-8B and of DeepSeek-V3, with one token, some and many.
struct Timed {
  std::int64_t n, k, tokens;
};
constexpr std::array kTimed{
    Timed{4096, 4096, 1},    Timed{4096, 4096, 64},    Timed{4096, 4096, 4096},
    Timed{14336, 4096, 1},   Timed{14336, 4096, 64},   Timed{14336, 4096, 4096},
    Timed{4096, 14336, 64},  Timed{4096, 14336, 4096}, Timed{7168, 2048, 128},
    Timed{2112, 7168, 1024},
};

Json time_of(const BenchContext& context, const Timed& timed) {
  GemmProblem problem;
  problem.n = timed.n;
  problem.k = timed.k;
  Json row{{"problem", to_text(Problem(problem))}, {"tokens", timed.tokens}};
  const auto record = bench(context, problem, timed.tokens);
  if (!record) return row.set("why_not", record.error().message);
  const auto peer = std::ranges::find(record->peers, "cublaslt", &PeerValues::name);
  Json peer_us;
  if (peer != record->peers.end()) {
    if (const auto& values = peer->values) peer_us = Json(values->median);
  }
  const Json* config = record->details.find("config");
  return row.set("config", config == nullptr ? Json() : *config)
      .set("us", record->values.median)
      .set("ok", record->ok)
      .set("cublaslt_us", std::move(peer_us));
}

}  // namespace

Result<Json> card_times(const std::string& device) {
  const bool has_cublaslt = CublasLt::open().has_value();
  SessionOptions options;
  options.device = device;
  options.rounds = kTimedRounds;
  const auto session = BenchSession::open("doctor --report", options, has_cublaslt);
  if (!session) return tl::unexpected<Error>(session.error());
  const BenchContext context = session->context();
  Json rows = Json::array();
  for (const Timed& timed : kTimed) rows.push_back(time_of(context, timed));
  return rows;
}

}  // namespace octile::tools
