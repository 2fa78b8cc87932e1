// Decides which of many builds begins next.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace octile::tuner {

// Builds that are needed now, in the order in which they were, come before those that are expected.
// Not thread safe.
class BuildOrder {
 public:
  void expect(std::string key) {
    if (waiting_.insert(key).second) expected_.push_back(std::move(key));
  }
  // Also of one that is expected. Of one that has begun, it is another build.
  void need(std::string key) {
    waiting_.insert(key);
    needed_.push_back(std::move(key));
  }
  // Returns the next build, which begins; nullopt: none waits.
  std::optional<std::string> next() {
    for (auto* queue : {&needed_, &expected_}) {
      while (!queue->empty()) {
        std::string key = std::move(queue->front());
        queue->pop_front();
        if (waiting_.erase(key) > 0) return key;
      }
    }
    return std::nullopt;
  }
  bool waits(const std::string& key) const { return waiting_.contains(key); }

 private:
  std::deque<std::string> needed_, expected_;
  std::unordered_set<std::string> waiting_;  // keys in either queue that have not begun
};

}  // namespace octile::tuner
