// Calls that search, and those on tuning records.
#include <fstream>
#include <numeric>

#include "octile/tuning.h"
#include "tests/support/api_calls.h"
#include "tests/support/tuning_testing.h"

namespace octile::test {
namespace {

octile_prepare_options& searching(ApiCall& call) {
  auto& a = call.keep<octile_prepare_options>();
  a.flags = OCTILE_PREPARE_TUNE;
  call.add(OCTILE_FIELDS(a.struct_size, a.tune_seconds, a.stream, a.flags, a.reserved));
  return a;
}

}  // namespace

// On the host nothing is searched.
ApiCall Calls::plan_prepare_with(const std::string& base) {
  octile_plan* const on = plan(base);
  ApiCall call;
  call.set(octile_plan_prepare_with, {"plan", "lo", "hi", "options"}, on, 1, 1, &searching(call));
  return call;
}
ApiCall Calls::layer_prepare_with(const std::string& base) {
  octile_layer* const on = layer(base).handle.get();
  ApiCall call;
  call.set(octile_layer_prepare_with, {"layer", "lo", "hi", "uses", "options"}, on, 1, 64, 0,
           &searching(call));
  return call;
}

// The callback ends the search before the first question.
ApiCall Calls::tune(const std::string&) {
  ApiCall call;
  auto& a = call.keep<octile_tune_options>();
  auto& texts = call.keep<std::array<std::string, 11>>();
  auto& problems = call.keep<std::array<const char*, 11>>();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i] = fmt::format("quantize rows=? cols={} x=bf16 q=e4m3:1x128 out=row", 128 * (i + 1));
    problems[i] = texts[i].c_str();
  }
  auto& tokens = call.keep(std::vector<std::int64_t>(100'000));
  std::iota(tokens.begin(), tokens.end(), 1);
  octile_tune_result& result = *put<octile_tune_result>();
  a.problems = problems.data();
  a.problem_count = 1;
  a.tokens = tokens.data();
  a.token_count = 2;
  a.progress = [](const octile_tune_progress*, void*) -> std::int32_t { return 1; };
  call.set(octile_tune, {"library", "device", "options", "result"}, library_.get(), "cuda:0", &a,
           &result);
  call.add(OCTILE_FIELDS(a.struct_size, a.problems, a.problem_count, a.tokens, a.token_count,
                         a.budget_seconds, a.folder, a.force, a.reserved, problems[0], tokens[0],
                         result.struct_size));
  return call;
}

ApiCall Calls::records_find(const std::string&) {
  return call_of(octile_records_find, {"library", "device", "problem", "tokens", "buffer", "size"},
                 library_.get(), "h200", kGemmText.c_str(), 1, memory_.take<char>(),
                 put(std::size_t{1} << 16));
}

const char** Calls::paths_of_records(ApiCall& call) {
  auto& file = call.keep(folder_.path() + "/set.jsonl");
  std::ofstream(file) << to_json_line(
      cache::testing::make_decision(cache::testing::kTunedProblem, 64));
  const char** const paths = put(file.c_str());
  call.add({{"file", &call.keep(file.c_str())}, {"folder", &call.keep(folder_.path().c_str())}});
  call.fields.emplace_back("paths[0]", paths);
  return paths;
}
ApiCall Calls::records_load(const std::string&) {
  ApiCall call;
  call.set(octile_records_load, {"library", "paths", "count"}, library_.get(),
           paths_of_records(call), 1);
  return call;
}
ApiCall Calls::records_merge(const std::string&) {
  ApiCall call;
  auto& out = call.keep(folder_.path() + "/merged.jsonl");
  call.set(octile_records_merge, {"library", "paths", "count", "out", "result"}, library_.get(),
           paths_of_records(call), 1, out.c_str(), put<octile_records_merged>());
  return call;
}

}  // namespace octile::test
