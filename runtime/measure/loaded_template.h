// A kernel of templates/bench, with which tests and benchmarks measure or check the users' kernels.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "generator/core/prologue.h"
#include "runtime/launch/launch_kernel.h"
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

// Kernels of templates/bench by their constants. Each is compiled when it is first asked for.
class LoadedTemplates {
 public:
  explicit LoadedTemplates(const GpuSession& gpu) : gpu_(gpu) {}
  // Returns the kernel, which lives as long as this object. Errors: as LoadedTemplate::compile.
  Result<const LoadedTemplate*> get(const Prologue& prologue, const std::string& path,
                                    const std::string& name);

 private:
  const GpuSession& gpu_;
  std::map<std::pair<std::string, std::string>, LoadedTemplate> loaded_;
};

}  // namespace octile
