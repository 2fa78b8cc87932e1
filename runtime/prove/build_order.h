// Decides which of many builds begins next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace octile::tuner {

// When a build is needed, the soonest first.
enum class Need : std::uint8_t {
  kNow,    // something waits for it
  kNext,   // by the question that follows
  kLater,  // by a question behind that, probably
};

// Builds that are needed sooner come first, and those of one need in the order in which they were
// asked for. It is not thread safe.
class BuildOrder {
 public:
  // Asks for a build, or for one that waits to come sooner. One that has begun is another build.
  void ask(std::string key, Need need) {
    const auto [place, is_new] = waiting_.try_emplace(key, need);
    if (!is_new && place->second <= need) return;
    place->second = need;
    queues_.at(static_cast<std::size_t>(need)).push_back(std::move(key));
  }
  // Returns the next build, which begins; nullopt: none waits.
  std::optional<std::string> next() {
    for (std::size_t need = 0; need < queues_.size(); ++need) {
      while (!queues_[need].empty()) {
        std::string key = std::move(queues_[need].front());
        queues_[need].pop_front();
        const auto found = waiting_.find(key);
        // One that came sooner is in that queue as well.
        if (found == waiting_.end() || found->second != static_cast<Need>(need)) continue;
        waiting_.erase(found);
        return key;
      }
    }
    return std::nullopt;
  }
  bool waits(const std::string& key) const { return waiting_.contains(key); }

 private:
  std::array<std::deque<std::string>, 3> queues_;  // by need
  std::unordered_map<std::string, Need> waiting_;  // those that have not begun
};

}  // namespace octile::tuner
