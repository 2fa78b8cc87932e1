#include "tools/models/config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "generator/core/text_fields.h"
#include "tools/models/config/name_patterns.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

// Names of keys that change no matrix of the language model if no block asked for them: of the
// library, of tokens and of other towers; of positions and masks; of vectors and of activations; of
// the choice of experts; sizes that other keys replace.
constexpr std::string_view kHarmless =
    "_* use_cache pretraining_tp ep_size *_id *_index image_* video_* vision_* audio_* vit_* "
    "class_num org_vocab_size *max_position_embeddings *max_length max_seq_length "
    "initial_context_length *rope_* *rotary* *sliding_window* *_sink_bias max_window_layers "
    "floor_scale attention_chunk_size attn_temperature_tuning query_pre_attn_scalar index_topk "
    "layer_switch no_rope_* mla_scale_* mla_use_nope global_attn_every_n_layers use_qk_norm "
    "qk_norm use_rmsnorm postnorm mamba_chunk_size kda_safe_gate use_routing_bias "
    "use_gated_activation use_parallel_* use_embedding_sharing n_group topk_group "
    "num_expert_group use_grouped_topk norm_topk_prob moe_renormalize moe_use_aux_free seq_aux "
    "use_mixed_mlp_moe num_key_value_heads head_dim qk_head_dim intermediate_size "
    "intermediate_size_mlp first_k_dense_replace interleave_moe_layer_step layer_group_size "
    "full_attention_interval mamba_expand";

bool is_harmless(std::string_view key) {
  bool harmless = false;
  for_words(kHarmless, ' ', [&](auto name) { harmless = harmless || matches_glob(name, key); });
  return harmless;
}

}  // namespace

const Json* Keys::find(std::string_view name) const {
  asked_.emplace(name);
  const Json* object = &object_;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    object = object->find(name.substr(0, dot));
    if (object == nullptr || !object->is_object()) return nullptr;
    name.remove_prefix(dot + 1);
  }
  const Json* found = object->find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::vector<std::string> Keys::unread() const {
  std::vector<std::string> all;
  const auto add = [&](const std::string& name, const Json& value) {
    const std::string_view key = std::string_view(name).substr(name.rfind('.') + 1);
    const bool counts = value.boolean().value_or(false) || value.integer().value_or(0) > 0;
    if (!counts || asked_.contains(name) || is_harmless(key)) return;
    all.push_back(fmt::format("{} ({})", full(name), excerpt(value)));
  };
  for (const auto& [name, value] : object_.items()) {
    add(name, value);
    const auto within = asked_.lower_bound(name + ".");
    if (!value.is_object() || within == asked_.end() || !within->starts_with(name + ".")) continue;
    for (const auto& [inner, of] : value.items()) add(name + "." + inner, of);
  }
  return all;
}

bool Keys::contains(std::string_view name) const { return find(name) != nullptr; }

bool Keys::has_any(Names names) const { return !first_of(names).empty(); }

std::string_view Keys::first_of(Names names) const {
  asked_.insert(names.begin(), names.end());
  const auto* const found =
      std::ranges::find_if(names, [this](std::string_view name) { return contains(name); });
  return found == names.end() ? std::string_view() : *found;
}

