#include "tools/models/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "cache/json.h"
#include "generator/core/text_fields.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

// Reads one file's fields; every error begins with the file's name.
class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  Result<ModelFile> read(const Json& root) const {
    if (auto s = check_keys(root, "the file", {"model", "source", "gemms", "tokens"}, {"experts"});
        !s) {
      return tl::unexpected<Error>(s.error());
    }
    ModelFile file;
    Status s = read_text(root.at("model"), "model", file.model);
    if (s) s = read_text(root.at("source"), "source", file.source);
    if (s) s = read_gemms(root.at("gemms"), file.gemms);
    if (s) s = read_tokens(root.at("tokens"), file.tokens);
    if (s && root.contains("experts")) s = read_experts(root.at("experts"), file.experts.emplace());
    if (!s) return tl::unexpected<Error>(s.error());
    file.origin = origin_;
    return file;
  }

  tl::unexpected<Error> refuse(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin_, what));
  }

 private:
  tl::unexpected<Error> refuse_value(std::string_view field, const Json& value,
                                     std::string_view allowed) const {
    return refuse(fmt::format("{} is {}; allowed is {}", field, excerpt(value), allowed));
  }

  // `value` is an object with all of `keys`, perhaps some of `optional`, and no others.
  Status check_keys(const Json& value, std::string_view field,
                    std::initializer_list<const char*> keys,
                    std::initializer_list<const char*> optional = {}) const {
    if (!value.is_object()) return refuse_value(field, value, "an object");
    std::string names = fmt::format("{}", fmt::join(keys, ", "));
    for (const char* key : optional) names.append(", optional ").append(key);
    for (const auto& member : value.items()) {
      const std::string& key = member.name;
      const auto is_key = [&](const char* k) { return key == k; };
      if (std::ranges::none_of(keys, is_key) && std::ranges::none_of(optional, is_key)) {
        return refuse(
            fmt::format("{} has an unknown field '{}'; its fields are {}", field, key, names));
      }
    }
    for (const char* key : keys) {
      if (!value.contains(key)) {
        return refuse(fmt::format("{} lacks the field '{}'; its fields are {}", field, key, names));
      }
    }
    return {};
  }

  Status read_text(const Json& value, std::string_view field, std::string& out) const {
    if (value.string() == nullptr || value.string()->empty()) {
      return refuse_value(field, value, "a string that is not empty");
    }
    out = *value.string();
    return {};
  }

  Status read_count(const Json& value, const std::string& field, std::int64_t& out) const {
    constexpr std::string_view kAllowed = "an integer from 1 to 2147483647";
    const auto count = value.integer();
    if (!count || *count < 1 || *count > kMostCount) return refuse_value(field, value, kAllowed);
    out = *count;
    return {};
  }

  Status read_split(const Json& value, const std::string& field, TensorSplit& out) const {
    if (value == "none") {
      out = TensorSplit::kNone;
    } else if (value == "n") {
      out = TensorSplit::kN;
    } else if (value == "k") {
      out = TensorSplit::kK;
    } else {
      return refuse_value(field, value, "\"n\", \"k\" or \"none\"");
    }
    return {};
  }

  Status read_gemms(const Json& value, std::vector<ModelGemm>& out) const {
    if (!value.is_array() || value.empty()) {
      return refuse_value("gemms", value, "an array that is not empty");
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = fmt::format("gemms[{}]", i);
      const Json& gemm_at = value.at(i);
      Status s = check_keys(gemm_at, at, {"name", "n", "k", "split"});
      ModelGemm gemm;
      if (s) s = read_text(gemm_at.at("name"), at + ".name", gemm.name);
      if (s) s = read_count(gemm_at.at("n"), at + ".n", gemm.n);
      if (s) s = read_count(gemm_at.at("k"), at + ".k", gemm.k);
      if (s) s = read_split(gemm_at.at("split"), at + ".split", gemm.split);
      if (!s) return s;
      out.push_back(std::move(gemm));
    }
    return {};
  }

  Status read_tokens(const Json& value, std::vector<std::int64_t>& out) const {
    if (!value.is_array() || value.empty()) {
      return refuse_value("tokens", value, "an array that is not empty");
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = fmt::format("tokens[{}]", i);
      std::int64_t count = 0;
      if (Status s = read_count(value.at(i), at, count); !s) return s;
      if (!out.empty() && count <= out.back()) {
        return refuse_value(at, value.at(i), fmt::format("more than the {} before it", out.back()));
      }
      out.push_back(count);
    }
    return {};
  }

  Status read_expert_gemm(const Json& value, const std::string& at, ExpertGemm& out) const {
    Status s = check_keys(value, at, {"n", "k"});
    if (s) s = read_count(value.at("n"), at + ".n", out.n);
    if (s) s = read_count(value.at("k"), at + ".k", out.k);
    return s;
  }

  Status read_experts(const Json& value, ModelExperts& out) const {
    Status s = check_keys(value, "experts", {"count", "per_token", "gate_up", "down"});
    if (s) s = read_count(value.at("count"), "experts.count", out.count);
    if (s) s = read_count(value.at("per_token"), "experts.per_token", out.per_token);
    if (s && out.per_token > out.count) {
      return refuse_value("experts.per_token", value.at("per_token"),
                          fmt::format("at most experts.count, {}", out.count));
    }
    if (s) s = read_expert_gemm(value.at("gate_up"), "experts.gate_up", out.gate_up);
    if (s) s = read_expert_gemm(value.at("down"), "experts.down", out.down);
    return s;
  }

  std::string_view origin_;
};

}  // namespace

Result<ModelFile> parse_model_file(std::string_view json, std::string_view origin) {
  return parse_document(json, std::string(origin)).and_then([&](const Json& root) {
    return Reader(origin).read(root);
  });
}

Result<ModelFile> read_model_file(const std::string& path) {
  std::string name;
  return read_text(path, name).and_then([&](const std::string& text) {
    return parse_model_file(text, name);
  });
}

}  // namespace octile::tools
