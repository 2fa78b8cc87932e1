// octile report: a page about records. It needs no GPU.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/page/page.h"
#include "tools/report/record_files.h"

namespace octile::tools {
namespace {

struct Options {
  std::vector<std::string> records;
  ModelOptions model;
  std::string recipe = "auto";
  std::string device;
  std::string out = "octile.html";
};

// Returns the one card of the records that the page is about.
Result<std::string> choose_card(const Options& options, const RecordFiles& files) {
  const std::vector<std::string> cards = cards_of(files);
  if (cards.empty()) {
    return refuse(fmt::format("{} {} no record; allowed: files with one at least",
                              fmt::join(options.records, ", "),
                              options.records.size() == 1 ? "has" : "have"));
  }
  if (options.device.empty()) {
    if (cards.size() == 1) return cards.front();
    return refuse(fmt::format("the records are of {} cards; --device chooses one of {}",
                              cards.size(), fmt::join(cards, ", ")));
  }
  std::string wanted = card_of(options.device);
  if (std::ranges::find(cards, wanted) != cards.end()) return wanted;
  return refuse(fmt::format("--device is '{}', which has no record; allowed: {}", options.device,
                            fmt::join(cards, ", ")));
}

Status add_models(const Options& options, PageContent& content) {
  if (options.model.models.empty()) return {};
  auto names = layer_names(options.model, options.recipe);
  if (!names) return tl::unexpected<Error>(names.error());
  content.models = options.model.models;
  content.names = std::move(*names);
  return add_verdicts(content, options.model, options.recipe, {});
}

// Leaves the records of the models, of which there may be none.
void keep_models(PageContent& content) {
  if (content.models.empty()) return;
  const auto is_of_layer = [&](const std::string& what) {
    return std::ranges::any_of(content.judged, [&](const std::string& model) {
      return what.starts_with(fmt::format("layer model={} ", model));
    });
  };
  std::erase_if(content.tuned,
                [&](const auto& record) { return !content.names.contains(record.problem); });
  std::erase_if(content.measured, [&](const Record& record) {
    if (is_of_layer(record.what)) return false;
    const auto problem = parse_problem(record.what);
    return !problem || !content.names.contains(to_text(with_dynamic_tokens(*problem)));
  });
}

// Says if the page has estimates alone. Errors: it has not even these.
Status check_models(const Options& options, const PageContent& content) {
  if (content.models.empty() || !content.tuned.empty() || !content.measured.empty()) return {};
  const std::string why = fmt::format(
      "--model is {}, and no record is of its layers; `octile shapes` lists them, and "
      "--tp, --ep, --layout and --recipe change them",
      fmt::join(options.model.models, ", "));
  if (content.layers.empty()) return refuse(why);
  print_stderr("octile: the page has estimates alone: {}\n", why);
  return {};
}

Result<PageContent> content_of(const Options& options) {
  auto files = read_record_files(options.records);
  if (!files) return tl::unexpected<Error>(files.error());
  const auto card = choose_card(options, *files);
  if (!card) return tl::unexpected<Error>(card.error());
  keep_card(*card, *files);
  PageContent content;
  content.tuned = std::move(files->tuned);
  content.measured = std::move(files->measured);
  content.device_name = *card;
  if (const DeviceSpec* known = find_device(*card)) {
    content.device = *known;
    content.device_name = known->full_name;
  }
  Status ok = add_models(options, content);
  keep_models(content);
  if (ok) ok = check_models(options, content);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return content;
}

Status run(const Options& options) {
  if (const std::string given = options.model.first_given();
      !given.empty() && options.model.models.empty())
    return refuse(fmt::format("{} without --model; allowed with --model only", given));
  if (Status ok = options.model.check(); !ok) return ok;
  const auto content = content_of(options);
  if (!content) return tl::unexpected<Error>(content.error());
  return write_page(options.out, *content);
}

}  // namespace

Command add_report(CLI::App& root) {
  CLI::App* app =
      add_subcommand(root, "report", "write a page of HTML about records; needs no GPU");
  auto options = std::make_shared<Options>();
  add_option(*app, "records", options->records,
             "files of tuning records or of measurements, or folders: a cache's tuning.jsonl and "
             "tuning.d, else all *.jsonl and *.jsonl.zst; - for stdin")
      .require();
  add_option(*app, "-o,--out", options->out, "the page; - for stdout").show_default();
  options->model.add_to(*app);
  add_recipe_option(*app, options->recipe,
                    "with --model: types and scales of FP8 layers: auto (what the checkpoint's "
                    "quantization_config says, else blockwise)");
  add_option(*app, "--device", options->device, "the card, if the records are of several")
      .complete_with(supported_devices);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
