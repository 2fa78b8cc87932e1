#include "tools/models/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "cache/json.h"
#include "generator/core/ascii.h"
#include "generator/core/nearest.h"
#include "runtime/base/environment.h"
#include "tools/models/checkpoint/checkpoint.h"
#include "tools/models/config/derive.h"
#include "tools/models/document.h"
#include "tools/models/model_file.h"
#include "tools/models/shapes_document.h"
#include "tools/models/shipped_models.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;
constexpr const char* kConfigName = "config.json";

// Returns a list of shapes as a model, whose layers are those of its file.
Model model_of_shapes(const ModelFile& file) {
  Model model{.name = file.model, .origin = file.origin, .layers = 1, .tokens = file.tokens};
  const auto add = [&](Weight weight, const std::string& name) {
    weight.role = name;
    weight.layers = 1;
    weight.input = name;
    model.weights.push_back(std::move(weight));
  };
  for (const ModelGemm& gemm : file.gemms) {
    Weight weight{.n = {gemm.n, "n"}, .k = {gemm.k, "k"}};
    if (gemm.split == TensorSplit::kN) weight.cut = Cut::kN, weight.units = {gemm.n, "n"};
    if (gemm.split == TensorSplit::kK) weight.cut = Cut::kK, weight.units = {gemm.k, "k"};
    add(std::move(weight), gemm.name);
  }
  if (!file.experts) return model;
  const auto add_experts = [&](const char* name, const ExpertGemm& gemm, Cut cut) {
    add({.n = {gemm.n, "n"},
         .k = {gemm.k, "k"},
         .groups = file.experts->count,
         .per_token = file.experts->per_token,
         .cut = cut,
         .units = cut == Cut::kN ? Extent{gemm.n, "n"} : Extent{gemm.k, "k"}},
        name);
  };
  add_experts("experts' gate_up", file.experts->gate_up, Cut::kN);
  add_experts("experts' down", file.experts->down, Cut::kK);
  return model;
}

Result<Model> model_of_text(const std::string& text, const std::string& origin,
                            const std::string& name) {
  const auto document = parse_document(text, origin);
  if (!document) return tl::unexpected<Error>(document.error());
  if (is_config(*document)) return model_of_config(*document, origin, name);
  if (is_shapes_document(*document)) return model_of_shapes_document(*document, origin);
  return parse_model_file(text, origin).map(model_of_shapes);
}

// Reads hf_quant_config.json, which modelopt writes beside a config that says nothing.
Status read_modelopt(const fs::path& folder, Model& model) {
  const fs::path path = folder / "hf_quant_config.json";
  std::error_code ignored;
  if (model.quantization || !fs::exists(path, ignored)) return {};
  auto quantization = read_document(path.string()).and_then([&](const Json& document) {
    return quantization_of_modelopt(document, path.string());
  });
  if (!quantization) return tl::unexpected<Error>(quantization.error());
  model.quantization = std::move(*quantization);
  return {};
}

// Returns the model of a config.json in a folder, which may have the weights beside it.
Result<Model> model_in_folder(const Json& config, const fs::path& folder, const std::string& origin,
                              const std::string& name) {
  const auto stored = read_checkpoint(folder.string());
  if (!stored) return tl::unexpected<Error>(stored.error());
  if (!stored->tensors.empty() && !knows_architecture(config)) {
    return model_of_checkpoint(stored->tensors, config, origin, name);
  }
  auto model = model_of_config(config, origin, name);
  if (!model && !stored->remark.empty()) {
    return fail(model.error().code, fmt::format("{}; {}", model.error().message, stored->remark));
  }
  if (!model) return model;
  if (Status ok = read_modelopt(folder, *model); !ok) return tl::unexpected<Error>(ok.error());
  if (!compare_with_checkpoint(*model, stored->tensors, config)) {
    auto stored_alone = model_of_checkpoint(stored->tensors, config, origin, name);
    if (stored_alone) {
      stored_alone->remarks.push_back(fmt::format(
          "the checkpoint has no weight of a layer of {} by its name: it is of another model",
          model->model_type));
    }
    return stored_alone;
  }
  if (!stored->remark.empty()) model->remarks.push_back(stored->remark);
  return model;
}

Result<Model> model_of_folder(const fs::path& folder, const std::string& name) {
  const std::string path = (folder / kConfigName).string();
  if (Status ok = check_regular(path); !ok) {
    return fail(ok.error().code, fmt::format("--model is '{}': {}", name, ok.error().message));
  }
  return read_document(path).and_then(
      [&](const Json& config) { return model_in_folder(config, folder, path, name); });
}

// A text and what errors call it.
struct NamedText {
  std::string text, name;
};

Result<NamedText> read_named(const std::string& path) {
  NamedText read;
  auto text = read_text(path, read.name);
  if (!text) return tl::unexpected<Error>(text.error());
  read.text = std::move(*text);
  return read;
}

// Standard input and pipes can be read once, and a command asks for a model more than once.
Result<NamedText> read_once(const std::string& path) {
  std::error_code ignored;
  if (path != "-" && fs::is_regular_file(path, ignored)) return read_named(path);
  static std::map<std::string, Result<NamedText>> known;  // of the command's one thread
  const auto found = known.find(path);
  return found != known.end() ? found->second : known.emplace(path, read_named(path)).first->second;
}

