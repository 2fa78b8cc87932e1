// Lets one thread make a value while the others that ask for the same key wait for it.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "generator/core/error.h"

namespace octile {

template <typename Value>
class SingleFlight {
 public:
  struct Answer {
    Result<Value> value;
    bool made = false;  // true if this call made the value
  };

  // Returns the value of a key. It is kept until it is forgotten. A failure goes to all calls
  // that waited for it; a later call tries again.
  Answer get(const std::string& key, const std::function<Result<Value>()>& make) {
    std::promise<Result<Value>> promise;
    {
      std::unique_lock lock(mutex_);
      const auto found = flights_.find(key);
      if (found != flights_.end()) {
        const std::shared_future<Result<Value>> flight = found->second;
        lock.unlock();
        return {flight.get(), false};
      }
      flights_.emplace(key, promise.get_future().share());
    }
    return {fly(key, std::move(promise), make), true};
  }

  // Forgets the value of a key, if it is this one, so that a later call makes another.
  void forget(const std::string& key, const Value& value) {
    const std::scoped_lock lock(mutex_);
    const auto found = flights_.find(key);
    if (found == flights_.end() ||
        found->second.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      return;
    const Result<Value>& made = found->second.get();
    if (made && *made == value) flights_.erase(found);
  }

 private:
  Result<Value> fly(const std::string& key, std::promise<Result<Value>> promise,
                    const std::function<Result<Value>()>& make) {
    try {
      Result<Value> value = make();
      if (!value) forget(key);
      promise.set_value(value);
      return value;
    } catch (...) {
      forget(key);
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  void forget(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    flights_.erase(key);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<Result<Value>>> flights_;
};

}  // namespace octile