std::optional<std::int64_t> Keys::default_of(Names names) const {
  for (const auto& [name, value] : defaults_) {
    if (std::ranges::find(names, name) != names.end()) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> Keys::number_of(const Json& value, std::int64_t least,
                                            std::int64_t most) const {
  const auto number = value.integer();
  return !number || *number < least || *number > most ? std::nullopt : number;
}

std::int64_t Keys::read(std::string_view name, std::int64_t least, std::int64_t most) {
  const Json& value = *find(name);
  const bool list = value.is_array() && !value.empty();
  const auto number = number_of(list ? value.at(0) : value, least, most);
  if (!number) {
    refuse(name, fmt::format("an integer from {} to {}", least, most));
    return 1;
  }
  if (list && std::ranges::any_of(value, [&](const Json& v) { return v != value.at(0); })) {
    refuse(name, "one number for all layers");
  }
  return *number;
}

Extent Keys::count(Names names, std::int64_t most) {
  if (const std::string_view name = first_of(names); !name.empty()) {
    return {read(name, 1, most), full(name)};
  }
  if (const auto value = default_of(names)) return {*value, full(*names.begin())};
  refuse(*names.begin(), fmt::format("an integer from 1 to {}", most));
  return {1, full(*names.begin())};
}

Extent Keys::count_or(Names names, const Extent& otherwise) {
  return has_any(names) || default_of(names) ? count(names) : otherwise;
}

std::int64_t Keys::count_from_zero(Names names, std::int64_t otherwise, std::int64_t most) {
  if (const std::string_view name = first_of(names); !name.empty()) return read(name, 0, most);
  return default_of(names).value_or(otherwise);
}

std::int64_t Keys::last_layer(std::string_view name, std::int64_t layers) {
  const Json* value = find(name);
  if (value == nullptr || *value == -1) return layers - 1;
  const std::int64_t last = read(name, 0);
  if (last >= layers) refuse(name, fmt::format("-1, or a layer from 0 to {}", layers - 1));
  return last;
}

bool Keys::flag(std::string_view name, bool otherwise) {
  const Json* value = find(name);
  if (value == nullptr) return default_of({name}).value_or(otherwise ? 1 : 0) != 0;
  if (!value->boolean()) refuse(name, "true or false");
  return value->boolean().value_or(otherwise);
}

bool Keys::is_list(std::string_view name) const {
  const Json* value = find(name);
  return value != nullptr && value->is_array();
}

bool Keys::is_text(std::string_view name) const {
  const Json* value = find(name);
  return value != nullptr && value->string() != nullptr;
}

const Json* Keys::list_of(std::string_view name, std::int64_t size) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) {
    refuse(name, "a list");
    return nullptr;
  }
  if (static_cast<std::int64_t>(value->size()) < size) {
    refuse_text(fmt::format("{} has {} entries; allowed: {}, one for each layer", full(name),
                            value->size(), size));
    return nullptr;
  }
  return value;
}

std::vector<std::string> Keys::texts(std::string_view name, std::int64_t size, Names allowed) {
  std::vector<std::string> all;
  const Json* list = list_of(name, size);
  for (std::int64_t i = 0; list != nullptr && i < size; ++i) {
    const Json& value = list->at(static_cast<std::size_t>(i));
    const bool known =
        value.string() != nullptr && std::ranges::find(allowed, *value.string()) != allowed.end();
    if (!known) {
      refuse_text(fmt::format("{}[{}] is {}; allowed: {}", full(name), i, excerpt(value),
                              fmt::join(allowed, ", ")));
      break;
    }
    all.push_back(*value.string());
  }
  all.resize(static_cast<std::size_t>(size));
  return all;
}

std::vector<std::int64_t> Keys::numbers(std::string_view name) {
  std::vector<std::int64_t> all;
  const Json* list = list_of(name, 0);
  if (list == nullptr) return all;
  for (const Json& value : *list) {
    const auto number = number_of(value, 0);
    if (!number) {
      refuse(name, fmt::format("a list of integers from 0 to {}", kMostCount));
      break;
    }
    all.push_back(*number);
  }
  return all;
}

std::vector<std::int64_t> Keys::numbers(std::string_view name, std::int64_t size) {
  std::vector<std::int64_t> all;
  if (list_of(name, size) != nullptr) all = numbers(name);
  all.resize(static_cast<std::size_t>(size));
  return all;
}

void Keys::refuse(std::string_view name, std::string_view allowed) {
  const Json* value = object_.find(name);
  if (value == nullptr) value = find(name);
  refuse_text(value == nullptr
                  ? fmt::format("{} is missing; allowed: {}", full(name), allowed)
                  : fmt::format("{} is {}; allowed: {}", full(name), excerpt(*value), allowed));
}

void Keys::refuse_text(std::string_view sentence) {
  if (status_)
    status_ = fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin_, sentence));
}

}  // namespace octile::tools