Result<Model> model_of_path(const std::string& path) {
  std::error_code ignored;
  if (path != "-" && fs::is_directory(path, ignored)) return model_of_folder(path, path);
  if (fs::path(path).filename() == kConfigName && fs::is_regular_file(path, ignored)) {
    const fs::path folder = fs::path(path).parent_path();
    const auto config = read_document(path);
    if (!config) return tl::unexpected<Error>(config.error());
    if (is_config(*config)) {
      return model_in_folder(*config, folder.empty() ? "." : folder, path, path);
    }
  }
  const auto read = read_once(path);
  if (!read) return tl::unexpected<Error>(read.error());
  return model_of_text(read->text, read->name,
                       path == "-" ? read->name : fs::path(path).filename().string());
}

Result<Model> model_of_shipped(const ShippedModel& shipped) {
  const std::string name(shipped.name);
  return model_of_text(std::string(shipped.json), name, name);
}

// ORG/NAME, in the letters that the Hub allows.
bool is_hub_id(const std::string& word) {
  const auto allowed = [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  };
  const std::size_t slash = word.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == word.size()) return false;
  const std::string org = word.substr(0, slash), name = word.substr(slash + 1);
  return std::ranges::all_of(org, allowed) && std::ranges::all_of(name, allowed) &&
         !org.starts_with('.') && !name.starts_with('.');
}

std::string hub_cache() {
  if (const auto cache = environment_value("HF_HUB_CACHE")) return *cache;
  if (const auto home = environment_value("HF_HOME")) return *home + "/hub";
  if (const auto cache = environment_value("XDG_CACHE_HOME")) return *cache + "/huggingface/hub";
  return environment_value("HOME").value_or("") + "/.cache/huggingface/hub";
}

// Returns the folder of the revision that refs/main names; nothing if the model is not in the
// cache.
Result<std::optional<fs::path>> hub_snapshot(const std::string& id) {
  std::string folder = "models--" + id;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path model = fs::path(hub_cache()) / folder;
  std::error_code ignored;
  if (!fs::is_directory(model, ignored)) return std::nullopt;
  const std::string ref = (model / "refs" / "main").string();
  auto revision = read_regular(ref);
  if (!revision) return tl::unexpected<Error>(revision.error());
  revision->resize(revision->find_last_not_of(" \t\r\n") + 1);
  const bool hex = !revision->empty() && revision->size() <= 64 &&
                   revision->find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!hex) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is '{}'; allowed: the name of a revision, in hexadecimal digits",
                            ref, revision->substr(0, 60)));
  }
  return model / "snapshots" / *revision;
}

const ShippedModel* find_shipped(const std::string& word) {
  for (const ShippedModel& shipped : shipped_models()) {
    if (word == shipped.name) return &shipped;
  }
  for (const ShippedModel& shipped : shipped_models()) {
    if (std::ranges::count(hub_ids_of(std::string(shipped.name)), word) > 0) return &shipped;
  }
  return nullptr;
}

// Returns the shipped word that was probably meant.
std::string meant_text(const std::string& word) {
  std::vector<std::string> all = shipped_model_names();
  if (word.find('/') != std::string::npos) {
    all.clear();
    for (const std::string& name : shipped_model_names()) {
      std::ranges::copy(hub_ids_of(name), std::back_inserter(all));
    }
  }
  return did_you_mean(word, std::vector<std::string_view>(all.begin(), all.end()));
}

// Returns true of a word that is meant as a path: an id of the Hub has one slash, in its middle.
bool is_path(const std::string& word) {
  return word.ends_with(".json") || word.ends_with('/') || word.starts_with('/') ||
         word.starts_with('.') || word.starts_with('~') || std::ranges::count(word, '/') > 1;
}

tl::unexpected<Error> unknown_model(const std::string& word) {
  if (is_path(word)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}': there is no such file or folder", word));
  }
  const std::string hub =
      is_hub_id(word) ? fmt::format("; no model of that id is in {}", hub_cache()) : "";
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--model is '{}'{}{}; allowed: a config.json or its folder, an id of the "
                          "Hub whose config.json is in the local cache, or a name that `octile "
                          "shapes` lists",
                          word, meant_text(word), hub));
}

}  // namespace

std::vector<std::string> shipped_model_names() {
  std::vector<std::string> names;
  for (const ShippedModel& model : shipped_models()) names.emplace_back(model.name);
  return names;
}

std::vector<std::string> shipped_models_with_experts() {
  std::vector<std::string> names;
  for (const ShippedModel& shipped : shipped_models()) {
    const auto model = model_of_shipped(shipped);
    if (model &&
        std::ranges::any_of(model->weights, [](const Weight& w) { return w.groups > 0; })) {
      names.emplace_back(shipped.name);
    }
  }
  return names;
}

std::vector<std::string> hub_ids_of(const std::string& shipped_name) {
  std::vector<std::string> ids;
  for (const ShippedModel& shipped : shipped_models()) {
    if (shipped.name != shipped_name) continue;
    const auto document = parse_document(shipped.json, shipped_name);
    for (const Json& id : document->at("_hub_ids")) ids.push_back(*id.string());
  }
  return ids;
}

Result<Model> find_model(const std::string& word) {
  for (const ShippedModel& shipped : shipped_models()) {
    if (word == shipped.name) return model_of_shipped(shipped);
  }
  std::error_code ignored;
  if (word == "-" || fs::exists(word, ignored)) return model_of_path(word);
  if (is_hub_id(word)) {
    const auto snapshot = hub_snapshot(word);
    if (!snapshot) return tl::unexpected<Error>(snapshot.error());
    if (const auto& folder = *snapshot) return model_of_folder(*folder, word);
  }
  if (const ShippedModel* shipped = find_shipped(word)) return model_of_shipped(*shipped);
  return unknown_model(word);
}

}  // namespace octile::tools
