// The options about models that subcommands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/command_line/command_line.h"
#include "tools/models/workload.h"

namespace octile::tools {

struct ModelOptions {
  std::vector<std::string> models;
  std::vector<std::string> modes;
  std::vector<std::string> convert, keep;
  std::string layout, preset;
  std::optional<std::int64_t> tp, ep, moe_tp;
  bool dp_attention = false;

  void add_to(CLI::App& app);
  // Returns the first of these options that is given, "" if none is: all of them need --model.
  std::string first_given() const;

  // Returns the first errors of options that no model is needed for.
  Status check() const;
  // Returns the model that the word names, with recipes. Errors: those of find_model() and
  // assign_recipes().
  Result<Model> read_whole(const std::string& model, const std::string& recipe) const;
  // Returns what one rank holds of it. Errors: those of shard() too.
  Result<Model> read(const std::string& model, const std::string& recipe) const;
  // Returns what is asked of the models. The options were checked.
  ModelUse use() const;

  Parallel parallel() const;
};

}  // namespace octile::tools
