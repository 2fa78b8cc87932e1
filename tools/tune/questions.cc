#include "tools/tune/questions.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tools/tune/tasks.h"

namespace octile::tools {

Result<std::vector<Question>> questions_of(const std::vector<Work>& works) {
  std::vector<Question> questions;
  for (const Work& work : works) {
    for (const TokenRange& range : work.tokens) {
      const auto tasks = tasks_of(with_dynamic_tokens(work.problem), {range.lo});
      if (!tasks) return tl::unexpected<Error>(tasks.error());
      for (const tuner::TuningTask& task : *tasks)
        questions.push_back({task, work.name, work.layers});
    }
  }
  return questions;
}

std::vector<Question> questions_of(std::vector<tuner::TuningTask> tasks) {
  std::vector<Question> questions;
  for (tuner::TuningTask& task : tasks) questions.push_back({std::move(task)});
  return questions;
}

std::vector<Question> distinct(std::vector<Question> questions) {
  std::vector<Question> once;
  std::unordered_map<std::string, std::size_t> places;  // by a task's text
  for (Question& question : questions) {
    const auto [place, is_new] = places.try_emplace(to_text(question.task), once.size());
    if (is_new) {
      once.push_back(std::move(question));
    } else {
      once[place->second].layers += question.layers;
    }
  }
  return once;
}

std::vector<double> predicted_us(const std::vector<Question>& questions, const DeviceSpec& device) {
  std::vector<double> all;
  for (const Question& question : questions) {
    const auto& [problem, tokens] = question.task;
    all.push_back(estimate_us(default_config(problem, tokens, device), problem, tokens, device));
  }
  return all;
}

std::vector<Question> by_weight(std::vector<Question> questions, const DeviceSpec& device) {
  const std::vector<double> us = predicted_us(questions, device);
  return by_weight(std::move(questions), us);
}

std::vector<Question> by_weight(std::vector<Question> questions, const std::vector<double>& us) {
  struct Weighed {
    Question question;
    double weight = 0, us = 0;
  };
  std::vector<Weighed> weighed;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const double weight = static_cast<double>(questions[i].layers) * us[i];
    weighed.push_back({std::move(questions[i]), weight, us[i]});
  }
  std::ranges::stable_sort(weighed, [](const Weighed& x, const Weighed& y) {
    return std::pair(x.weight, x.us) > std::pair(y.weight, y.us);
  });
  std::vector<Question> sorted;
  for (Weighed& one : weighed) sorted.push_back(std::move(one.question));
  return sorted;
}

bool are_of_layers(const std::vector<Question>& questions) {
  return std::ranges::any_of(questions, [](const Question& q) { return !q.layer.empty(); });
}

std::vector<tuner::TuningTask> tasks_of(const std::vector<Question>& questions) {
  std::vector<tuner::TuningTask> tasks;
  for (const Question& question : questions) tasks.push_back(question.task);
  return tasks;
}

}  // namespace octile::tools
