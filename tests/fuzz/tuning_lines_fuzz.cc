// libFuzzer target of the reader of tuning records. Any text is read as a file, and its records are
// looked up.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cache/tuning_file.h"
#include "cache/tuning_set.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octile::cache;
  const TuningLines lines = parse_tuning_lines({reinterpret_cast<const char*>(data), size});
  // An accepted record can be written again on one line and then means the same.
  for (const TuningRecord& record : lines.records) {
    const std::string line = to_json_line(record);
    const auto again = parse_tuning_record(line);
    if (line.find('\n') != std::string::npos || !again || *again != record) std::abort();
  }
  TuningSet set;
  set.add(lines.records, "fuzz");
  // Each record is found, or a later record of the same decision in its place.
  for (const TuningRecord& record : lines.records) {
    const auto hits = set.lookup({record.problem, record.bucket, record.device, record.sm_count});
    if (hits.empty() || hits[0].match != TuningMatch::kExact) std::abort();
  }
  return 0;
}
