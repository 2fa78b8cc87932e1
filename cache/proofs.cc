#include "cache/proofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "cache/field_reader.h"
#include "cache/json.h"
#include "cache/turn.h"

namespace octile::cache {
namespace {

constexpr const char* kProofsFolder = "proofs";
// Whoever has the turn reads, writes and flushes one small file.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPause{1};
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

Proofs::Proofs(const std::string& root, const std::string& device,
               std::shared_ptr<FileOps> file_ops)
    : ops_(or_system(std::move(file_ops))),
      root_(device.empty() ? "" : root),
      device_(device),
      file_(root, device + ".json", ops_, kProofsFolder) {}

IoResult<std::vector<Proof>> Proofs::read() const {
  if (root_.empty()) return std::vector<Proof>();
  const auto text = file_.read();
  if (!text) {
    if (text.error().code == ENOENT) return std::vector<Proof>();
    return tl::unexpected(text.error());
  }
  auto proofs = parse_proofs(*text);
  if (!proofs) return tl::unexpected(IoError{0, fmt::format("{}: {}", path(), proofs.error())});
  return std::move(*proofs);
}

IoResult<void> Proofs::put(const Proof& proof) const {
  if (root_.empty()) return {};
  Turn turn(root_, fmt::format("proofs-{}", device_), ops_);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  // If it cannot be taken for another reason than that somebody has it, nobody takes turns here.
  for (auto state = turn.try_take(); state && *state != TurnState::kMine; state = turn.try_take()) {
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPause);
  }
  return replace_with(proof);
}

IoResult<void> Proofs::replace_with(const Proof& proof) const {
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
