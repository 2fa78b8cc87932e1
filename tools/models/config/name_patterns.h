// Patterns of module names, as quantization_config and the command's options have them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "generator/core/error.h"

namespace octile::tools {

// Calls `use` with each word between two separators.
template <typename Use>
void for_words(std::string_view text, char separator, const Use& use) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    use(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

// Returns true if `pattern`, in which * stands for any letters and ? for one, is the text.
bool matches_glob(std::string_view pattern, std::string_view text);

// Patterns of which each means a module and what is below it: "lm_head", "layers.3.mlp.gate",
// "layers.*.self_attn". A pattern matches a name if it is some of the name's parts, which follow
// each other. One that begins with "re:" is a regular expression, which begins with the name.
class NamePatterns {
 public:
  NamePatterns() = default;
  // Errors: kInvalidArgument for a regular expression that is none, or that is not simple: one of
  // nested repetitions could take hours.
  static Result<NamePatterns> read(const std::vector<std::string>& patterns);

  bool match(const std::string& name) const;
  bool is_empty() const { return exact_.empty() && globs_.empty() && expressions_.empty(); }

 private:
  struct Expression;  // a compiled one
  std::unordered_set<std::string> exact_;
  std::vector<std::string> globs_;
  std::vector<std::shared_ptr<const Expression>> expressions_;
};

}  // namespace octile::tools
