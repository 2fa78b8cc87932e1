#include "tools/models/shapes_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "generator/core/recipe.h"
#include "tools/models/config/leaves.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// Reads fields; the first error is kept.
class FieldsOf {
 public:
  FieldsOf(const Json& object, std::string at, Status& status)
      : object_(object), at_(std::move(at)), status_(status) {
    if (!object.is_object()) refuse("", "an object");
  }

  bool contains(const char* name) const { return object_.contains(name); }

  std::int64_t count(const char* name, std::int64_t least) const {
    const Json* value = find(name);
    const auto count = value == nullptr ? std::nullopt : value->integer();
    if (count && *count >= least && *count <= kMost) return *count;
    refuse(name, fmt::format("an integer from {} to {}", least, kMost));
    return least;
  }
  std::int64_t count_or(const char* name, std::int64_t least, std::int64_t otherwise) const {
    return contains(name) ? count(name, least) : otherwise;
  }
  std::string text(const char* name, const std::string& otherwise) const {
    if (!contains(name)) return otherwise;
    const Json& value = *find(name);
    if (value.string() != nullptr) return *value.string();
    refuse(name, "a text");
    return otherwise;
  }
  bool flag(const char* name) const {
    if (!contains(name)) return false;
    const Json& value = *find(name);
    if (const auto flag = value.boolean()) return *flag;
    refuse(name, "true or false");
    return false;
  }
  // Returns an array, empty if there is none.
  const Json& array(const char* name) const {
    static const Json none = Json::array();
    if (!contains(name)) return none;
    const Json& value = *find(name);
    if (value.is_array()) return value;
    refuse(name, "an array");
    return none;
  }

  void refuse(const std::string& name, const std::string& allowed) const {
    if (!status_) return;
    const std::string field = at_.empty() ? name : name.empty() ? at_ : at_ + "." + name;
    const Json* value = name.empty() ? &object_ : find(name.c_str());
    const std::string is = value == nullptr ? "is missing" : "is " + value->dump().substr(0, 60);
    status_ =
        fail(ErrorCode::kInvalidArgument, fmt::format("{} {}; allowed: {}", field, is, allowed));
  }

 private:
  const Json* find(const char* name) const { return object_.find(name); }

  const Json& object_;
  const std::string at_;
  Status& status_;
};

// The heads of the whole model count for weights that state none.
void read_cut(const FieldsOf& fields, const HeadCounts& heads, Weight& weight) {
  constexpr std::array kCuts{Cut::kNone, Cut::kN, Cut::kK, Cut::kUnknown};
  const std::string split = fields.text("split", name_of(Cut::kUnknown));
  const auto* const cut =
      std::ranges::find_if(kCuts, [&](Cut one) { return split == name_of(one); });
  if (cut == kCuts.end()) return fields.refuse("split", "n, k, - or ?");
  if (*cut != Cut::kUnknown) weight.cut = *cut;
  if (*cut == Cut::kUnknown) weight.input += kByName;
  const std::int64_t size = weight.cut == Cut::kK ? weight.k.value : weight.n.value;
  weight.kv_heads = {fields.count_or("kv_heads", 1, 0), "kv_heads"};
  weight.units = {fields.count_or("heads", 1, weight.kv_heads.value), "heads"};
  if (weight.units.value == 0) {
    weight.units = {size, weight.cut == Cut::kK ? "k" : "n"};
    return divide_by_name(weight, heads);
  }
  const std::int64_t kv = weight.kv_heads.value;
  weight.kv_n = kv == 0 ? 0 : fields.count_or("kv_n", 1, weight.n.value);
  if (weight.kv_n > size) return fields.refuse("kv_n", fmt::format("at most n, {}", size));
  const std::int64_t own = size - weight.kv_n;
  if (own % weight.units.value != 0) {
    fields.refuse("heads", fmt::format("divisors of the {} columns of heads", own));
  } else if (kv > 0 && weight.kv_n % kv != 0) {
    fields.refuse("kv_heads",
                  fmt::format("divisors of the {} columns of keys and values", weight.kv_n));
  }
}

void read_experts(const FieldsOf& fields, Weight& weight) {
  weight.groups = fields.count("groups", 1);
  weight.per_token = fields.count("per_token", 1);
  if (weight.per_token > weight.groups) {
    fields.refuse("per_token", fmt::format("at most groups, {}", weight.groups));
  }
}

Weight read_weight(const FieldsOf& fields, bool is_whole, const HeadCounts& heads) {
  Weight weight;
  weight.role = fields.text("role", "");
  if (weight.role.empty()) fields.refuse("role", "the name of a module");
  weight.layers = fields.count("layers", 0);
  weight.mtp = fields.count_or("mtp", 0, 0);
  weight.n = plain(fields.count("n", 1));
  weight.k = plain(fields.count_or("k", 1, 0));
  weight.bias = fields.flag("bias");
  name_weight(weight);
  weight.out = fields.text("why", "");
  if (fields.contains("groups")) read_experts(fields, weight);
  if (!weight.out.empty()) return weight;
  if (weight.is_vector()) fields.refuse("k", fmt::format("an integer from 1 to {}", kMost));
  if (is_whole) {
    read_cut(fields, heads, weight);
  } else {
    weight.cut = Cut::kUnknown;
  }
  weight.stored = fields.text("recipe", "");
  if (!weight.stored.empty() && find_recipe(weight.stored) == nullptr) {
    fields.refuse("recipe", recipe_names());
  }
  return weight;
}

// Returns true if the weights are those of one rank that holds all of the model.
bool is_whole(const FieldsOf& model, const Json& document, const std::string& at, Status& status) {
  if (!model.contains("parallel")) return true;
  const FieldsOf parallel(document.at("parallel"), at + ".parallel", status);
  bool whole = true;
  for (const char* name : {"tp", "ep", "moe_tp"}) {
    whole = parallel.count_or(name, 1, 1) == 1 && whole;
  }
  return whole;
}

Model read_model(const Json& document, const std::string& at, const std::string& origin,
                 Status& status) {
  const FieldsOf fields(document, at, status);
  Model model;
  model.name = fields.text("model", origin);
  model.origin = origin;
  model.model_type = fields.text("model_type", "");
  model.layers = fields.count_or("layers", 0, 0);
  const bool whole = is_whole(fields, document, at, status);
  const HeadCounts heads{fields.count_or("heads", 0, 0), fields.count_or("kv_heads", 0, 0)};
  for (const char* name : {"weights", "left_out"}) {
    const Json& weights = fields.array(name);
    for (std::size_t i = 0; i < weights.size() && status; ++i) {
      const FieldsOf of(weights.at(i), fmt::format("{}.{}[{}]", at, name, i), status);
      if (status) model.weights.push_back(read_weight(of, whole, heads));
    }
  }
  return model;
}

}  // namespace

bool is_shapes_document(const Json& document) {
  return document.is_object() && document.contains("models") && document.at("models").is_array();
}

Result<Model> model_of_shapes_document(const Json& document, const std::string& origin) {
  const Json& models = document.at("models");
  if (models.size() != 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: models has {} entries; allowed: one model a file", origin, models.size()));
  }
  Status status;
  Model model = read_model(models.at(0), "models[0]", origin, status);
  if (status) return model;
  return fail(status.error().code, fmt::format("{}: {}", origin, status.error().message));
}

}  // namespace octile::tools
