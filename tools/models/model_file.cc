#include "tools/models/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "generator/core/text_fields.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

using Json = nlohmann::json;

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
    Status s = read_text(root["model"], "model", file.model);
    if (s) s = read_text(root["source"], "source", file.source);
    if (s) s = read_gemms(root["gemms"], file.gemms);
    if (s) s = read_tokens(root["tokens"], file.tokens);
    if (s && root.contains("experts")) s = read_experts(root["experts"], file.experts.emplace());
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
    for (const auto& item : value.items()) {
      const std::string& key = item.key();
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
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      return refuse_value(field, value, "a string that is not empty");
    }
    out = value.get<std::string>();
    return {};
  }

  Status read_count(const Json& value, const std::string& field, std::int64_t& out) const {
    constexpr std::string_view kAllowed = "an integer from 1 to 2147483647";
    // Positive integers are parsed as unsigned; larger ones as floating-point numbers.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() == 0 ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostCount)) {
      return refuse_value(field, value, kAllowed);
    }
    out = value.get<std::int64_t>();
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
      Status s = check_keys(value[i], at, {"name", "n", "k", "split"});
      ModelGemm gemm;
      if (s) s = read_text(value[i]["name"], at + ".name", gemm.name);
      if (s) s = read_count(value[i]["n"], at + ".n", gemm.n);
      if (s) s = read_count(value[i]["k"], at + ".k", gemm.k);
      if (s) s = read_split(value[i]["split"], at + ".split", gemm.split);
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
      if (Status s = read_count(value[i], at, count); !s) return s;
      if (!out.empty() && count <= out.back()) {
        return refuse_value(at, value[i], fmt::format("more than the {} before it", out.back()));
      }
      out.push_back(count);
    }
    return {};
  }

  Status read_expert_gemm(const Json& value, const std::string& at, ExpertGemm& out) const {
    Status s = check_keys(value, at, {"n", "k"});
    if (s) s = read_count(value["n"], at + ".n", out.n);
    if (s) s = read_count(value["k"], at + ".k", out.k);
    return s;
  }

  Status read_experts(const Json& value, ModelExperts& out) const {
    Status s = check_keys(value, "experts", {"count", "per_token", "gate_up", "down"});
    if (s) s = read_count(value["count"], "experts.count", out.count);
    if (s) s = read_count(value["per_token"], "experts.per_token", out.per_token);
    if (s && out.per_token > out.count) {
      return refuse_value("experts.per_token", value["per_token"],
                          fmt::format("at most experts.count, {}", out.count));
    }
    if (s) s = read_expert_gemm(value["gate_up"], "experts.gate_up", out.gate_up);
    if (s) s = read_expert_gemm(value["down"], "experts.down", out.down);
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
