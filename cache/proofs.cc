#include "cache/proofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/field_reader.h"
#include "cache/json.h"

namespace octile::cache {
namespace {

constexpr const char* kProofsName = "proofs.json";
constexpr int kProofsVersion = 1;

struct TextField {
  const char* name;
  std::string Proof::* member;
};
constexpr TextField kTexts[] = {
    {"device", &Proof::device}, {"driver", &Proof::driver}, {"test", &Proof::test},
    {"digest", &Proof::digest}, {"wrong", &Proof::wrong},   {"date", &Proof::date},
};

bool is_same_test(const Proof& a, const Proof& b) {
  return a.device == b.device && a.driver == b.driver && a.test == b.test && a.digest == b.digest;
}

}  // namespace

std::string to_json_text(const std::vector<Proof>& proofs) {
  std::string list;  // a line for each proof
  for (const Proof& proof : proofs) {
    Json object = Json::object();
    for (const TextField& field : kTexts) object.add(field.name, proof.*field.member);
    list += list.empty() ? "\n" : ",\n";
    list += object.add("sum_bits", proof.sum_bits).dump();
  }
  return fmt::format("{{\"version\":{},\"proofs\":[{}]}}\n", kProofsVersion, list);
}

tl::expected<std::vector<Proof>, std::string> parse_proofs(std::string_view text) {
  constexpr std::string_view kWhere = "proofs";
  const auto document = parse_object(text, kWhere);
  if (!document) return tl::unexpected(document.error());
  FieldReader reader(*document, kWhere);
  int version = 0;
  reader.read("version", version);
  if (version != kProofsVersion) reader.complain("version", fmt::format_int(kProofsVersion).str());
  const Json* list = reader.find("proofs");
  if (list == nullptr || !list->is_array()) reader.complain("proofs", "an array");
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  std::vector<Proof> proofs;
  for (const Json& object : *list) {
    if (!object.is_object())
      return tl::unexpected(std::string("proofs: a proof is not a JSON object"));
    FieldReader fields(object, "proof");
    Proof& proof = proofs.emplace_back();
    for (const TextField& field : kTexts) fields.read(field.name, proof.*field.member);
    fields.read("sum_bits", proof.sum_bits);
    if (!fields.error().empty()) return tl::unexpected(fields.error());
  }
  return proofs;
}

Proofs::Proofs(const std::string& root, std::shared_ptr<FileOps> file_ops)
    : path_(root.empty() ? "" : root + "/" + kProofsName),
      file_(root, kProofsName, std::move(file_ops)) {}

IoResult<std::vector<Proof>> Proofs::read() const {
  if (path_.empty()) return std::vector<Proof>();
  const auto text = file_.read();
  if (!text) {
    if (text.error().code == ENOENT) return std::vector<Proof>();
    return tl::unexpected(text.error());
  }
  auto proofs = parse_proofs(*text);
  if (!proofs) return tl::unexpected(IoError{0, fmt::format("{}: {}", path_, proofs.error())});
  return std::move(*proofs);
}

IoResult<void> Proofs::put(const Proof& proof) const {
  if (path_.empty()) return {};
  auto known = read();
  // A file that cannot be read may hold other proofs. One that is damaged is replaced.
  if (!known && known.error().code != 0) return tl::unexpected(std::move(known.error()));
  std::vector<Proof> proofs = known ? std::move(*known) : std::vector<Proof>();
  std::erase_if(proofs, [&](const Proof& other) { return is_same_test(other, proof); });
  proofs.push_back(proof);
  std::string text = to_json_text(proofs);
  while (text.size() > kMaxMemoBytes && proofs.size() > 1) {
    proofs.erase(proofs.begin());
    text = to_json_text(proofs);
  }
  return file_.replace(text);
}

}  // namespace octile::cache
