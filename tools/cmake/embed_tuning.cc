// Writes OUT, a C++ file with the tuning records of the named files in the form that
// runtime/tuned/embedded.h declares. The build runs it: octile_embed_tuning OUT FILE...
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "cache/tuning_record.h"
#include "runtime/tuned/embedded.h"

namespace octile::tuned {
namespace {

std::string quoted(const std::string& text) {
  for (const char c : text)
    if (c < ' ' || c > '~' || c == '"' || c == '\\')
      throw std::runtime_error(
          fmt::format("'{}' holds a character that is not plain text; allowed are printable ASCII "
                      "characters without quotes and backslashes",
                      text));
  return '"' + text + '"';
}

std::string literal(const cache::TimedConfig& t) {
  return fmt::format("{{{}, {}, {}, {}}}", quoted(t.config), t.median_us, t.low_us, t.high_us);
}

// Returns 0 if the time is absent.
double time_of(const cache::TuningRecord::NamedTimes& times, const char* name) {
  const auto found = std::ranges::find(times, name, [](const auto& time) { return time.first; });
  return found == times.end() ? 0 : found->second;
}

std::string literal(const cache::TuningRecord& r) {
  return fmt::format(
      "    {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}},\n", quoted(r.family),
      quoted(r.problem), r.bucket, r.tokens, quoted(r.device), r.sm_count, literal(r.winner),
      r.default_config ? literal(*r.default_config) : "{nullptr, 0, 0, 0}", r.gain, r.noise,
      time_of(r.baselines_us, "bf16"), time_of(r.quantize_us, "a"), time_of(r.quantize_us, "b"),
      quoted(r.toolchain.compiler), quoted(r.source_digest), quoted(r.date));
}

Timed timed_of(const cache::TimedConfig& t) {
  return {t.config.c_str(), t.median_us, t.low_us, t.high_us};
}

// The records that the table would give back.
cache::TuningRecord embedded(const cache::TuningRecord& r) {
  const Timed usual = r.default_config ? timed_of(*r.default_config) : Timed{nullptr, 0, 0, 0};
  return record_of({r.family.c_str(), r.problem.c_str(), r.bucket, r.tokens, r.device.c_str(),
                    r.sm_count, timed_of(r.winner), usual, r.gain, r.noise,
                    time_of(r.baselines_us, "bf16"), time_of(r.quantize_us, "a"),
                    time_of(r.quantize_us, "b"), r.toolchain.compiler.c_str(),
                    r.source_digest.c_str(), r.date.c_str()});
}

void write(const char* out, int count, char** files) {
  std::string rows;
  int records = 0;
  for (int i = 0; i < count; ++i) {
    std::ifstream file(files[i]);
    if (!file) throw std::runtime_error(fmt::format("{} cannot be read", files[i]));
    int number = 0;
    for (std::string line; std::getline(file, line); ++records) {
      const auto where = fmt::format("{}:{}", files[i], ++number);
      const auto record = cache::parse_tuning_record(line);
      if (!record) throw std::runtime_error(fmt::format("{}: {}", where, record.error()));
      if (embedded(*record) != *record)
        throw std::runtime_error(where + ": has fields that the embedded sets do not keep");
      rows += literal(*record);
    }
  }
  if (records == 0) rows = "    {},\n";
  std::ofstream table(out);
  table << "#include \"runtime/tuned/embedded.h\"\n\n"
           "namespace octile::tuned {\nnamespace {\nconstexpr Record kRecords[] = {\n"
        << rows << "};\n}  // namespace\n\n"
        << "const Record* records() { return kRecords; }\n"
        << fmt::format("int record_count() {{ return {}; }}\n", records)
        << "}  // namespace octile::tuned\n";
  if (!table.flush()) throw std::runtime_error(fmt::format("{} cannot be written", out));
}

}  // namespace
}  // namespace octile::tuned

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("octile_embed_tuning OUT FILE...\n", stderr);
    return 2;
  }
  try {
    octile::tuned::write(argv[1], argc - 2, argv + 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "octile_embed_tuning: %s\n", error.what());
    return 1;
  }
  return 0;
}
