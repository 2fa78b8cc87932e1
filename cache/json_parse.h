// Parses JSON that others wrote, in linear time: nlohmann's parser with a callback walks all
// siblings at the end of each nested value.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace octile::cache {

struct JsonMistake {
  enum class Kind { kSyntax, kTooDeep, kTwice, kNumber };
  Kind kind = Kind::kSyntax;
  std::size_t byte = 0;  // of kSyntax: how many bytes had been read; more than there are: the end
  std::string key = {};  // of kTwice
};

// Returns the value of a text. `Infinity`, `-Infinity` and `NaN`, which Python's json writes, are
// numbers. Json is nlohmann::json or nlohmann::ordered_json. Errors: no JSON, more than
// `most_depth` arrays and objects within each other, a key twice in one object, a number beyond
// the range of a double.
template <typename Json>
tl::expected<Json, JsonMistake> parse_json(std::string_view text, std::size_t most_depth);

extern template tl::expected<nlohmann::json, JsonMistake> parse_json(std::string_view, std::size_t);
extern template tl::expected<nlohmann::ordered_json, JsonMistake> parse_json(std::string_view,
                                                                             std::size_t);

}  // namespace octile::cache
