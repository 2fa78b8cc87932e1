// A kernel of templates/bench, with which tests and benchmarks measure or check the users' kernels.
#pragma once

#include <memory>
#include <string>

#include "generator/core/prologue.h"
#include "runtime/engine/launch_kernel.h"
#include "runtime/measure/gpu_session.h"

namespace octile {

// A kernel that was compiled from a template and loaded into the session's primary context. That
// context must be current for a launch. The destructor unloads the kernel.
class LoadedTemplate {
 public:
  static Result<LoadedTemplate> compile(const GpuSession& gpu, const Prologue& prologue,
                                        const std::string& path, const std::string& name);
  ~LoadedTemplate();
  LoadedTemplate(LoadedTemplate&& other) noexcept;
  LoadedTemplate& operator=(LoadedTemplate&&) = delete;
  Status launch(unsigned blocks, unsigned threads, void** parameters, CUstream stream) const;

 private:
  LoadedTemplate(std::shared_ptr<const Driver> driver, CUlibrary library)
      : driver_(std::move(driver)), library_(library) {}
  std::shared_ptr<const Driver> driver_;
  CUlibrary library_ = nullptr;
  KernelHandle kernel_;
};

}  // namespace octile
