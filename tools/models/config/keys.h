// The keys of a config.json, read by name. The first that cannot be read is kept as the error, and
// reading goes on with harmless values, so that a block is a list of the keys it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/json.h"
#include "generator/core/error.h"
#include "generator/core/text_fields.h"
#include "tools/models/config/extent.h"

namespace octile::tools {

// A key that published configs may leave out, with the value that it has then.
using KeyDefault = std::pair<std::string_view, std::int64_t>;

class Keys {
 public:
  // Names of one meaning; the first that is present counts. "a.b" is the key b of the object a.
  using Names = std::initializer_list<std::string_view>;

  // `prefix` is that of the object within the file, such as "text_config.". The object must outlive
  // this.
  Keys(const Json& object, std::string origin, std::string prefix)
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}
  void set_defaults(std::vector<KeyDefault> defaults) { defaults_ = std::move(defaults); }

  // Returns true if the key is there and not null.
  bool contains(std::string_view name) const;
  bool has_any(Names names) const;

  // Returns a count from 1 to `most`. A list of equal numbers counts as that number. Without any of
  // the names: `otherwise`, or an error.
  Extent count(Names names, std::int64_t most = kMostCount);
  Extent count_or(Names names, const Extent& otherwise);
  // Returns a count from 0 to `most`, `otherwise` without any of the names.
  std::int64_t count_from_zero(Names names, std::int64_t otherwise, std::int64_t most = kMostCount);
  // Returns the index of a layer; -1 and no key stand for the last one.
  std::int64_t last_layer(std::string_view name, std::int64_t layers);
  // Returns true or false; `otherwise` without the key.
  bool flag(std::string_view name, bool otherwise);
  // Return a list; of `texts`, of the words that are allowed, at least `size`, and the first of
  // these count.
  std::vector<std::string> texts(std::string_view name, std::int64_t size, Names allowed);
  std::vector<std::int64_t> numbers(std::string_view name);
  std::vector<std::int64_t> numbers(std::string_view name, std::int64_t size);
  bool is_list(std::string_view name) const;
  bool is_text(std::string_view name) const;

  // Keeps "FILE: PREFIXNAME is VALUE; allowed: ..." as the error, unless there is one.
  void refuse(std::string_view name, std::string_view allowed);
  // Keeps "FILE: " and the sentence.
  void refuse_text(std::string_view sentence);
  // Returns "KEY (VALUE)" of each key that nothing asked for and that may change the weights: a
  // count or true, and none of those known to change none. Objects within count if a key of them
  // was read.
  std::vector<std::string> unread() const;
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }
  const Status& status() const { return status_; }

 private:
  const Json* find(std::string_view name) const;
  std::string_view first_of(Names names) const;
  std::optional<std::int64_t> default_of(Names names) const;
  std::int64_t read(std::string_view name, std::int64_t least, std::int64_t most = kMostCount);
  std::optional<std::int64_t> number_of(const Json& value, std::int64_t least,
                                        std::int64_t most = kMostCount) const;
  const Json* list_of(std::string_view name, std::int64_t size);

  const Json& object_;
  std::string origin_, prefix_;
  std::vector<KeyDefault> defaults_;
  Status status_;
  mutable std::set<std::string, std::less<>> asked_;  // names; objects with a dot behind them
};

// The experts of a layer, and those that a token goes to.
inline const Keys::Names kExpertCounts{"n_routed_experts", "num_experts", "num_local_experts",
                                       "moe_num_experts", "ffn_config.moe_num_experts"};
inline const Keys::Names kExpertsPerToken{
    "num_experts_per_tok",   "moe_topk",          "moe_k",
    "num_experts_per_token", "experts_per_token", "top_k_experts",
    "ffn_config.moe_top_k"};

}  // namespace octile::tools
