#include "tools/tune/explain.h"

#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/common/text_table.h"
#include "tools/tune/ranks.h"
#include "tools/tune/report.h"
#include "tools/tune/served.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultNamedDevice = "h200";
constexpr const char* kMore =
    "\n  --list prints what each constraint removed, and the shortlists\n";

std::vector<ExplainedTask> explored(const std::vector<Question>& questions,
                                    const DeviceSpec& device) {
  std::vector<ExplainedTask> explained;
  for (const Question& question : questions)
    explained.push_back({question.task, tuner::explore(question.task, device)});
  return explained;
}

void print_json_of(const std::vector<ExplainedTask>& explained, const DeviceSpec& device) {
  Json document = Json::array();
  for (const auto& [task, exploration] : explained) document.push_back(to_json(task, exploration));
  print_json({{"device", device.name}, {"tasks", document}});
}

}  // namespace

Result<DeviceSpec> device_to_explain(const std::string& device) {
  if (!device.empty()) return device_spec(device);
  auto live = device_spec("cuda");
  return live ? live : device_spec(kDefaultNamedDevice);
}

Status explain(const TuneOptions& options, const DeviceSpec& device,
               const std::vector<Question>& questions) {
  for (const Question& question : questions) {
    if (Status ok = check_supported(question.task.problem, device); !ok) return ok;
  }
  if (!options.json && !options.list && are_of_layers(questions)) {
    const auto cores = cores_of_rank();
    if (!cores) return tl::unexpected<Error>(cores.error());
    const std::vector<double> us = predicted_us(questions, device);
    print_stdout("{}\n\n", plan_line(questions, us, device, *cores));
    print_table(plan_table(questions, us), options.wide);
    print_stdout(kMore);
    return {};
  }
  const std::vector<ExplainedTask> explained = explored(questions, device);
  if (options.json) {
    print_json_of(explained, device);
  } else if (options.list) {
    for (const auto& [task, exploration] : explained)
      print_stdout("{}\n", explanation_text(task, exploration, options.wide ? 0 : line_width()));
  } else {
    const std::size_t count = questions.size();
    print_stdout("{} task{} for {}\n\n", count, count == 1 ? "" : "s", device.name);
    if (questions.empty()) return {};
    print_table(explanation_summary(explained), options.wide);
    print_stdout(kMore);
  }
  return {};
}

}  // namespace octile::tools
