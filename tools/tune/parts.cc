#include "tools/tune/parts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/tuner/run.h"

namespace octile::tools {

std::vector<Question> questions_of_part(const std::vector<Question>& questions, const Part& part) {
  // Machines may have other GPUs and numbers of cores, by which no part must depend.
  constexpr const char* kDevice = "h200";
  constexpr int kCores = 16;
  std::unordered_map<std::string, std::size_t> problems;   // by text: the first question's place
  std::vector<std::pair<std::size_t, std::size_t>> order;  // a problem's place and the question's
  for (std::size_t i = 0; i < questions.size(); ++i)
    order.emplace_back(problems.try_emplace(to_text(questions[i].task.problem), i).first->second,
                       i);
  std::ranges::sort(order);
  std::vector<Question> in_order;
  for (const auto& [problem, at] : order) in_order.push_back(questions[at]);
  double all = 0;
  std::vector<double> needs;
  for (const tuner::NeededSeconds& need :
       tuner::needs_of(tasks_of(in_order), *find_device(kDevice), {}, kCores)) {
    needs.push_back(need.all());
    all += needs.back();
  }
  const double share = all / static_cast<double>(part.count);
  std::vector<Question> own;
  double before = 0;  // seconds of the questions before
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    // The part in which the middle of the question falls.
    const auto at = static_cast<std::size_t>((before + needs[i] / 2) / share);
    before += needs[i];
    if (std::min(at, part.count - 1) + 1 == part.index) own.push_back(std::move(in_order[i]));
  }
  return own;
}

}  // namespace octile::tools
