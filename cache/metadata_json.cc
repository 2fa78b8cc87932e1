#include "cache/metadata_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cache/field_reader.h"

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

tl::expected<Head, std::string> metadata_from_json(std::string_view text) {
  const auto json = parse_object(text, "metadata");
  if (!json) return tl::unexpected(json.error());
  Head head;
  FieldReader reader(*json, "metadata");
  reader.read("kernel", head.entry_name);
  reader.read("architecture", head.architecture);
  reader.read("compiler", head.toolchain.compiler);
  reader.read("build", head.toolchain.build);
  reader.read("problem", head.metadata.problem);
  reader.read("config", head.metadata.config);
  for (const IntField& field : kIntFields) reader.read(field.name, head.metadata.*field.member);
  reader.read("parameter_bytes", head.metadata.parameter_bytes);
  reader.read("compile_ms", head.metadata.compile_ms);
  reader.read("date", head.metadata.date);
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  return head;
}

}  // namespace octile::cache
