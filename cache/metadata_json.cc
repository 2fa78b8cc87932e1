#include "cache/metadata_json.h"

#include <cmath>
#include <utility>

#include "cache/field_reader.h"
#include "cache/json.h"

namespace octile::cache {
namespace {

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
  Json json = Json::object();
  json.add("kernel", entry.identity.entry_name)
      .add("architecture", entry.identity.architecture)
      .add("compiler", entry.toolchain.compiler)
      .add("build", entry.toolchain.build)
      .add("problem", metadata.problem)
      .add("config", metadata.config);
  for (const IntField& field : kIntFields) json.add(field.name, metadata.*field.member);
  Json sizes = Json::array();
  for (const int bytes : metadata.parameter_bytes) sizes.push_back(bytes);
  return json
      .add("parameter_bytes", std::move(sizes))
      // JSON has no infinity or NaN; an unknown time is 0.
      .add("compile_ms", std::isfinite(metadata.compile_ms) ? metadata.compile_ms : 0.0)
      .add("date", metadata.date)
      .dump();
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
