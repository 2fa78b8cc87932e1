#include "cache/metadata_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace octile::cache {
namespace {

using Json = nlohmann::ordered_json;

struct IntField {
  const char* name;
  int Metadata::* member;
};
constexpr IntField kIntFields[] = {
    {"registers", &Metadata::registers},
    {"static_smem_bytes", &Metadata::static_smem_bytes},
    {"dynamic_smem_bytes", &Metadata::dynamic_smem_bytes},
    {"spill_store_bytes", &Metadata::spill_store_bytes},
    {"spill_load_bytes", &Metadata::spill_load_bytes},
    {"stack_bytes", &Metadata::stack_bytes},
    {"threads", &Metadata::threads},
    {"cluster_size", &Metadata::cluster_size},
};

std::optional<int> as_int(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  constexpr int kMax = std::numeric_limits<int>::max();
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kMax}) {
    return std::nullopt;
  }
  const auto wide = value.get<std::int64_t>();
  if (wide < std::numeric_limits<int>::min() || wide > kMax) return std::nullopt;
  return static_cast<int>(wide);
}

// Reads fields one after another and remembers the first that is missing or of another type.
class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  void read(const char* name, std::string& out) {
    const Json* value = find(name);
    if (value == nullptr || !value->is_string()) return complain(name, "a string");
    out = value->get<std::string>();
  }
  void read(const char* name, int& out) {
    const Json* value = find(name);
    const std::optional<int> number = value == nullptr ? std::nullopt : as_int(*value);
    if (!number) return complain(name, "a 32-bit integer");
    out = *number;
  }
  void read(const char* name, double& out) {
    const Json* value = find(name);
    if (value == nullptr || !value->is_number()) return complain(name, "a number");
    out = value->get<double>();
  }
  void read(const char* name, std::vector<int>& out) {
    const Json* value = find(name);
    if (value == nullptr || !value->is_array()) return complain(name, "an array of integers");
    for (const Json& item : *value) {
      const std::optional<int> number = as_int(item);
      if (!number) return complain(name, "an array of integers");
      out.push_back(*number);
    }
  }
  const std::string& error() const { return error_; }

 private:
  const Json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  void complain(const char* name, const char* wanted) {
    if (error_.empty()) error_ = fmt::format("metadata: field '{}' is not {}", name, wanted);
  }

  const Json& object_;
  std::string error_;
};

}  // namespace

std::string metadata_to_json(const Entry& entry) {
  const Metadata& metadata = entry.metadata;
  Json json;
  json["kernel"] = entry.identity.entry_name;
  json["architecture"] = entry.identity.architecture;
  json["compiler"] = entry.toolchain.compiler;
  json["build"] = entry.toolchain.build;
  json["problem"] = metadata.problem;
  json["config"] = metadata.config;
  for (const IntField& field : kIntFields) json[field.name] = metadata.*field.member;
  json["parameter_bytes"] = metadata.parameter_bytes;
  // JSON has no infinity or NaN; an unknown time is 0.
  json["compile_ms"] = std::isfinite(metadata.compile_ms) ? metadata.compile_ms : 0.0;
  json["date"] = metadata.date;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

tl::expected<MetadataSection, std::string> metadata_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return tl::unexpected<std::string>("metadata: not a JSON object");
  MetadataSection section;
  FieldReader reader(json);
  reader.read("kernel", section.identity.entry_name);
  reader.read("architecture", section.identity.architecture);
  reader.read("compiler", section.toolchain.compiler);
  reader.read("build", section.toolchain.build);
  reader.read("problem", section.metadata.problem);
  reader.read("config", section.metadata.config);
  for (const IntField& field : kIntFields) reader.read(field.name, section.metadata.*field.member);
  reader.read("parameter_bytes", section.metadata.parameter_bytes);
  reader.read("compile_ms", section.metadata.compile_ms);
  reader.read("date", section.metadata.date);
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  return section;
}

}  // namespace octile::cache
