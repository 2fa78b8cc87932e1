#include "tools/common/records.h"

#include <fmt/format.h>

#include "tools/common/output_file.h"

namespace octile::tools {

Status check_records_file(const std::string& path) {
  if (path.empty()) return {};
  const auto records = read_records(path);
  if (records && records->empty()) return check_output_file(path);
  if (records) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--records is '{}'; allowed: a file of records, or one that does not "
                          "exist: {}",
                          path, records.error().message));
}

Status keep_records(const std::string& path, const std::vector<Record>& records) {
  if (path.empty()) return {};
  return append_records(path, records);
}

Json document_of(const GpuSession& gpu, const std::vector<Record>& records) {
  Json all = Json::array();
  for (const Record& record : records) all.push_back(to_json(record));
  return {{"device", gpu.device()}, {"records", std::move(all)}};
}

}  // namespace octile::tools
