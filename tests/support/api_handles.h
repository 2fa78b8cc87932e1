// Shared by tests of the C API: a library handle with its own cache folder and a recorded log, and
// plans that destroy themselves. Descriptions are valid until a test changes them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "octile/octile.h"
#include "tests/support/quantize_call.h"

namespace octile::test {

using tests::run_quantize;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "octile-test-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class KeptLog {
 public:
  static void append(octile_log_level level, const char* message, void* self) {
    auto& log = *static_cast<KeptLog*>(self);
    const std::scoped_lock lock(log.mutex_);
    log.lines_.emplace_back(level, message);
  }
  std::vector<std::string> of(octile_log_level level) {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [line_level, text] : lines_)
      if (line_level == level) found.push_back(text);
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<octile_log_level, std::string>> lines_;
};

// The destructor checks that no plan is still alive.
class LibraryHandle {
 public:
  explicit LibraryHandle(const std::string& cache_dir, bool offline = false, int threads = 2,
                         const std::string& cache_roots = "") {
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.cache_dir = cache_dir.c_str();
    options.cache_roots = cache_roots.c_str();
    options.log = KeptLog::append;
    options.log_user = &log;
    options.log_level = OCTILE_LOG_DEBUG;
    options.offline = offline ? 1 : 0;
    options.compile_threads = threads;
    EXPECT_EQ(octile_library_create(&options, &handle_), OCTILE_OK) << octile_last_error();
  }
  ~LibraryHandle() { EXPECT_EQ(octile_library_destroy(handle_), OCTILE_OK) << octile_last_error(); }
  LibraryHandle(const LibraryHandle&) = delete;
  LibraryHandle& operator=(const LibraryHandle&) = delete;
  octile_library* get() const { return handle_; }

  mutable KeptLog log;  // reading a log does not change the handle

 private:
  octile_library* handle_ = nullptr;
};

struct PlanDelete {
  void operator()(octile_plan* plan) const { EXPECT_EQ(octile_plan_destroy(plan), OCTILE_OK); }
};
using PlanHandle = std::unique_ptr<octile_plan, PlanDelete>;

inline PlanHandle make_plan(const LibraryHandle& library, const char* device,
                            const std::string& problem) {
  octile_plan* plan = nullptr;
  EXPECT_EQ(octile_plan_create(library.get(), device, problem.c_str(), &plan), OCTILE_OK)
      << octile_last_error();
  return PlanHandle(plan);
}

inline const std::string kGemmText =
    "gemm m=? n=256 k=384 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
inline const std::string kQuantizeText = "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=row";

nlohmann::json describe(octile_plan* plan);

// Expects that the call was refused with this status and that its sentence contains every part.
inline void expect_refused(octile_status got, octile_status want,
                           const std::vector<std::string>& parts) {
  EXPECT_EQ(octile_status_name(got), std::string(octile_status_name(want)));
  for (const std::string& part : parts)
    EXPECT_THAT(octile_last_error(), ::testing::HasSubstr(part));
}

// Memory that is zero at first and whose first byte is 256-byte aligned.
class Bytes {
 public:
  explicit Bytes(std::size_t size) : storage_(size + 256, 0) {}
  template <typename T = void>
  T* at(std::size_t offset = 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return reinterpret_cast<T*>(((address + 255) & ~std::uintptr_t{255}) + offset);
  }

 private:
  std::vector<unsigned char> storage_;
};

// Valid arguments for kGemmText with m <= 384.
struct GemmOperands {
  Bytes a{384 * 384}, b{256 * 384}, a_scale{3 * 384 * 4}, b_scale{2 * 4 * 4}, d{384 * 256 * 2};
  octile_gemm_args args(std::int64_t m) {
    octile_gemm_args args = {};
    args.struct_size = sizeof(args);
    args.tokens = m;
    args.a = a.at();
    args.a_scale = a_scale.at();
    args.b = b.at();
    args.b_scale = b_scale.at();
    args.d = d.at();
    return args;
  }
};

// Valid arguments for kQuantizeText with rows <= 128.
struct QuantizeOperands {
  Bytes x{128 * 384 * 2}, q{128 * 384}, scale{3 * 128 * 4};
  QuantizeArguments args(std::int64_t rows) {
    QuantizeArguments args;
    args.rows = rows;
    args.x = x.at();
    args.q = q.at();
    args.scale = scale.at();
    return args;
  }
};

}  // namespace octile::test
